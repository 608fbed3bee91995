"""Power spectra of universes against linear theory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from sciml_kernel.errors import UsageError
from sciml_kernel.views.plot import COLOURS, Plot, style

__all__ = ["power_spectra"]

_CYCLE = ("blue", "vermilion", "green", "purple", "orange", "grey")
_MARKERS = "osD^vP"

Theory = Callable[[np.ndarray], np.ndarray]


def _plain_ticks(axes: Axes) -> None:
    """0.02, 0.05, 0.1... instead of powers: the range is often less than two decades."""
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda k, _: f"{k:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def power_spectra(
    measured: Mapping[str, xr.Dataset], theory: Mapping[str, Theory], *, title: str = "Power spectrum of the density"
) -> Plot:
    """P(k) of one or more universes with linear theory above, and their ratio below.

    measured: label -> Dataset(k) as `cosmology.power_spectrum`: `power` (Mpc/h)^3, `modes` counted in each bin, k in
    h/Mpc. theory: label -> function from k (h/Mpc) to linear power (Mpc/h)^3. Bars are the scatter of a Gaussian field,
    P sqrt(2 / modes): a mode and its complex conjugate are one number. Raises UsageError when labels differ.
    """
    if set(measured) != set(theory) or not measured:
        raise UsageError(f"one theory for each spectrum: got spectra {list(measured)} and theories {list(theory)}")
    worst = []
    with style():
        plot = Plot(7.0, 5.6)
        top, bottom = plot.subplots(2, 1, sharex=True, height_ratios=[2.2, 1.0])
        for i, (label, spectrum) in enumerate(measured.items()):
            colour = COLOURS[_CYCLE[i % len(_CYCLE)]]
            use = (spectrum["modes"].to_numpy() > 0) & (spectrum["power"].to_numpy() > 0)
            k, power = spectrum["k"].to_numpy()[use], spectrum["power"].to_numpy()[use]
            error = power * np.sqrt(2.0 / spectrum["modes"].to_numpy()[use])
            linear = np.asarray(theory[label](k))
            fine = np.geomspace(k.min(), k.max(), 200)
            top.plot(fine, theory[label](fine), color=colour, lw=1.5, label=f"{label}, linear theory")
            marks = {"fmt": _MARKERS[i % len(_MARKERS)], "color": colour, "ms": 4, "lw": 1, "capsize": 2}
            top.errorbar(k, power, error, label=f"{label}, measured", **marks)
            bottom.errorbar(k, power / linear, error / linear, **marks)
            large = k <= np.sqrt(k.min() * k.max())
            weights = (linear[large] / error[large]) ** 2
            worst.append(f"{label}: {np.average(power[large] / linear[large], weights=weights):.2f}")
        bottom.axhline(1.0, color="black", lw=1)
        top.set_xscale("log")
        top.set_yscale("log")
        _plain_ticks(bottom)
        top.set_ylabel("P(k)  (Mpc/h)³")
        top.set_title(title, loc="left")
        top.legend(loc="best")
        bottom.set_ylabel("measured / linear")
        bottom.set_xlabel("k  (h/Mpc)")
        bottom.set_ylim(0, max(1.5, min(3.0, bottom.get_ylim()[1])))
        plot.alt_text = (
            f"{title}: measured power against linear theory on the same axes, and their ratio below. Mean ratio on the "
            f"larger scales: {', '.join(worst)}. Bars are the expected scatter from the number of modes."
        )
    return plot
