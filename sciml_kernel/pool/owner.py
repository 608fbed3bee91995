"""Which pools end with this process, and with which Jupyter kernel.

A pool that is owned has `owner.json`: the process that owns it and, when that is a Jupyter kernel, the kernel's
connection file. That file stays where it is while Jupyter means to go on with the kernel (a restart, a new start after
a crash) and is removed when the kernel is shut down on purpose. So the next kernel finds what its predecessor owned,
however that one ended, and the keeper ends the pools of a kernel that was killed because it did not end by itself.

Small on purpose: a kernel imports it at its start, before anybody uses a pool.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from sciml_kernel.pool.files import read_json, write_json
from sciml_kernel.pool.processes import ProcessId
from sciml_kernel.pool.spec import pools_root

__all__ = [
    "BATCH_OWNER_VARIABLE",
    "OwnerWatch",
    "batch_owner",
    "be_kernel",
    "forget",
    "left_by",
    "own",
    "owned",
    "release",
]

BATCH_OWNER_VARIABLE = "SCIML_BATCH_OWNER"
"""Set by a batch run in its kernel: the process of the run, as JSON. What is started there ends with that process."""

GONE_S = 2.0  # a restart with new ports takes the connection file away for a moment

_pools: dict[Path, Any] = {}
_connection_file = ""


def be_kernel(connection_file: str) -> None:
    """Say that this process is the Jupyter kernel with that connection file. Pools that it owns are noted so."""
    global _connection_file
    _connection_file = os.path.abspath(connection_file) if connection_file else ""
    for path in list(_pools):
        _note(path)


def own(path: Path, pool: Any) -> None:
    """From now on the pool in `path` ends with this process."""
    _pools[path] = pool
    _note(path)


def release(path: Path) -> None:
    """From now on it does not; nor with a kernel that has ended."""
    here = _pools.pop(path, None) is not None
    with suppress(OSError):
        process = ProcessId.from_json((read_json(_file(path)) or {}).get("process"))
        if here or process is None or (process.here and not process.alive()):
            _file(path).unlink(missing_ok=True)


def owned() -> list[Any]:
    return [*_pools.values()]


def forget() -> None:
    """This process stops nothing any more; what it owned stays noted for the kernel that comes after it."""
    _pools.clear()


def left_by(connection_file: str) -> list[str]:
    """Names of the pools that kernels of this connection file owned and that are still there."""
    wanted = os.path.abspath(connection_file)
    with suppress(OSError):
        return sorted(
            entry.name
            for entry in os.scandir(pools_root())
            if (read_json(_file(Path(entry.path))) or {}).get("connection_file") == wanted
        )
    return []


def batch_owner() -> ProcessId | None:
    """The process of the batch run that this process was started in, if there is one."""
    with suppress(ValueError):
        return ProcessId.from_json(json.loads(os.environ.get(BATCH_OWNER_VARIABLE, "null")))
    return None


class OwnerWatch:
    """The keeper's look at the owner of its pool."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._since: float | None = None
        self._batch = batch_owner()

    def batch_gone(self) -> bool:
        """Whether it was started in a batch run whose process has ended; that would have stopped it itself."""
        return self._batch is not None and self._batch.here and not self._batch.alive()

    def gone(self, now: float) -> bool:
        """Whether the owner was a kernel that has ended and that Jupyter has put away: for GONE_S seconds.

        now: monotonic seconds.
        """
        note = read_json(_file(self._path)) or {}
        connection_file = note.get("connection_file")
        process = ProcessId.from_json(note.get("process"))
        away = bool(connection_file) and process is not None and process.here
        if not away or process is None or process.alive() or os.path.exists(str(connection_file)):
            self._since = None
        elif self._since is None:
            self._since = now
        return self._since is not None and now - self._since >= GONE_S


def _file(path: Path) -> Path:
    return path / "owner.json"


def _note(path: Path) -> None:
    value = {"process": ProcessId.of(os.getpid()).to_json(), "connection_file": _connection_file}
    with suppress(OSError):  # the pool was stopped by somebody else
        write_json(_file(path), value, durable=False)


os.register_at_fork(after_in_child=_pools.clear)  # a fork owns nothing of its parent
