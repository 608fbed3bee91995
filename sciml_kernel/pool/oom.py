"""How often the kernel killed a process of our control group because memory ran out (control groups v1 and v2)."""

from __future__ import annotations

from pathlib import Path

__all__ = ["oom_kills"]

_ROOT, _SELF = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def oom_kills(root: Path = _ROOT, own: Path = _SELF) -> int | None:
    """The count so far in the control group of this process; None where the kernel does not say.

    The kernel counts before it sends SIGKILL, so whoever sees the end of the process sees the new count.
    """
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            place, name = root / "memory", "memory.oom_control"
        elif controllers == "":
            place, name = root, "memory.events"
        else:
            continue
        # Inside a container the path may be the host's, and the group's own files are at the top.
        for folder in (place / path.lstrip("/"), place):
            count = _count(folder / name)
            if count is not None:
                return count
    return None


def _count(file: Path) -> int | None:
    try:
        for line in file.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        return None
    return None
