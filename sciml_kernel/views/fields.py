"""Slices of a universe."""

from __future__ import annotations

import numpy as np
import xarray as xr
from matplotlib.colors import LogNorm
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from sciml_kernel.errors import UsageError
from sciml_kernel.views.plot import Plot, style

__all__ = ["density_slice", "slab"]


def slab(
    density: xr.DataArray, *, box_size_mpc_h: float, thickness_mpc_h: float, z_mpc_h: float | None = None
) -> xr.DataArray:
    """Density averaged along z over a slab, divided by the mean of the whole box.

    density: (z, y, x), counts per voxel, eager or lazy. z_mpc_h: centre of the slab; None: middle of the box. Returns
    (y, x), float64, 1 is the cosmic mean; coordinates y and x in Mpc/h (voxel centres); attrs: slab edges in Mpc/h.
    Raises UsageError for other dims and a slab outside the box.
    """
    if density.ndim != 3:
        raise UsageError(f"a slice needs dims (z, y, x), got {density.dims}; select one sample and one channel first")
    z_dim, y_dim, x_dim = (str(dim) for dim in density.dims)
    n_z = density.sizes[z_dim]
    voxel = box_size_mpc_h / n_z
    centre = box_size_mpc_h / 2 if z_mpc_h is None else z_mpc_h
    if not 0 <= centre <= box_size_mpc_h:
        raise UsageError(f"z_mpc_h {centre:g} is outside the box of {box_size_mpc_h:g} Mpc/h")
    n = min(n_z, max(1, round(thickness_mpc_h / voxel)))
    first = min(max(0, round(centre / voxel - n / 2)), n_z - n)
    mean = float(density.mean(dtype=np.float64))
    if not mean > 0:
        raise UsageError(f"the mean density must be positive, got {mean:g}: are these counts per voxel?")
    values = density.isel({z_dim: slice(first, first + n)}).mean(z_dim, dtype=np.float64) / mean
    centres = {
        name: (np.arange(density.sizes[dim]) + 0.5) * box_size_mpc_h / density.sizes[dim]
        for name, dim in (("y", y_dim), ("x", x_dim))
    }
    return xr.DataArray(
        values.to_numpy(),
        dims=("y", "x"),
        coords=centres,
        attrs={"z_from_mpc_h": first * voxel, "z_to_mpc_h": (first + n) * voxel, "long_name": "density / mean density"},
    )


def density_slice(
    density: xr.DataArray,
    *,
    box_size_mpc_h: float,
    thickness_mpc_h: float = 16.0,
    z_mpc_h: float | None = None,
    title: str = "Dark matter density",
) -> Plot:
    """A slab of one universe, on a logarithmic scale: filaments, knots and voids.

    density: (z, y, x), counts per voxel. Raises UsageError as `slab`.
    """
    field = slab(density, box_size_mpc_h=box_size_mpc_h, thickness_mpc_h=thickness_mpc_h, z_mpc_h=z_mpc_h)
    values = field.to_numpy()
    positive = values[values > 0]
    low, high = np.quantile(positive, [0.005, 0.999]) if positive.size else (0.5, 2.0)  # a slab may be all void
    low, high = min(low, 0.5), max(high, 2.0)
    z_from, z_to = field.attrs["z_from_mpc_h"], field.attrs["z_to_mpc_h"]
    with style():
        plot = Plot(
            6.0,
            5.0,
            alt_text=(
                f"{title}: map of the dark matter density in a slab of {z_to - z_from:.3g} Mpc/h, from "
                f"{values.min():.2g} to {values.max():.3g} times the mean. "
                "Bright knots and filaments enclose dark voids."
            ),
        )
        axes = plot.add_subplot()
        image = axes.imshow(
            np.maximum(values, low),
            origin="lower",
            extent=(0, box_size_mpc_h, 0, box_size_mpc_h),
            cmap="inferno",
            norm=LogNorm(low, high),
            interpolation="nearest",
        )
        axes.grid(False)
        axes.set_xlabel("x (Mpc/h)")
        axes.set_ylabel("y (Mpc/h)")
        axes.set_title(f"{title}\nmean over {z_from:.4g} < z < {z_to:.4g} Mpc/h, {values.shape[1]}² voxels", loc="left")
        bar = plot.colorbar(
            image,
            ax=axes,
            extend="both",
            ticks=LogLocator(subs=(1.0, 2.0, 5.0)),
            format=FuncFormatter(lambda ratio, _: f"{ratio:g}"),
        )
        bar.ax.yaxis.set_minor_locator(NullLocator())
        bar.set_label("density / mean density")
    return plot
