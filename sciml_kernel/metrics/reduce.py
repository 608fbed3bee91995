"""Many numbers to few: over ranks, and samples over time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sciml_kernel.contracts import Metric
from sciml_kernel.metrics.names import TRAIN_SAMPLES_PER_S, TRAIN_SAMPLES_PER_S_AVG

__all__ = ["OverRanks", "RateMeter", "over_ranks"]


@dataclass(frozen=True, slots=True)
class OverRanks:
    """One number of every rank, in short.

    skew: maximum / mean - 1, the share of time that the mean rank waits if the values are seconds of work before a
    collective; 0 is best; NaN when the mean is 0. slowest: the rank with the maximum, the lowest of equals.
    """

    mean: float
    minimum: float
    maximum: float
    skew: float
    slowest: int


def over_ranks(values: Sequence[float]) -> OverRanks:
    """values: (rank,), one finite number a rank. A NaN of any rank makes the numbers NaN: it is not hidden.

    Raises ValueError for no values.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"one value a rank is needed, got shape {array.shape}")
    mean, maximum = float(array.mean()), float(array.max())
    skew = maximum / mean - 1 if mean != 0 else float("nan")
    return OverRanks(mean, float(array.min()), maximum, skew, int(array.argmax()))


class RateMeter:
    """Samples per second of all ranks together, in the two ways that differ.

    With t(i) the time of call i and n(i) its samples:

    - instantaneous (`train/samples_per_s`): the samples counted since the last `metrics()` or `mark()` (else `start()`)
      over the seconds since the same moment. Call `mark()` after validation or a checkpoint, and the rate is that of
      training steps alone.
    - average (`train/samples_per_s_avg`): all samples since `start()` over all seconds since `start()`, validation and
      checkpoints included. It is what a person waits for, so `mark()` leaves it as it is.

    Where no time has passed the rate is NaN. `clock`: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.start()

    def start(self) -> None:
        """Begin anew: nothing counted, both times start now."""
        self._started = self._since = self._clock()
        self._n_all = self._n_since = 0

    def mark(self) -> None:
        """Begin a new interval of the instantaneous rate; its samples so far stay in the average."""
        self._since = self._clock()
        self._n_since = 0

    def add(self, n_samples: int) -> None:
        """Count the samples of one step, of all ranks together (the global batch)."""
        self._n_all += n_samples
        self._n_since += n_samples

    def metrics(self) -> list[Metric]:
        """Both rates now, unit "1/s"; begins a new interval."""
        now = self._clock()
        rate, average = _rate(self._n_since, now - self._since), _rate(self._n_all, now - self._started)
        self._since, self._n_since = now, 0
        return [Metric(TRAIN_SAMPLES_PER_S, rate, "1/s"), Metric(TRAIN_SAMPLES_PER_S_AVG, average, "1/s")]


def _rate(n_samples: int, seconds: float) -> float:
    return n_samples / seconds if seconds > 0 else float("nan")
