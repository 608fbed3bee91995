"""Why a run is to end early, and how it is made to: first a SIGINT to the kernel, then, after a grace time, SIGKILL.

The SIGINT reaches a waiting `run.wait()`, which interrupts the training on all ranks and leaves a checkpoint. A second
request within the grace time kills at once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

__all__ = ["GRACE_S", "Ending", "Reason"]

GRACE_S = 60.0
CANCEL_GRACE_S = 20.0  # a scheduler kills half a minute after its SIGTERM


@dataclass(frozen=True)
class Reason:
    """status: how the record ends. type, message: its error."""

    status: str
    type: str
    message: str


class Ending:
    """One for a run. `reason` is None until something asks for an end; the first reason stays. `signalled`: whether
    that was a signal to this process."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self.reason: Reason | None = None
        self.signalled = False
        self.grace_s = grace_s
        self.hard = threading.Event()
        self._kernel: int | None = None
        self._timers: list[threading.Timer] = []
        self._lock = threading.RLock()  # a signal may come while this thread holds it

    def request(self, status: str, type_: str, message: str, *, grace_s: float | None = None) -> None:
        """Called from a signal handler, a timer or anywhere. Never raises and never blocks."""
        with self._lock:
            again, self.reason = self.reason is not None, self.reason or Reason(status, type_, message)
        if again:
            self._kill()
        else:
            self._signal(signal.SIGINT)
            self._later(self.grace_s if grace_s is None else grace_s, self._kill)

    def watch_kernel(self, pid: int | None) -> None:
        """The process that a request ends; it leads its own process group. None: there is none any more."""
        self._kernel = pid
        if pid is not None and self.reason is not None:
            self._kill()

    @contextmanager
    def limit(self, seconds: float | None, what: str) -> Iterator[None]:
        """Request the end with status "timeout" when the block takes longer."""
        timer = None
        if seconds is not None:
            message = f"{what} ran longer than {seconds:g} s"
            timer = self._later(seconds, lambda: self._time_out(message))
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()

    @contextmanager
    def signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM request the end. Outside the main thread they are left alone."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._take_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def close(self) -> None:
        with self._lock:
            for timer in self._timers:
                timer.cancel()

    def _take_signal(self, number: int, frame: FrameType | None) -> None:
        self.signalled = self.signalled or self.reason is None
        if number == signal.SIGINT:
            self.request("interrupted", "RunInterruptedError", "interrupted (SIGINT)")
        else:
            self.request("cancelled", "RunCancelledError", "cancelled (SIGTERM)", grace_s=CANCEL_GRACE_S)

    def _time_out(self, message: str) -> None:
        if self.reason is None:
            self.request("timeout", "RunTimeoutError", message)

    def _kill(self) -> None:
        self.hard.set()
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        """As Jupyter's stop button does: to the kernel's whole process group."""
        if self._kernel is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._kernel, number)

    def _later(self, seconds: float, function: object) -> threading.Timer:
        timer = threading.Timer(seconds, function)  # type: ignore[arg-type]
        timer.daemon = True
        with self._lock:
            self._timers.append(timer)
        timer.start()
        return timer
