"""The trainings and the pools that a notebook started: they end with it.

A pool belongs to a batch run when its keeper has SCIML_BATCH_RUN=<record id> in its environment, however it was
started: `Pool.start`, `%pool`, `!sciml pool start`. One whose keeper is dead is known by the kernel that started it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sciml_kernel.batch.ending import Ending
from sciml_kernel.errors import SciMLError
from sciml_kernel.pool import Pool
from sciml_kernel.pool.health import measure
from sciml_kernel.pool.spec import PoolDir, pools_root
from sciml_kernel.records import END_STATES, Record

__all__ = ["BATCH_VARIABLE", "bad_child", "gathered", "interrupt", "pools_of", "stop_pools", "wait"]

BATCH_VARIABLE = "SCIML_BATCH_RUN"
POLL_S = 0.25
_FAILS_THE_BATCH = ("failed", "timeout", "cancelled")


def pools_of(run_id: str, kernel: Mapping[str, Any] | None = None) -> list[Pool]:
    """The pools that this batch run's notebook started and that still leave a trace, in any state.

    kernel: the kernel's process, as `ProcessId` writes it.
    """
    root = pools_root()
    names = sorted(entry.name for entry in root.iterdir() if entry.is_dir()) if root.is_dir() else []
    return [Pool(PoolDir(root / name)) for name in names if _belongs(PoolDir(root / name), run_id, kernel)]


def interrupt(run_id: str) -> None:
    """Ask the ranks to stop at the next step and leave a checkpoint."""
    for pool in pools_of(run_id):
        with suppress(SciMLError):
            pool.interrupt()


def stop_pools(run_id: str, kernel: Mapping[str, Any] | None = None) -> list[str]:
    """End them, whatever is left of them; return their names."""
    pools = pools_of(run_id, kernel)
    for pool in pools:
        pool.stop()
    return [pool.name for pool in pools]


def wait(record: Record, ending: Ending, *, abandon: bool) -> None:
    """Return when all children have ended. abandon: nobody waits for their results any more, so interrupt them first.

    A reason to end the run interrupts them too; at the end of the grace time it returns anyway.
    """
    asked = False
    deadline = None
    while (running := [child for child in record.children() if _status(child) not in END_STATES]) and (
        not ending.hard.is_set() and (deadline is None or time.monotonic() < deadline)
    ):
        if (abandon or ending.reason is not None) and not asked:
            asked, deadline = True, time.monotonic() + ending.grace_s
            interrupt(record.id)
        if running:
            ending.hard.wait(POLL_S)


def bad_child(record: Record) -> dict[str, Any] | None:
    """What fails the batch, as an error entry: the first training that did not come to a good end.

    One that was interrupted is no failure by itself: a notebook may interrupt and resume.
    """
    for child in record.children():
        content = child.read()
        if content["status"] in _FAILS_THE_BATCH or content["status"] not in END_STATES:
            error = dict(content["error"] or {})
            words = f": {error.get('type')}: {error.get('message')}" if error else ""
            return {**error, "cell": None, "type": "RunError", "message": f"run {child.id} {content['status']}{words}"}
    return None


def gathered(record: Record) -> dict[str, Any]:
    """What the children's records say of data, hosts and devices, for the batch's own."""
    data: list[Any] = []
    hosts: list[str] = []
    devices: list[str] = []
    for child in record.children():
        with suppress(SciMLError):
            content = child.read()
            found = content["data"] if isinstance(content["data"], list) else [content["data"]]
            data += [one for one in found if one and one not in data]
            hosts += [one for one in content["hosts"] if one not in hosts]
            devices += [one for one in content["devices"] if one not in devices]
    return {"data": data or None} | ({"hosts": hosts, "devices": devices} if hosts else {})


def _status(child: Record) -> str:
    with suppress(SciMLError):
        return str(child.read()["status"])
    return "failed"  # a record that can't be read does not end any more


def _belongs(directory: PoolDir, run_id: str, kernel: Mapping[str, Any] | None) -> bool:
    keeper = measure(directory).keeper
    if keeper is not None and keeper.here and keeper.alive():
        with suppress(OSError):
            variables = Path(f"/proc/{keeper.pid}/environ").read_bytes().split(b"\0")
            return os.fsencode(f"{BATCH_VARIABLE}={run_id}") in variables
    spec = directory.read_spec()
    return spec is not None and kernel is not None and spec.owner == kernel
