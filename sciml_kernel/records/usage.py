"""What a process took so far, as the system counts it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

__all__ = ["process_usage"]


def process_usage(pid: int | None = None, proc: Path = Path("/proc")) -> dict[str, Any]:
    """{cpu_s: seconds of all its threads, peak_memory_bytes: the most that was resident at once}; None each where the
    system does not say, as when the process is gone. pid: this process by default."""
    folder = proc / str(pid if pid is not None else "self")
    usage: dict[str, Any] = {"cpu_s": None, "peak_memory_bytes": None}
    with contextlib.suppress(OSError, ValueError, IndexError):
        # proc(5): the command may hold blanks and brackets; after its last bracket field 14 is utime, 15 stime
        fields = (folder / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        usage["cpu_s"] = round((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), 2)
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (folder / "status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                usage["peak_memory_bytes"] = int(line.split()[1]) * 1024
    return usage
