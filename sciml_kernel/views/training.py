"""Loss, learning rate, samples per second and how busy each rank is, of a run that is live or over."""

from __future__ import annotations

import textwrap

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from sciml_kernel.metrics.names import TRAIN_BUSY_S
from sciml_kernel.metrics.reduce import OverRanks, over_ranks
from sciml_kernel.views.plot import COLOURS, Plot, style

__all__ = ["latest", "skew_in_words", "training_curves"]

LEARNING_RATE = "train/learning_rate"
_MAX_POINTS = 2000
_FEW = 20  # so many points are marked: the first one is no line yet
_LINE = 130  # characters that fit over the figure
_FEW_RANKS = 8  # so many get a line each
_EVEN = 0.05  # the slowest takes less than this share longer than the mean
_RECENT = 5  # reports that the words are about: one alone may be an accident
_RANK_COLOURS = (*(colour for name, colour in COLOURS.items() if name != "grey"), COLOURS["grey"], "#000000")


def _curve(history: xr.Dataset, name: str) -> tuple[np.ndarray, np.ndarray]:
    """(steps done, value) of one metric where it was reported; the mean over ranks where several reported."""
    if name not in history:
        return np.empty(0), np.empty(0)
    values = history[name]
    if "rank" in values.dims:
        values = values.mean("rank")
    axis = str(values.dims[0])
    at = values["step"] if axis == "step" else values["step_of_epoch"]
    keep = np.isfinite(values.to_numpy())
    return at.to_numpy()[keep], values.to_numpy()[keep]


def latest(history: xr.Dataset) -> str:
    """The newest numbers in words, for readers who don't see the figure.

    >>> latest(xr.Dataset())
    'nothing reported yet'
    """
    parts = []
    step, train = _curve(history, "train/loss")
    if step.size:
        parts.append(f"step {int(step[-1])}: train loss {train[-1]:.4g} (first {train[0]:.4g})")
    _, validation = _curve(history, "val/loss")
    if validation.size:
        parts.append(
            f"validation loss {validation[-1]:.4g} after {validation.size} epochs (best {validation.min():.4g})"
        )
    _, rate = _curve(history, "train/samples_per_s")
    _, average = _curve(history, "train/samples_per_s_avg")
    if rate.size:
        words = f", {average[-1]:.3g} on average" if average.size else ""
        parts.append(f"{rate[-1]:.3g} samples/s now{words}")
    skew = skew_in_words(history)
    if skew:
        parts.append(skew)
    return "; ".join(parts) or "nothing reported yet"


def _busy(history: xr.Dataset) -> xr.DataArray | None:
    """Seconds a step by (step, rank), where all ranks reported; None for one rank or no report."""
    if TRAIN_BUSY_S not in history or "rank" not in history[TRAIN_BUSY_S].dims:
        return None
    found = history[TRAIN_BUSY_S].transpose("step", "rank").dropna("step")
    return found if found.sizes["step"] else None


def _recent(busy: xr.DataArray) -> OverRanks:
    return over_ranks(busy[-_RECENT:].mean("step").to_numpy().tolist())


