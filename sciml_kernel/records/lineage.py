"""What a resumed run goes on from."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sciml_kernel.contracts import RESUME_VARIABLE
from sciml_kernel.errors import SciMLError
from sciml_kernel.records.record import Record

__all__ = ["earlier_runs", "left_off", "lineage"]

_taken: set[str] = set()


def lineage(record: Record) -> list[Record]:
    """The record and those that it was resumed from, the newest first; as far as they are still there."""
    found = [record]
    with contextlib.suppress(SciMLError):
        while (before := found[-1].read()["extra"].get("resumed_from")) and len(found) < 1000:
            found.append(Record(record.path.parent / before))
            found[-1].read()
        return found
    return found[:-1] or [record]


def earlier_runs() -> list[Record]:
    """In the notebook of a resumed batch run: the batch runs that it goes on from, the newest first."""
    path = os.environ.get(RESUME_VARIABLE)
    return lineage(Record(Path(path))) if path else []


def left_off(digest: str, data: Any) -> Record | None:
    """In the notebook of a resumed batch run: the training with the same settings and data that an earlier one had
    begun and that has a checkpoint to go on from; each is given out once.

    digest: of the new training's config. data: its data manifest; where the files have changed it starts anew.
    """
    for batch in earlier_runs():
        for child in batch.children():
            with contextlib.suppress(SciMLError):
                content = child.read()
                same = content["digest"] == digest and _hashes(content["data"]) == _hashes(data)
                if same and child.id not in _taken and any(child.checkpoints_dir.glob("*.npz")):
                    _taken.add(child.id)
                    return child
    return None


def _hashes(data: Any) -> list[Any]:
    entries = data if isinstance(data, list | tuple) else [data]
    return [(one.get("size"), one.get("sha256")) for one in entries if isinstance(one, Mapping)]
