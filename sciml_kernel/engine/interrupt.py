"""SIGINT during a training: the first sets a flag that all ranks agree on, the second is hard.

A rank that stopped on its own would leave the others waiting in a collective. So the handler only sets a flag; every
step sums the flags of all ranks, and all leave the loop at the same step. SIGTERM is left alone: it ends the process,
and the record says so.

Before the first step (`StopFlag.breaking`) there is no such sum, and a recipe may read data for long: there the first
SIGINT raises StopRequested in the middle of Python code, but never inside a collective. `Interruptible` is the
collective of that time: a rank that was stopped says so in the next `gather_json` that the others come to.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import numpy as np

from sciml_kernel.engine.collective import EngineCollective

__all__ = ["Interruptible", "StopFlag", "StopRequested", "listening"]

_ONE_PRESS_S = 0.2  # a launcher may forward the same SIGINT that the pool sends as well


class StopRequested(KeyboardInterrupt):
    """A first SIGINT before the first step. rank: who had it, None: this one. No Exception, so that a recipe's own
    `except Exception` lets it pass."""

    def __init__(self, rank: int | None = None) -> None:
        super().__init__("interrupted before the first step")
        self.rank = rank


class StopFlag:
    """Whether this rank has been asked to stop. May be set from a signal handler or from another thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked_at: float | None = None
        self._breaking = False
        self._held = 0

    @property
    def requested(self) -> bool:
        return self._asked_at is not None

    def request(self) -> None:
        """Ask to stop at the next step. Raises KeyboardInterrupt if that has been asked already, and not just now;
        StopRequested where there is no step yet."""
        now = self._clock()
        if self._asked_at is None:
            self._asked_at = now
            self._break()
        elif now - self._asked_at > _ONE_PRESS_S:
            raise KeyboardInterrupt("interrupted twice: stopped without a checkpoint")

    @contextlib.contextmanager
    def breaking(self) -> Iterator[None]:
        """In the block a first request raises StopRequested at once, also one from before; not inside `held`."""
        try:
            self._breaking = True
            self._break()
            yield
        finally:
            self._breaking = False

    def disarm(self) -> None:
        """From here on a first request only sets the flag, though the block of `breaking` is not over."""
        self._breaking = False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Put StopRequested off to the end of the block: a collective is finished or not begun."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
        self._break()

    def _break(self) -> None:
        if self.requested and self._breaking and not self._held:
            self._breaking = False  # raised once
            raise StopRequested


class Interruptible(EngineCollective):
    """The same collective, for the time before the first step. Every rank uses it, and leaves that time with `settle`
    or, when it was stopped, `leave`."""

    def __init__(self, inner: EngineCollective, stop: StopFlag) -> None:
        self._inner, self._stop = inner, stop
        self.name, self.rank, self.size = inner.name, inner.rank, inner.size
        self.local_rank, self.local_size = inner.local_rank, inner.local_size

    def gather_json(self, value: Any) -> list[Any]:
        """As ever, but raises StopRequested, on every rank, if one of them was stopped before it came here."""
        with self._stop.held():
            everyone = self._inner.gather_json({"value": value})
            for rank, one in enumerate(everyone):
                if "value" not in one:
                    self._stop.disarm()  # one way out is enough: a second gather would be waited for by nobody
                    raise StopRequested(rank)
        return [one["value"] for one in everyone]

    def settle(self) -> None:
        """Return when all ranks are done; raises StopRequested on every rank if one was stopped."""
        with self._stop.held():
            self.gather_json(None)
            self._stop.disarm()  # the others go on to the first step: so does this one

    def leave(self) -> None:
        """Say that this rank was stopped. Returns when the others have heard it."""
        self._inner.gather_json({})

    def barrier(self) -> None:
        self.gather_json(None)

    def sum_arrays(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        with self._stop.held():  # from the comparison to the sum: both or none
            return super().sum_arrays(arrays)

    def average_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        return self._inner.average_gradients(gradients)

    def sum_in_graph(self, tensor: Any) -> Any:
        return self._inner.sum_in_graph(tensor)

    def broadcast_variables(self, variables: Sequence[Any]) -> None:
        with self._stop.held():
            self._inner.broadcast_variables(variables)

    def _sum_vector(self, vector: np.ndarray) -> np.ndarray:
        return self._inner._sum_vector(vector)


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
