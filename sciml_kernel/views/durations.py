"""Measured durations beside those that are owed."""

from __future__ import annotations

import math
from collections.abc import Mapping

from sciml_kernel.errors import UsageError
from sciml_kernel.views.plot import COLOURS, Plot, style

__all__ = ["durations"]

_WIDTH_IN, _ROW_IN = 8.0, 0.42


def durations(measured_s: Mapping[str, float], owed_s: Mapping[str, float], *, title: str = "Seconds") -> Plot:
    """One bar for each measured duration over a wider grey one: what is owed. Longer than owed is vermilion.

    measured_s, owed_s: seconds by name; what has no limit in owed_s has no grey bar. The order is that of measured_s.
    Raises UsageError where there is nothing to draw, a limit of something that was not measured, or a value that is
    not a finite number >= 0.
    """
    unknown = sorted(set(owed_s) - set(measured_s))
    if not measured_s or unknown:
        raise UsageError(f"limits of {unknown}, but measured were {list(measured_s)}; write the same names")
    for name, seconds in [*measured_s.items(), *owed_s.items()]:
        if not (math.isfinite(seconds) and seconds >= 0.0):
            raise UsageError(f"duration {name!r} is {seconds}; write seconds, 0 or more")
    words = [
        f"{name} {seconds:.2f} s" + (f" (owed {owed_s[name]:g} s)" if name in owed_s else "")
        for name, seconds in measured_s.items()
    ]
    late = [name for name, seconds in measured_s.items() if seconds > owed_s.get(name, math.inf)]
    text = f"{title}, measured beside owed: {'; '.join(words)}. Longer than owed: {', '.join(late) or 'none'}."
    with style():
        plot = Plot(_WIDTH_IN, 0.9 + _ROW_IN * len(measured_s), alt_text=text)
        axes = plot.subplots()
        for row, (name, seconds) in enumerate(measured_s.items()):
            limit = owed_s.get(name, 0.0)
            colour = COLOURS["vermilion" if name in late else "orange"]
            axes.barh(row, limit, height=0.72, color="#DDDDDD")
            axes.barh(row, seconds, height=0.4, color=colour)
            axes.annotate(
                f"{seconds:.2f} s", (max(seconds, limit), row), (4, 0), textcoords="offset points", va="center"
            )
        axes.set_yticks(range(len(measured_s)), [*measured_s])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.margins(x=0.1)
        axes.set_xlim(left=0.0)
        axes.set_xlabel("seconds")
        axes.set_title(f"{title}: measured (orange) and owed (grey)", loc="left")
    return plot
