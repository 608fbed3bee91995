"""The machine that a run began on, from /proc: no program is started and no library is loaded for it."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any

__all__ = ["hardware"]


def hardware(proc: Path = Path("/proc")) -> dict[str, Any]:
    """{cpu: model or None, cores: logical ones of the machine, cores_allowed: of this process, memory_bytes, gpus:
    [model of each NVIDIA device]}; what the system does not tell is None."""
    return {
        "cpu": _first(proc / "cpuinfo", r"model name\s*:\s*(.+)"),
        "cores": os.cpu_count(),
        "cores_allowed": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "memory_bytes": _memory(proc),
        "gpus": _gpus(proc / "driver" / "nvidia" / "gpus"),
    }


def _memory(proc: Path) -> int | None:
    found = _first(proc / "meminfo", r"MemTotal:\s*(\d+) kB")
    return int(found) * 1024 if found else None


def _gpus(folder: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return [_first(one / "information", r"Model:\s*(.+)") or one.name for one in sorted(folder.iterdir())]
    return []


def _first(file: Path, pattern: str) -> str | None:
    with contextlib.suppress(OSError):
        match = re.search(pattern, file.read_text(encoding="utf-8", errors="replace"))
        return match.group(1).strip() if match else None
    return None
