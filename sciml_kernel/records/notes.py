"""Numbers that a notebook comes to by itself, kept with the batch run so that they can be compared and verified."""

from __future__ import annotations

import os
import time
from pathlib import Path

from sciml_kernel.contracts import PARENT_VARIABLE, MetricEvent
from sciml_kernel.errors import UsageError
from sciml_kernel.metrics.jsonl import JsonlSink
from sciml_kernel.records.record import Record

__all__ = ["note"]


def note(name: str, value: float, *, unit: str = "") -> float:
    """Keep a result under "result/<name>" in the record of the batch run that this notebook is executed in; return it.

    A second note of the same name counts as the newer value. By hand, outside of a batch run, nothing is kept. Raises
    UsageError for a value that is no number, RecordError where it can't be written.
    """
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"note({name!r}, ...) takes a number, got {value!r}") from error
    parent = os.environ.get(PARENT_VARIABLE)
    if parent:
        record = Record(Path(parent))
        event = MetricEvent(record.id, 0, 0, 0, f"result/{name}", number, unit, time.time())
        with JsonlSink(record.metrics_path) as sink:
            sink.publish([event])
    return number
