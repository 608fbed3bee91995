"""What a resumed run takes over from the one that it goes on from, so that its record is whole by itself."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path

from sciml_kernel.contracts import Sink
from sciml_kernel.engine.checkpoint import Position
from sciml_kernel.errors import RecordError
from sciml_kernel.metrics.jsonl import read_events
from sciml_kernel.metrics.names import axis_of
from sciml_kernel.records import write_atomic

__all__ = ["carry"]

PREDICTIONS = "predictions.csv"


def carry(earlier: Path, directory: Path, run: str, position: Position, sinks: Sequence[Sink]) -> None:
    """Publish the metrics that the earlier run reported up to its checkpoint, under the name of the new run and with
    their own times, and copy its predictions; the new run overwrites those when it validates at its end.

    earlier, directory: run records. What the earlier run reported after the checkpoint is done again, and left out. A
    record without metrics, or with damaged ones, gives none: the training is what counts.
    """
    with contextlib.suppress(RecordError):
        events, _ = read_events(earlier / "metrics.jsonl")
        kept = [
            dataclasses.replace(event, run=run)
            for event in events
            if event.step <= position.step and (axis_of(event.name) == "step" or event.epoch < position.epoch)
        ]
        for sink in sinks:
            sink.publish(kept)
    with contextlib.suppress(OSError):
        write_atomic(directory / PREDICTIONS, (earlier / PREDICTIONS).read_bytes())
