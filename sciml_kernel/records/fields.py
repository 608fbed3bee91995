"""What `record.json` holds, and what may be written into it.

Set by `create`, then never changed: schema_version, id, name, kind, digest, created_utc, parent, git, python, platform,
lock_sha256, versions, build, hardware, variables. Changed by `start`, `close` and `add_child` only: status, owner,
started_utc, ended_utc, error, children. Changed by `update`: `UPDATABLE`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sciml_kernel.errors import PoolDeadError, RecordError, RemoteError, did_you_mean

__all__ = [
    "CELL_STATES",
    "END_STATES",
    "ERROR_FIELDS",
    "KINDS",
    "SCHEMA_VERSION",
    "STATES",
    "UPDATABLE",
    "check_close",
    "check_error",
    "check_update",
    "error_fields",
]

SCHEMA_VERSION = 1
KINDS = ("train", "batch", "grid")
END_STATES = ("completed", "failed", "interrupted", "timeout", "cancelled")
STATES = ("created", "running", *END_STATES)
CELL_STATES = ("completed", "failed", "not_run", "interrupted")
ERROR_FIELDS = ("type", "message", "cell", "rank", "host", "signal", "step")

UPDATABLE: dict[str, tuple[type, ...]] = {
    "hosts": (list, tuple),
    "ranks": (int, type(None)),
    "devices": (list, tuple),
    "seeds": (dict,),
    "data": (dict, list, type(None)),
    "launch": (str, list, tuple, dict, type(None)),
    "cells": (list, tuple),
    "usage": (dict,),
    "extra": (dict,),
}
"""Field -> what it may be. hosts: names. ranks: their number. devices: by rank. seeds: name -> integer. data: the
manifest {path, size, sha256, ...} (size in bytes), or a list of them. launch: the launch command. cells: [{index (from
0), status, seconds}]. usage: what the run took, {wall_s, ranks: [{rank, host, cpu_s, peak_memory_bytes}]}; of a batch
{wall_s, kernel: {cpu_s, peak_memory_bytes}}. extra: anything else, plain JSON; an update is merged into it key by key.
"""

# A later status may be worse than an earlier one, never better.
_BADNESS = {"completed": 0, "interrupted": 1, "timeout": 1, "cancelled": 1, "failed": 2}


def check_update(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Plain JSON copies of the fields. Raises RecordError for an unknown field or a value that can't be kept."""
    plain: dict[str, Any] = {}
    for name, value in fields.items():
        if name not in UPDATABLE:
            raise RecordError(f"a record has no field {name!r} to update; {did_you_mean(name, UPDATABLE)}")
        kinds = UPDATABLE[name]
        if not isinstance(value, kinds) or isinstance(value, bool):
            names = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
            raise RecordError(f"record field {name!r} is {value!r}; it must be {names}")
        plain[name] = _plain(name, value)
    for cell in plain.get("cells", ()):
        _check_cell(cell)
    return plain


def check_error(error: Mapping[str, Any]) -> dict[str, Any]:
    """The error entry with all of `ERROR_FIELDS`, absent ones null. Raises RecordError for unknown ones."""
    for name in error:
        if name not in ERROR_FIELDS:
            raise RecordError(f"an error entry has no field {name!r}; {did_you_mean(name, ERROR_FIELDS)}")
    entry: dict[str, Any] = _plain("error", {name: error.get(name) for name in ERROR_FIELDS})
    if not isinstance(entry["type"], str) or not isinstance(entry["message"], str):
        raise RecordError(f"an error entry needs the texts type and message, got {dict(error)!r}")
    return entry


def check_close(before: str, after: str) -> None:
    """Raises RecordError if a record with status `before` must not end as `after`."""
    if after not in END_STATES:
        raise RecordError(f"{after!r} is no end status; {did_you_mean(after, END_STATES)}")
    if before == after:
        return
    if before == "created" and after == "completed":
        raise RecordError("a run that was never started can't be completed; call start() first")
    if before in END_STATES and _BADNESS[after] <= _BADNESS[before]:
        raise RecordError(f"the run ended as {before!r}; it can't become {after!r}")


def error_fields(error: BaseException, *, cell: int | None = None) -> dict[str, Any]:
    """The error entry of an exception: {type, message, cell, rank, host, signal, step}; what is not known is None.

    A RemoteError gives the type and message of the original. A PoolDeadError gives the first rank that a signal ended,
    else the first that ended badly. cell: 0-based index of the notebook cell.
    """
    entry: dict[str, Any] = dict.fromkeys(ERROR_FIELDS)
    entry.update(type=type(error).__name__, message=str(error), cell=cell)
    if isinstance(error, RemoteError):
        entry.update(type=error.type_name, message=error.message, rank=error.rank, host=error.host, step=error.step)
    elif isinstance(error, PoolDeadError):
        ends = [end for end in error.exits if end.get("signal") or end.get("exit_code")]
        ends.sort(key=lambda end: (not end.get("signal"), str(end.get("ended_utc") or "")))
        if ends:
            entry.update({name: ends[0].get(name) for name in ("rank", "host", "signal")})
    return entry


def _plain(name: str, value: Any) -> Any:
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise RecordError(f"record field {name!r} can't be written as JSON: {error}") from error


def _check_cell(cell: Any) -> None:
    if not isinstance(cell, dict) or cell.keys() != {"index", "status", "seconds"}:
        raise RecordError(f"a cell entry is {{index, status, seconds}}, got {cell!r}")
    if not isinstance(cell["index"], int) or cell["index"] < 0:
        raise RecordError(f"cell index {cell['index']!r} is not an integer from 0")
    if cell["status"] not in CELL_STATES:
        raise RecordError(f"unknown cell status {cell['status']!r}; {did_you_mean(str(cell['status']), CELL_STATES)}")
