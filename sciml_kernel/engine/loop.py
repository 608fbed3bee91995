"""The one training loop, the same for every recipe, every collective and every number of ranks.

All ranks go through the same calls in the same order; what a rank does alone (reports, files) waits for nobody. An
epoch's plan gives every rank the same number of batches. The result of a step is read while the next one runs, so the
device is never waited for: a stop or a NaN is noticed one step later, at the same step on all ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sciml_kernel.config import RunConfig
from sciml_kernel.contracts import Collective, Metric, Task
from sciml_kernel.engine.checkpoint import Checkpoints, Position
from sciml_kernel.engine.interrupt import StopFlag
from sciml_kernel.engine.plans import batches_left, check_same, train_plan, validation_plan
from sciml_kernel.engine.predictions import Predictions
from sciml_kernel.engine.report import Reporter
from sciml_kernel.engine.steps import Steps
from sciml_kernel.errors import DataError

__all__ = ["Loop", "Outcome"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """status: "completed" or "interrupted". position: where a resume would go on."""

    status: str
    position: Position


@dataclass
class Loop:
    """One training on one rank. Made and run on every rank.

    directory: the run record's, for `predictions.csv`. resume_from: directory of checkpoints to go on from. on_resume:
    told, on every rank, where it goes on, before anything is reported.
    """

    task: Task
    optimizer: Any
    config: RunConfig
    collective: Collective
    reporter: Reporter
    checkpoints: Checkpoints
    directory: Path
    stop: StopFlag
    resume_from: Path | None = None
    on_resume: Callable[[Position], None] = lambda position: None

    def fit(self) -> Outcome:
        """Train to the end that the config sets; `epochs=0` only validates.

        Raises DataError, ConfigError, RecordError or RunError (a loss that is not finite), on all ranks alike where all
        can see it.
        """
        self.steps = Steps(self.task, self.optimizer, self.collective)
        self._is_warm = False  # the first step compiles: its time is no step's
        check_same(self.task, self.steps, self.collective)
        position, report, epochs = Position(), self.reporter, self.config.train.epochs
        if self.resume_from is None:
            self.steps.share()
        else:
            position = self.checkpoints.restore(self.resume_from, self.steps, self.collective, say=report.say)
            self.on_resume(position)
            if epochs and self._is_over(position):
                report.say(f"nothing to do: the run is at epoch {position.epoch}, step {position.step} already")
                return Outcome("completed", position)
            report.say(f"resumed at epoch {position.epoch + 1}, step {position.step}")
        if self.collective.rank == 0:
            report.metrics(self.task.baselines(), position)
        report.begin(position)
        stopped = epochs == 0 and not self._validate(position, last=True)

        while not stopped and not self._is_over(position):
            position, stopped = self._train(position)
            done = position.after_epoch() if batches_left(self.task, self.config, position) == 0 else position
            self.steps.average_statistics()
            if not stopped and self._validate(position, last=self._is_over(done)):
                position = done
            else:
                stopped = True
            due = position.batch or position.epoch % self.config.train.checkpoint_every_epochs == 0
            if stopped or due or self._is_over(position):
                self.checkpoints.save(self.steps, position)
            report.mark()
        if stopped:
            report.say(f"interrupted after step {position.step}; a resume goes on from there")
        return Outcome("interrupted" if stopped else "completed", position)

    def _train(self, position: Position) -> tuple[Position, bool]:
        """The rest of an epoch: where it ended, and whether a rank was asked to stop."""
        plan = train_plan(self.task, self.config, self.collective, position)
        unread: tuple[Position, Any] | None = None  # the newest step: its result is read while the next one runs
        start, stopped = position.batch, False
        since = time.time()  # what lies between two epochs is no part of a step
        self.reporter.under_way = position.step + 1
        for x, y in self.task.train_batches(plan) if len(plan.indices) else ():
            result = self.steps.train(x, y, self.stop.requested, since)
            position, since = position.after_batch(), time.time()
            self.reporter.under_way = position.step + 1
            stopped = unread is not None and self._read(*unread)
            unread = (position, result)
            if stopped or position.step == self.config.train.max_steps:
                break
        else:
            if position.batch - start != len(plan.indices):
                raise DataError(f"the recipe gave {position.batch - start} of {len(plan.indices)} batches of an epoch")
        if unread is not None:
            stopped = self._read(*unread) or stopped
        self.reporter.under_way = position.step
        self.reporter.flush(self.steps.learning_rate)
        return position, stopped

    def _read(self, position: Position, result: Any) -> bool:
        """Wait for a step's result and report it; whether a rank was asked to stop by then."""
        values = result.numpy()
        busy_s, self._is_warm = (values[2:] if self._is_warm else values[:0]), True
        self.reporter.step(position, float(values[0]), self.steps.learning_rate, busy_s)
        return float(values[1]) > 0

    def _validate(self, position: Position, *, last: bool) -> bool:
        """Validate and report; where training ends here, write the predictions. False: interrupted on the way."""
        plan = validation_plan(self.task, self.config, self.collective)
        sums: dict[str, np.ndarray] = {}
        predictions = Predictions(self.task)
        batches = self.task.validation_batches(plan) if len(plan.indices) else ()
        for (x, y, weight), indices, weights in zip(batches, plan.indices, plan.weights, strict=True):
            added, prediction, stopped = self.steps.validate(x, y, weight, self.stop.requested)
            if stopped:
                return False
            sums = {name: value + sums[name] if name in sums else value for name, value in added.items()}
            if last:
                predictions.add(indices, weights, prediction.numpy())
        metrics: list[Metric] = []
        if sums:
            metrics = self.task.validation_metrics(self.collective.sum_arrays(sums))
        self.reporter.epoch(position, self.config.train.epochs, metrics)
        if last:
            predictions.write(self.directory / "predictions.csv", self.collective)
        return True

    def _is_over(self, position: Position) -> bool:
        train = self.config.train
        return position.epoch >= train.epochs or 0 < train.max_steps <= position.step
