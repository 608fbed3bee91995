"""From steps to metric events and lines of text. Rank 0 speaks; on the others nothing here does anything visible."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from sciml_kernel.contracts import Metric, MetricEvent, Sink
from sciml_kernel.engine.checkpoint import Position
from sciml_kernel.errors import RunError
from sciml_kernel.metrics.names import TRAIN_BUSY_S, TRAIN_LOSS, VAL_LOSS
from sciml_kernel.metrics.reduce import RateMeter

__all__ = ["LEARNING_RATE", "Reporter"]

LEARNING_RATE = "train/learning_rate"
"""Step size of the newest step reported with it."""

_RANK_EVENTS_PER_S = 16


class Reporter:
    """Collects what the steps give, and reports it at most every `every_s` seconds.

    sinks: where events go, on rank 0; the file first. say: takes one line of text. n_per_step: samples of one step over
    all ranks. clock: monotonic seconds. `position` is the newest one reported; `under_way` the step that is being done,
    counted from 1, for whoever has to say where a failure was.
    """

    def __init__(
        self,
        run: str,
        *,
        rank: int,
        sinks: Sequence[Sink],
        every_s: float,
        n_per_step: int,
        say: Callable[[str], None] = lambda line: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.run, self.position, self.under_way = run, Position(), 0
        self._rank, self._sinks, self._every_s, self._n = rank, sinks if rank == 0 else (), every_s, n_per_step
        self._say = say if rank == 0 else lambda line: None
        self._clock = clock
        self._rates = RateMeter(clock=clock)
        self._since: list[float] = []
        self._busy_s: list[np.ndarray] = []
        self._busy_at = -math.inf
        self._epoch_losses: list[float] = []
        self._reported_at = self._epoch_at = clock()
        self._rate = math.nan

    def begin(self, position: Position) -> None:
        """Start the clocks: what came before (reading, compiling nothing yet) is no training."""
        self.position, self.under_way = position, position.step
        self._rates.start()
        self._reported_at = self._epoch_at = self._clock()

    def step(
        self,
        position: Position,
        loss: float,
        learning_rate: Callable[[], float],
        busy_s: np.ndarray | tuple[()] = (),
    ) -> None:
        """Take the loss of the step that led to `position`, and how long each rank was busy before its all-reduce:
        busy_s: (rank,), s; empty where that is not known.

        Raises RunError, on every rank as the loss is the same on all, if it is not finite.
        """
        self.position = position
        self._since.append(loss)
        self._epoch_losses.append(loss)
        if self._rank == 0 and len(busy_s):
            self._busy_s.append(np.asarray(busy_s))
        self._rates.add(self._n)
        finite = math.isfinite(loss)
        now = self._clock()
        if not finite or now - self._reported_at >= self._every_s:
            self._report(learning_rate, now)
        if not finite:
            self.under_way = position.step
            raise RunError(
                f"train/loss is {loss} at step {position.step} (epoch {position.epoch + 1}): the training has "
                "diverged; lower learning_rate, or look for NaN in the data. Checkpoints from before are kept"
            )

    def flush(self, learning_rate: Callable[[], float]) -> None:
        """Report the steps since the last report, if there are any."""
        if self._since:
            self._report(learning_rate, self._clock())

    def epoch(self, position: Position, epochs: int, metrics: Sequence[Metric]) -> None:
        """Report a validation and say the epoch in one line; `position` is that before the epoch is counted."""
        now = self._clock()
        self.metrics(metrics, position)
        values = {metric.name: metric.value for metric in metrics}
        parts = [f"epoch {position.epoch + 1}/{epochs}" if epochs else "validation", f"step {position.step}"]
        if self._epoch_losses:
            parts.append(f"train/loss {sum(self._epoch_losses) / len(self._epoch_losses):.4g}")
        if VAL_LOSS in values:
            parts.append(f"val/loss {values[VAL_LOSS]:.4g}")
        if self._rate == self._rate:
            parts.append(f"{self._rate:.4g} samples/s")
        self._say("  ".join([*parts, f"{now - self._epoch_at:.1f} s"]))
        self._epoch_at, self._epoch_losses = now, []

    def mark(self) -> None:
        """Call after a validation or a checkpoint: the instantaneous rate is that of steps alone."""
        self._rates.mark()

    def metrics(self, metrics: Iterable[Metric], position: Position) -> None:
        self._publish([(self._rank, metric) for metric in metrics], position)

    def say(self, line: str) -> None:
        self._say(line)

    def _report(self, learning_rate: Callable[[], float], now: float) -> None:
        loss = sum(self._since) / len(self._since)
        rates = self._rates.metrics()
        self._rate = rates[0].value
        self._since, self._reported_at = [], now
        if self._rank == 0:
            metrics = [Metric(TRAIN_LOSS, loss), *rates, Metric(LEARNING_RATE, learning_rate())]
            self._publish([*((0, metric) for metric in metrics), *self._busy(now)], self.position)

    def _busy(self, now: float) -> list[tuple[int, Metric]]:
        """The mean of each rank since it was last reported. Many ranks are reported less often: at most
        `_RANK_EVENTS_PER_S` events, so that the file of a long run stays small."""
        if not self._busy_s or now - self._busy_at < self._busy_s[0].size / _RANK_EVENTS_PER_S:
            return []
        means = np.asarray(self._busy_s, np.float64).mean(axis=0).tolist()
        self._busy_s, self._busy_at = [], now
        return [(rank, Metric(TRAIN_BUSY_S, mean, "s")) for rank, mean in enumerate(means)]

    def _publish(self, metrics: Iterable[tuple[int, Metric]], position: Position) -> None:
        """metrics: with the rank that each is about; 0 for what belongs to all."""
        now = time.time()
        events = [
            MetricEvent(self.run, rank, position.step, position.epoch, m.name, float(m.value), m.unit, now)
            for rank, m in metrics
        ]
        for sink in self._sinks:
            sink.publish(events)
