"""Which process a running record belongs to, and whether it still lives.

A process id alone says little: ids are used again, also after a reboot. An owner is known by host, id, start time and
boot; the id's namespace tells a container from the host around it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

__all__ = ["OWNER_FIELDS", "OwnerState", "owner_state", "this_process"]

OwnerState = Literal["alive", "gone", "unknown"]
OWNER_FIELDS = ("host", "pid", "start_ticks", "boot_id", "pid_namespace")


def this_process() -> dict[str, Any]:
    """The owner entry of the calling process: host, pid, start_ticks (clock ticks since boot), boot_id, pid_namespace.

    What the system does not tell is None.
    """
    start = _start_ticks(os.getpid())
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "start_ticks": start if isinstance(start, int) else None,
        "boot_id": _boot_id(),
        "pid_namespace": _pid_namespace(),
    }


def owner_state(owner: Mapping[str, Any] | None) -> OwnerState:
    """Measured now. "unknown" where it can't be measured from here: another host, another container, no owner."""
    if not owner or owner.get("host") != socket.gethostname():
        return "unknown"
    boot, here = owner.get("boot_id"), _boot_id()
    if boot is None or here is None:
        return "unknown"
    if boot != here:
        return "gone"  # this host was started anew since
    if owner.get("pid_namespace") != _pid_namespace():
        return "unknown"  # its pid means another process here
    pid, start = owner.get("pid"), owner.get("start_ticks")
    if not isinstance(pid, int) or pid <= 0:
        return "unknown"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "gone"
    except PermissionError:
        pass  # there is a process, another user's
    found = _start_ticks(pid)
    if found == "dead":
        return "gone"
    if found is None or start is None:
        return "unknown"  # /proc may hide other users' processes
    return "alive" if found == start else "gone"


def _start_ticks(pid: int) -> int | Literal["dead"] | None:
    """Start time in clock ticks since boot; "dead" for a process that only waits to be reaped; None if not readable."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    # the command may hold blanks and brackets; the fields after its last bracket are fixed (proc(5): 3 is the state,
    # 22 the start time)
    fields = text.rpartition(")")[2].split()
    return "dead" if fields[0] in ("Z", "X") else int(fields[19])


def _boot_id() -> str | None:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


def _pid_namespace() -> str | None:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None
