"""`ProgressLines`: how far long work is, as plain lines that a notebook, a terminal and a log file keep."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["ProgressLines"]


class ProgressLines:
    """`progress(done, total)`: a line at most every `interval_s` seconds, and the last. Work that was there is silent.

    what: what is counted, in the plural. write: takes a line; default: print.
    """

    def __init__(
        self,
        what: str,
        *,
        interval_s: float = 2.0,
        write: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what, self._interval_s, self._clock = what, interval_s, clock
        self._write = write or (lambda line: print(line, flush=True))
        self._begun = self._shown = clock()
        self._first: int | None = None

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        if self._first is None:
            self._first = done - 1  # what an earlier run had made says nothing of the speed
        if now - self._shown < self._interval_s and done < total:
            return
        self._shown = now
        seconds = now - self._begun
        rest = seconds / max(1, done - self._first) * (total - done)
        words = f"about {rest:.0f} s to go" if done < total else f"{seconds:.0f} s"
        self._write(f"{self._what} {done}/{total}, {words}")
