"""SIGINT during a training: the first sets a flag that all ranks agree on, the second is hard.

A rank that stopped on its own would leave the others waiting in a collective. So the handler only sets a flag; every
step sums the flags of all ranks, and all leave the loop at the same step. SIGTERM is left alone: it ends the process,
and the record says so.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

__all__ = ["StopFlag", "listening"]

_ONE_PRESS_S = 0.2  # a launcher may forward the same SIGINT that the pool sends as well


class StopFlag:
    """Whether this rank has been asked to stop. May be set from a signal handler or from another thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked_at: float | None = None

    @property
    def requested(self) -> bool:
        return self._asked_at is not None

    def request(self) -> None:
        """Ask to stop at the next step. Raises KeyboardInterrupt if that has been asked already, and not just now."""
        now = self._clock()
        if self._asked_at is None:
            self._asked_at = now
        elif now - self._asked_at > _ONE_PRESS_S:
            raise KeyboardInterrupt("interrupted twice: stopped without a checkpoint")


@contextlib.contextmanager
def listening(flag: StopFlag) -> Iterator[StopFlag]:
    """Let SIGINT set the flag while the block runs; the handler from before is put back after it.

    Only the main thread may do so; elsewhere (a pool in one process) the flag is set by hand.
    """
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return

    def handle(number: int, frame: FrameType | None) -> None:
        flag.request()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, before if before is not None else signal.default_int_handler)
