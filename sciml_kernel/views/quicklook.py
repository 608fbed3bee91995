"""`quicklook`: look into a data set larger than memory, slice by slice."""

from __future__ import annotations

import html
import os
from typing import Any

import numpy as np
import xarray as xr

from sciml_kernel.errors import UsageError
from sciml_kernel.views.plot import Plot, style

__all__ = ["Quicklook", "quicklook"]

_RASTER_ABOVE = 512  # voxels a side; beyond it the browser would get more numbers than it has pixels


class Quicklook:
    """An interactive explorer (`widget`, a HoloViews DynamicMap) with a picture of its first view (`still`, a Plot).

    A saved notebook has no kernel behind it and shows the widget blank: the still stands beside it.
    """

    def __init__(self, widget: Any, still: Plot) -> None:
        self.widget = widget
        self.still = still

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        bundle, metadata = self.still._repr_mimebundle_()
        image = (
            f'<figure><img alt="{html.escape(self.still.alt_text, quote=True)}" '
            f'src="data:image/png;base64,{bundle["image/png"]}">'
            "<figcaption>Above, while a kernel runs: the explorer. Here: its first samples as a picture.</figcaption>"
            "</figure>"
        )
        data, extra = _rendered(self.widget)
        data = {**bundle, **data, "image/png": bundle["image/png"], "text/plain": self.still.alt_text}
        data["text/html"] = data.get("text/html", "") + image
        return data, {**metadata, **extra}


def _rendered(widget: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """MIME bundle and metadata of a HoloViews object; empty where no notebook can show it."""
    import holoviews as hv
    import panel as pn

    if not (hv.extension._loaded or pn.extension._loaded):  # their scripts are loaded by notebooks only
        return {}, {}
    pane: Any = pn.panel(widget)
    shown = pane._repr_mimebundle_(None, None)
    return shown if isinstance(shown, tuple) else (shown or {}, {})


def _load_scripts() -> None:
    """Give the notebook page the scripts of Bokeh and Panel, and DataArrays their `.hvplot`.

    By default the page would fetch them from another host; where it has no internet the explorer stays blank, and
    whatever that host sent would run with the notebook's rights. So they go into the output itself, 6 MB in a saved
    notebook; with PANEL_INLINE=false they don't. A batch run has no page: it keeps the short form.
    """
    import holoviews as hv

    if not os.environ.get("SCIML_PARENT_RUN"):
        os.environ.setdefault("PANEL_INLINE", "true")  # Panel's own switch, for its style sheets
    in_notebook = hasattr(hv.extension, "inline")
    if in_notebook:
        before = hv.extension.inline
        hv.extension.inline = os.environ.get("PANEL_INLINE", "").lower() in ("1", "true")
    try:
        import hvplot.xarray  # noqa: F401  (calls hv.extension; hvplot has this happen in each cell anew)

        if "bokeh" not in hv.Store.loaded_backends():
            hv.extension("bokeh", logo=False)
    finally:
        if in_notebook:
            hv.extension.inline = before


def _top_counts(density: xr.DataArray) -> float:
    """Upper end of the colour scale, the same for all views, from one slice: the others are not read."""
    middle = density.isel(sample=0, z=density.sizes["z"] // 2)
    return max(float(np.quantile(middle.to_numpy(), 0.999)), 1.0)


def quicklook(ds: xr.Dataset, *, channel: int = 0, name: str = "density") -> Quicklook:
    """Choose sample and z, see the slice (y, x) of log10(1 + counts).

    ds: as `open_universe`: density (sample, z, y, x, channel), int16, counts per voxel; lazy is best. Each view reads
    one slice of one sample (with chunks of a sample, at most one sample), so memory stays bounded however large the
    data set is. Slices of more than 512 voxels a side are rasterised to the pixels of the screen.
    Raises UsageError when ds has no such variable.
    """
    wanted = ("sample", "z", "y", "x", "channel")
    if name not in ds or ds[name].dims != wanted:
        raise UsageError(
            f"quicklook needs a variable {name!r} with dims {wanted}, got {dict(ds.sizes)} with {list(ds)}"
        )
    import holoviews as hv

    _load_scripts()
    density = ds[name].isel(channel=channel)
    box = ds.attrs.get("box_size_mpc_h")
    unit = "Mpc/h" if box else "voxel"
    n_sample, n_z, n_y, n_x = density.shape
    size = float(box) if box else float(n_x)
    y, x = ((np.arange(n) + 0.5) * size / n for n in (n_y, n_x))
    top = float(np.log10(1.0 + _top_counts(density)))

    def view(sample: int, z: int) -> Any:
        values = np.log10(1.0 + density.isel(sample=sample, z=z).to_numpy())
        array = xr.DataArray(values, dims=("y", "x"), coords={"y": y, "x": x}, name="counts")
        return array.hvplot.image(
            x="x",
            y="y",
            cmap="inferno",
            clim=(0.0, top),
            clabel="log10(1 + counts per voxel)",
            xlabel=f"x ({unit})",
            ylabel=f"y ({unit})",
            title=f"sample {sample}, z = {(z + 0.5) * size / n_z:.1f} {unit}",
            frame_width=380,
            frame_height=380,
            rasterize=max(n_x, n_y) > _RASTER_ABOVE,
            dynamic=False,
        )

    dimensions = [
        hv.Dimension("sample", values=list(range(n_sample)), default=0),
        hv.Dimension("z", values=list(range(n_z)), default=n_z // 2, label="z slice"),
    ]
    return Quicklook(hv.DynamicMap(view, kdims=dimensions), _still(density, n_z // 2, size, top, unit))


def _still(density: xr.DataArray, z: int, size: float, top: float, unit: str) -> Plot:
    """The middle slice of the first samples, drawn by matplotlib."""
    n = min(3, density.sizes["sample"])
    values = np.log10(1.0 + density.isel(sample=slice(0, n), z=z).to_numpy())
    with style():
        plot = Plot(
            1.0 + 2.7 * n,
            3.2,
            alt_text=(
                f"Counts per voxel in the slice z = {z} of the first {n} of {density.sizes['sample']} samples, "
                f"from {10 ** values.min() - 1:.0f} to {10 ** values.max() - 1:.0f}."
            ),
        )
        plot.set_layout_engine("compressed")  # images keep their shape: no gaps, and the colour bar is as high as they
        for i, axes in enumerate(np.atleast_1d(plot.subplots(1, n, sharey=True))):
            image = axes.imshow(values[i], origin="lower", extent=(0, size, 0, size), cmap="inferno", vmin=0, vmax=top)
            axes.grid(False)
            axes.set_title(f"sample {i}, z = {(z + 0.5) * size / density.sizes['z']:.1f} {unit}", loc="left")
            axes.set_xlabel(f"x ({unit})")
        plot.axes[0].set_ylabel(f"y ({unit})")
        plot.colorbar(image, ax=plot.axes).set_label("log10(1 + counts per voxel)", fontsize=9)
    return plot
