"""Several runs in one figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.ticker import MaxNLocator

from sciml_kernel.errors import UsageError, did_you_mean
from sciml_kernel.metrics.names import TIMINGS
from sciml_kernel.views.plot import COLOURS, Plot, style

__all__ = ["compare_runs", "grid_results"]

_MOST_PANELS = 6
_FIRST = ("val/loss", "train/loss", "val/mean_iou")
_DASHES = ("-", "--", ":", "-.")


def compare_runs(
    histories: Mapping[str, xr.Dataset], metrics: Sequence[str] | None = None, *, title: str = "Runs"
) -> Plot:
    """Metric curves of several runs over each other, one panel a metric, one colour and dash a run.

    histories: label -> Dataset as `Run.history`. metrics: names; default: those that change in a run, losses first, at
    most six. Raises UsageError where no run has any of them.
    """
    names = list(metrics) if metrics is not None else _chosen(histories)
    names = [name for name in names if any(name in history for history in histories.values())]
    if not names:
        raise UsageError(f"the {len(histories)} runs have no metric {'of these ' if metrics else ''}to draw")
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    colours = list(COLOURS.values())
    words = []
    with style():
        plot = Plot(4.2 * columns + 0.3, 3.1 * rows + 0.45 + 0.22 * len(histories), alt_text="")
        panels = np.atleast_1d(plot.subplots(rows, columns, squeeze=False)).ravel()
        for axes, name in zip(panels, names, strict=False):
            last = []
            for i, (label, history) in enumerate(histories.items()):
                if name not in history:
                    continue
                line = history[name].mean("rank") if "rank" in history[name].dims else history[name]
                line = line.dropna(line.dims[0])
                few = "o" if line.size < 40 else ""
                style_of = {"color": colours[i % len(colours)], "ls": _DASHES[i // len(colours) % 4], "marker": few}
                axes.plot(line[line.dims[0]], line, lw=1.4, ms=3.5, label=label, **style_of)
                if line.size:
                    last.append(f"{label} {float(line[-1]):.4g}")
            words.append(f"{name}: {', '.join(last)}")
            unit = next((h[name].attrs.get("units") for h in histories.values() if name in h), "")
            axes.set_title(name, loc="left")
            axes.set_xlabel("epoch" if _is_of_epochs(name, histories) else "optimizer step")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
            axes.set_ylabel(unit or "")
        for axes in panels[len(names) :]:
            axes.set_visible(False)
        lines = {line.get_label(): line for axes in panels[: len(names)] for line in axes.lines}
        plot.legend(list(lines.values()), list(lines), loc="outside lower left", ncols=1)
        plot.suptitle(title, x=0.01, ha="left", fontsize=11)
    plot.alt_text = f"{title}: {len(histories)} runs over each other. Last values: {'; '.join(words)}."
    return plot


def _chosen(histories: Mapping[str, xr.Dataset]) -> list[str]:
    names = list(dict.fromkeys(str(name) for history in histories.values() for name in history))
    moving = [n for n in names if any(n in h and h[n].count() > 1 for h in histories.values()) and n not in TIMINGS]
    moving = [name for name in moving if not name.startswith(("baseline/", "train/learning_rate"))]
    return sorted(moving, key=lambda n: (_FIRST.index(n) if n in _FIRST else len(_FIRST), n))[:_MOST_PANELS]


def _is_of_epochs(name: str, histories: Mapping[str, xr.Dataset]) -> bool:
    return any(name in history and "epoch" in history[name].dims for history in histories.values())


def grid_results(table: pd.DataFrame, x: str, y: str, *, by: str | None = None, title: str = "") -> Plot:
    """What came out of a grid: a result against a parameter that was varied, a point a variant.

    table: a row a variant, as a grid's `index.csv`. x, y: columns with numbers. by: a column whose values are told
    apart by colour; their means are joined by a line. Variants without a result are left out and counted in the title.
    Raises UsageError for a column that is not there, or where no variant has a result.
    """
    for name in (x, y, *([by] if by else [])):
        if name not in table:
            raise UsageError(f"the table has no column {name!r}; {did_you_mean(name, list(table))}")
    found = table[table[y].notna() & table[x].notna()]
    if found.empty:
        raise UsageError(f"none of the {len(table)} variants has a number in {y!r}")
    missing = len(table) - len(found)
    groups = list(found.groupby(by, sort=True)) if by else [("", found)]
    words = []
    with style():
        plot = Plot(6.4, 4.0, alt_text="")
        axes = plot.subplots()
        for i, (value, rows) in enumerate(groups):
            colour = list(COLOURS.values())[i % len(COLOURS)]
            means = rows.groupby(x)[y].mean()
            axes.plot(rows[x], rows[y], "o", ms=4, color=colour, alpha=0.7)
            axes.plot(means.index, means.to_numpy(), lw=1.4, color=colour, label=f"{by} = {value}" if by else "mean")
            words.append(f"{value}: " * bool(by) + ", ".join(f"{a:g} -> {b:.4g}" for a, b in means.items()))
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        if by:
            axes.legend(loc="best")
        note = f" ({missing} of {len(table)} variants have no result)" if missing else ""
        axes.set_title((title or f"{y} against {x}") + note, loc="left")
    plot.alt_text = f"{title or y}{note}: mean of {y} for each {x}: {'; '.join(words)}."
    return plot
