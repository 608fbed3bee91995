"""Processes by more than their number: a pid is reused, a pid with its start time is not (Linux /proc)."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["MARK", "RANK_TMPDIR", "ProcessId", "die_with_parent", "kill_marked", "marked_pids", "signal_name"]

# Every process of a pool carries this variable: what is left over is found by it, never by a name.
MARK = "SCIML_POOL_MARK"
# The TMPDIR that ranks are to have: mpiexec itself has one of its own.
RANK_TMPDIR = "SCIML_RANK_TMPDIR"
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process of one host. start_ticks: field 22 of /proc/PID/stat, clock ticks since boot."""

    pid: int
    start_ticks: int
    host: str

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """The process that has this pid now; start_ticks is 0 when there is none."""
        return cls(pid, _stat(pid)[1], socket.gethostname())

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> ProcessId | None:
        return cls(**data) if data else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def here(self) -> bool:
        return self.host == socket.gethostname()

    def alive(self) -> bool:
        """Whether it runs. A zombie does not. Only meaningful `here`."""
        state, start_ticks = _stat(self.pid)
        return state not in ("", "Z", "X") and start_ticks == self.start_ticks

    def suspended(self) -> bool:
        """Whether it was stopped by a signal (SIGSTOP)."""
        state, start_ticks = _stat(self.pid)
        return state in ("T", "t") and start_ticks == self.start_ticks

    def condition(self) -> str:
        """ "alive", "suspended" (stopped by a signal) or "gone", in one look. Only meaningful `here`."""
        state, start_ticks = _stat(self.pid)
        if state in ("", "Z", "X") or start_ticks != self.start_ticks:
            return "gone"
        return "suspended" if state in ("T", "t") else "alive"

    def memory_gib(self) -> float | None:
        """Memory that it holds now (resident set), GiB; None when it can't be seen. Only meaningful `here`."""
        try:
            with open(f"/proc/{self.pid}/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**30
        except (OSError, IndexError, ValueError):
            return None


def _stat(pid: int) -> tuple[str, int]:
    """(state letter, start ticks) of a pid; ("", 0) when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return "", 0
    return fields[0], int(fields[19])


def marked_pids(mark: str) -> list[int]:
    """Living processes of this user whose environment has MARK=`mark` or MARK=`mark`.<generation>."""
    found = []
    wanted = f"{MARK}={mark}".encode()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if entry.stat().st_uid != os.getuid():
                continue
            with open(f"/proc/{entry.name}/environ", "rb") as file:
                variables = file.read().split(b"\0")
        except OSError:  # it ended meanwhile
            continue
        marked = any(item == wanted or item.startswith(wanted + b".") for item in variables)
        if marked and _stat(int(entry.name))[0] not in ("", "Z", "X"):
            found.append(int(entry.name))
    return found


def kill_marked(mark: str, *, spare: int | None = None, timeout_s: float = 2.0) -> list[int]:
    """SIGKILL all that carries `mark` until nothing does; return what is still there after `timeout_s`.

    It is repeated, because a process may fork between the look and the kill.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        left = [pid for pid in marked_pids(mark) if pid != spare]
        if not left or time.monotonic() > deadline:
            return left
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Ask the kernel to send this process `number` when its parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def signal_name(number: int) -> str:
    """SIGKILL for 9; SIG<n> for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
