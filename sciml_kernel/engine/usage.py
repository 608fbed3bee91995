"""What a training took of its rank's process: time of the processor and the most memory at once."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from sciml_kernel.records import process_usage

__all__ = ["Usage"]

_RESET_PEAK = "5"  # proc(5), clear_refs: sets the peak to what is resident now, since Linux 4.0


class Usage:
    """Counts from its making. A pool's process serves many runs, so the peak begins anew with each."""

    def __init__(self) -> None:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
        self._cpu_s = time.process_time()

    def read(self) -> dict[str, Any]:
        """As `process_usage`, of the time since."""
        return process_usage() | {"cpu_s": round(time.process_time() - self._cpu_s, 3)}
