"""Events -> `xarray.Dataset`: what `Run.history` is.

Two axes, because metrics are reported at two paces (`names.axis_of`):

- dim `step`: every optimizer step at which a `train/...` metric was reported. Coordinates `step` (int64),
  `epoch_of_step` (int64), `wall_time_s` (float64, seconds since the Unix epoch).
- dim `epoch`: every epoch with a `val/...` or `baseline/...` metric. Coordinates `epoch` (int64), `step_of_epoch`
  (int64: optimizer steps done when it was reported), `epoch_wall_time_s` (float64).
- dim `rank`, only in metrics that several ranks reported.

A variable is named as its metric ("train/loss"), float64, with its unit in `attrs["units"]`, and NaN where it was not
reported. If a step or epoch was reported twice, as after a resume, the later event wins.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xarray as xr

from sciml_kernel.contracts import MetricEvent
from sciml_kernel.errors import UsageError
from sciml_kernel.metrics.jsonl import read_events
from sciml_kernel.metrics.names import axis_of

__all__ = ["HistoryReader", "history"]

_OTHER = {"step": "epoch_of_step", "epoch": "step_of_epoch"}
_WALL = {"step": "wall_time_s", "epoch": "epoch_wall_time_s"}


@dataclass
class _Series:
    unit: str = ""
    values: dict[tuple[int, int], float] = field(default_factory=dict)  # (position on the axis, rank) -> value


class _Table:
    """Events gathered so far; the newest for each (metric, position, rank)."""

    def __init__(self) -> None:
        self.series: dict[str, _Series] = {}
        self.marks: dict[str, dict[int, tuple[int, float]]] = {"step": {}, "epoch": {}}
        self.runs: set[str] = set()

    def add(self, events: Iterable[MetricEvent], run: str | None) -> None:
        for event in events:
            if run is not None and event.run != run:
                continue
            self.runs.add(event.run)
            axis = axis_of(event.name)
            at, other = (event.step, event.epoch) if axis == "step" else (event.epoch, event.step)
            series = self.series.setdefault(event.name, _Series())
            series.unit = event.unit
            series.values[at, event.rank] = event.value
            self.marks[axis][at] = (other, event.wall_time_s)

    def has(self, event: MetricEvent) -> bool:
        at = event.step if axis_of(event.name) == "step" else event.epoch
        return event.name in self.series and (at, event.rank) in self.series[event.name].values

    def dataset(self) -> xr.Dataset:
        if len(self.runs) > 1:
            raise UsageError(f"events of {len(self.runs)} runs: {', '.join(sorted(self.runs))}; choose one with run=")
        coords: dict[str, tuple[str, np.ndarray, dict[str, str]]] = {}
        place: dict[str, dict[int, int]] = {}
        for axis, marks in self.marks.items():
            at = sorted(marks)
            place[axis] = {value: i for i, value in enumerate(at)}
            coords[axis] = (axis, np.array(at, dtype=np.int64), {})
            coords[_OTHER[axis]] = (axis, np.array([marks[a][0] for a in at], dtype=np.int64), {})
            seconds = np.array([marks[a][1] for a in at], dtype=np.float64)
            coords[_WALL[axis]] = (axis, seconds, {"units": "s", "long_name": "seconds since the Unix epoch"})
        ranks_of = {name: {rank for _, rank in series.values} for name, series in self.series.items()}
        ranks = sorted(set().union(*(found for found in ranks_of.values() if len(found) > 1)))
        if ranks:
            coords["rank"] = ("rank", np.array(ranks, dtype=np.int64), {})
        column = {rank: i for i, rank in enumerate(ranks)}
        variables: dict[str, tuple[tuple[str, ...], np.ndarray, dict[str, str]]] = {}
        for name in sorted(self.series):
            series, axis = self.series[name], axis_of(name)
            rows = np.fromiter((place[axis][at] for at, _ in series.values), dtype=np.int64)
            values = np.fromiter(series.values.values(), dtype=np.float64)
            array: np.ndarray
            dims: tuple[str, ...]
            if len(ranks_of[name]) > 1:
                dims = (axis, "rank")
                array = np.full((len(place[axis]), len(ranks)), np.nan)
                array[rows, np.fromiter((column[rank] for _, rank in series.values), dtype=np.int64)] = values
            else:
                dims = (axis,)
                array = np.full(len(place[axis]), np.nan)
                array[rows] = values
            variables[name] = (dims, array, {"units": series.unit})
        return xr.Dataset(variables, coords=coords, attrs={"run": next(iter(self.runs), "")})


def history(events: Iterable[MetricEvent], *, run: str | None = None) -> xr.Dataset:
    """The Dataset described above, from events in the order in which they were written.

    run: take only this run's events. Raises UsageError if events of several runs are left.
    """
    table = _Table()
    table.add(events, run)
    return table.dataset()


class HistoryReader:
    """Follows a `metrics.jsonl` that may still grow: each `dataset()` reads the new bytes only.

    run: take only this run's events. A file that has become shorter was replaced, and is read from its start.
    """

    def __init__(self, path: str | Path, *, run: str | None = None) -> None:
        self.path = Path(path)
        self.offset = 0
        self._run = run
        self._table = _Table()
        self._lock = threading.Lock()  # a live plot and the cell's progress lines may ask at the same time
        self._dataset: xr.Dataset | None = None

    def dataset(self, *, newer: Iterable[MetricEvent] = ()) -> xr.Dataset:
        """The history up to now. newer: events that came another way; those that the file lacks are in this answer
        only. Raises RecordError naming file and line for a broken line."""
        with self._lock:
            try:
                replaced = self.path.stat().st_size < self.offset
            except OSError:
                replaced = False  # gone or unreadable now: what was read stays
            if replaced:
                self.offset = 0
                self._table = _Table()
                self._dataset = None
            events, self.offset = read_events(self.path, self.offset)
            if events or self._dataset is None:
                self._table.add(events, self._run)
                self._dataset = self._table.dataset()
            lacking = [event for event in newer if not self._table.has(event)]
            if not lacking:
                return self._dataset.copy()
            table = copy.deepcopy(self._table)  # the file's own table stays what the file says
            table.add(lacking, self._run)
            return table.dataset()
