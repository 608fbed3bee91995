"""Which pools end with this kernel: those that it started and that are not kept.

A kernel that restarts leaves their names beside its connection file, which the next kernel has too; that one then owns
them. A kernel that is killed leaves nothing: its pools end by their time to live.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from sciml_kernel.errors import SciMLError

__all__ = ["hand_over", "stop_owned", "take_over"]


def _owned() -> dict[Path, Any]:
    """Pools of this process that its normal end would stop; none when it never used a pool."""
    module = sys.modules.get("sciml_kernel.pool.pool")
    return getattr(module, "_owned", {})


def _note(connection_file: str) -> Path:
    return Path(f"{connection_file}.pools")


def stop_owned() -> None:
    """Stop them now: the process may be killed before its own clean-up, when a cell is running."""
    for pool in list(_owned().values()):
        with suppress(SciMLError, OSError):
            pool.stop()


def hand_over(connection_file: str) -> None:
    """Leave the pools running and note them for the kernel that comes next with this connection file."""
    pools = list(_owned().values())
    for pool in pools:
        pool.keep()
    if pools and connection_file:
        fd = os.open(_note(connection_file), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump([pool.name for pool in pools], file)


def take_over(connection_file: str) -> None:
    """Own the pools that the kernel before this one left. Attaching tells their keepers that they are in use."""
    note = _note(connection_file)
    if not connection_file or not note.exists():
        return
    with suppress(OSError, ValueError):
        names = json.loads(note.read_text())
        note.unlink()
        from sciml_kernel.pool import Pool

        for name in names:
            with suppress(SciMLError):
                pool = Pool.attach(name)
                _owned()[pool.path] = pool