def skew_in_words(history: xr.Dataset) -> str:
    """Which rank the others wait for, from the newest reports; "" where that is not known.

    >>> skew_in_words(xr.Dataset())
    ''
    """
    busy = _busy(history)
    if busy is None:
        return ""
    now = _recent(busy)
    if not now.skew >= _EVEN:
        return f"the ranks keep pace: busy {_time(now.mean)} a step, the slowest {_time(now.maximum)}"
    rank = int(busy["rank"][now.slowest])
    return f"rank {rank} is the slowest: busy {_time(now.maximum)} a step, the mean of all is {_time(now.mean)}"


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def _thin(*arrays: np.ndarray) -> list[np.ndarray]:
    stride = max(1, -(-arrays[0].size // _MAX_POINTS))
    return [array[::-1][::stride][::-1] for array in arrays]  # the newest point stays


def _marker(values: np.ndarray) -> str:
    return "." if values.size <= _FEW else ""


def _smooth(values: np.ndarray) -> np.ndarray:
    """Exponential mean over about a fiftieth of the points, unbiased at the start."""
    keep = 1 - 1 / max(2.0, values.size / 50)
    weight = total = 0.0
    smoothed = np.empty_like(values)
    for i, value in enumerate(values):
        total, weight = keep * total + value, keep * weight + 1
        smoothed[i] = total / weight
    return smoothed


def _from_zero(axes: Axes, *, room: float = 1.1) -> None:
    top = max((float(np.max(line.get_ydata())) for line in axes.lines), default=0.0)
    axes.set_ylim(0.0, room * top if top > 0 else 1.0)


def _loss(axes: Axes, history: xr.Dataset) -> None:
    step, loss = _curve(history, "train/loss")
    at, validation = _curve(history, "val/loss")
    if step.size:
        step, loss, mean = _thin(step, loss, _smooth(loss))
        axes.plot(
            step, loss, color=COLOURS["sky"], lw=0.8, alpha=0.8, marker=_marker(step), label="training, each report"
        )
        axes.plot(step, mean, color=COLOURS["blue"], lw=1.8, marker=_marker(step), label="training, smoothed")
    if at.size:
        axes.plot(at, validation, "o-", color=COLOURS["vermilion"], lw=1.2, ms=4.5, label="validation, each epoch")
    positive = np.concatenate([loss, validation])
    if positive.size and (positive > 0).all():
        axes.set_yscale("log" if positive.max() > 10 * positive.min() else "linear")
    if step.size or at.size:
        axes.legend(loc="best")
    axes.set_title("Loss", loc="left")
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("loss")


def _learning_rate(axes: Axes, history: xr.Dataset) -> None:
    step, rate = _curve(history, LEARNING_RATE)
    if step.size:
        axes.plot(*_thin(step, rate), color=COLOURS["green"], lw=1.6, marker=_marker(step))
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
    _from_zero(axes)
    axes.set_title("Learning rate", loc="left")
    axes.set_xlabel("optimizer step")


def _rate(axes: Axes, history: xr.Dataset) -> None:
    step, rate = _curve(history, "train/samples_per_s")
    at, average = _curve(history, "train/samples_per_s_avg")
    if step.size:
        axes.plot(*_thin(step, rate), color=COLOURS["orange"], lw=1.0, marker=_marker(step), label="last interval")
    if at.size:
        axes.plot(*_thin(at, average), color=COLOURS["purple"], lw=1.8, marker=_marker(at), label="average so far")
    if step.size or at.size:
        axes.legend(loc="upper left", ncols=2, fontsize=8, columnspacing=0.9, handlelength=1.2, borderaxespad=0.1)
    _from_zero(axes, room=1.3)  # the legend is over the curves
    axes.set_title("Samples per second, all ranks", loc="left")
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("samples/s")


def _skew(axes: Axes, busy: xr.DataArray) -> None:
    """Busy time of each rank, or the range of all and the slowest one."""
    step = busy["step"].to_numpy()
    values, ranks = busy.to_numpy(), busy["rank"].to_numpy()
    unit, scale = ("ms", 1000.0) if values.max() < 0.9995 else ("s", 1.0)
    slowest = _recent(busy).slowest
    if ranks.size <= _FEW_RANKS:
        for i, rank in enumerate(ranks):
            thinned = _thin(step, scale * values[:, i])
            width = 2.0 if i == slowest else 1.1
            name = f"rank {rank}" if i == 0 else str(rank)
            axes.plot(*thinned, color=_RANK_COLOURS[i], lw=width, marker=_marker(step), label=name)
    else:
        at, low, high, mean, one = _thin(
            step, *(scale * v for v in (values.min(1), values.max(1), values.mean(1), values[:, slowest]))
        )
        band = axes.fill_between(at, low, high, color=COLOURS["sky"], alpha=0.4, lw=0, label=f"all {ranks.size} ranks")
        if at.size == 1:  # a band over one step has no width
            band.set(lw=6, edgecolor=COLOURS["sky"])
        axes.plot(at, mean, color=COLOURS["blue"], lw=1.2, marker=_marker(at), label="mean")
        axes.plot(at, one, color=COLOURS["vermilion"], lw=1.4, marker=_marker(at), label=f"rank {ranks[slowest]}")
    # over the curves, where there are none
    axes.set_ylim(0.0, 1.45 * scale * float(values.max()) or 1.0)
    axes.legend(
        loc="upper left", ncols=_FEW_RANKS, fontsize=8, columnspacing=0.7, handlelength=0.9, handletextpad=0.4,
        borderaxespad=0.1,
    )  # fmt: skip
    slow = f"rank {ranks[slowest]} is slowest" if _recent(busy).skew >= _EVEN else "the ranks keep pace"
    axes.set_title(f"Busy time: {slow}", loc="left")
    axes.set_xlabel("optimizer step")
    axes.set_ylabel(f"{unit} a step")


def training_curves(history: xr.Dataset, *, title: str = "Training", note: str = "") -> Plot:
    """Loss (training against step, validation at its epochs), learning rate, samples/s now and on average, and, where
    several ranks reported it, how long each is busy in a step before it must wait for the others.

    history: Dataset as `Run.history`; metrics that are missing leave an empty panel. note: words after the title.
    """
    numbers, busy = latest(history), _busy(history)
    rows = 2 if busy is None else 3
    with style():
        plot = Plot(9.5, 4.4 if rows == 2 else 6.2, alt_text=f"{title}. {numbers}.")
        grid = plot.add_gridspec(rows, 2, width_ratios=[1.9, 1.0])
        _loss(plot.add_subplot(grid[:, 0]), history)
        _learning_rate(plot.add_subplot(grid[0, 1]), history)
        _rate(plot.add_subplot(grid[1, 1]), history)
        if busy is not None:
            _skew(plot.add_subplot(grid[2, 1]), busy)
            for upper in plot.axes[1:3]:
                upper.set_xlabel("")
        lines = textwrap.wrap(f"{title}  {note}", _LINE) + textwrap.wrap(numbers, _LINE)
        plot.suptitle("\n".join(lines), fontsize=10, ha="left", x=0.01)
        for axes in plot.axes:
            axes.margins(x=0.02)
            axes.set_xlim(left=0)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    return plot
