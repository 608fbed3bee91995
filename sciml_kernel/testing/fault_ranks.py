"""What runs on the ranks of the fault matrix: one function a moment, called by name. Each waits to be broken.

`scratch` is a directory shared by ranks and test. A rank writes `entered-<r>` when it is in the moment; the test
writes `go`; the faulty rank writes the time into `fault` (seconds of the epoch) right before it breaks.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from sciml_kernel.pool.rank import rank_info

__all__ = ["MOMENT_FUNCTIONS", "all_reduce", "break_in_set_up", "checkpoint", "collective", "loop"]

HERE = __name__
EXIT_CODE = 7
_MOST_S = 60.0  # nothing waits longer, so that a broken test leaves no rank in a loop
_MIB = 2**20


def loop(fault: str, rank: int, scratch: str) -> None:
    """In Python code, which an interrupt ends."""
    _enter(scratch)
    with _Breaker(fault, rank, scratch) as breaker:
        while not breaker.over():
            breaker.maybe()
            time.sleep(0.002)


def collective(fault: str, rank: int, scratch: str) -> None:
    """In a blocking MPI call, which no interrupt ends. A rank that is to raise stays outside until it does."""
    if rank_info().place is None:
        return _hold(fault, rank, scratch)
    from mpi4py import MPI

    with _Breaker(fault, rank, scratch) as breaker:
        _enter(scratch)
        if breaker.mine and fault not in ("SIGKILL", "SIGSTOP", "exits", "controller"):
            breaker.wait()
        MPI.COMM_WORLD.Barrier()
        if fault != "client":
            MPI.COMM_WORLD.recv(source=(rank_info().rank + 1) % rank_info().size, tag=77)  # nobody sends it
    return None


def _hold(fault: str, rank: int, scratch: str) -> None:
    from sciml_kernel.pool.fake import hold

    _enter(scratch)
    with _Breaker(fault, rank, scratch) as breaker:
        if breaker.mine and fault == "raises":
            breaker.wait()
        hold()


def all_reduce(fault: str, rank: int, scratch: str) -> None:
    """In a Horovod all-reduce inside tf.function, step after step. A rank that is to raise does so between steps."""
    import tensorflow as tf

    from sciml_kernel.engine import collective as collectives

    horovod = collectives.make("horovod")

    @tf.function(autograph=False)
    def step(wish: Any) -> Any:
        return horovod.average_gradients([tf.ones([_MIB]), wish])

    step(tf.constant(0.0))
    _enter(scratch)
    with _Breaker(fault, rank, scratch) as breaker:
        over = False
        while not over:
            breaker.maybe()
            _, wish = step(tf.constant(float(breaker.over())))
            over = float(wish) > 0  # decided by all: none is left in the next all-reduce


def checkpoint(fault: str, rank: int, scratch: str) -> None:
    """Rank 0 writes checkpoints of 32 MiB, one after the other, with the engine's own code; the others wait for it."""
    from mpi4py import MPI

    from sciml_kernel.engine.checkpoint import Checkpoints, Position

    info, world = rank_info(), MPI.COMM_WORLD
    place = Path(scratch) / "checkpoints"
    rng = np.random.default_rng(0)
    state = rng.random((4, _MIB), dtype=np.float64)
    steps: Any = SimpleNamespace(variables=[SimpleNamespace(numpy=lambda: state)], seeds=[])
    saved = Checkpoints(place, digest="fault-matrix", order={}, rank=info.rank)
    saved.save(steps, Position(step=1))
    _enter(scratch)
    with _Breaker(fault, rank, scratch, while_writing=place) as breaker:
        over, step = False, 1
        while not over:
            step += 1
            breaker.maybe()
            saved.save(steps, Position(step=step))
            over = world.bcast(breaker.over(), root=0)


MOMENT_FUNCTIONS = {"loop": loop, "collective": collective, "all-reduce": all_reduce, "checkpoint": checkpoint}


def break_in_set_up(fault: str, scratch: str) -> None:
    """In a set-up cell of a new engine set, on the last rank, once the test has written `go`."""
    info = rank_info()
    if info.rank == info.size - 1 and (Path(scratch) / "go").exists():
        _break(fault, Path(scratch))


class _Breaker:
    """Breaks this rank as wanted when `go` is there. Outside faults (signals) are the test's own.

    while_writing: directory; the fault then comes while a checkpoint is being written there.
    """

    def __init__(self, fault: str, rank: int, scratch: str, while_writing: Path | None = None) -> None:
        self.mine = rank_info().rank == rank
        self._fault, self._scratch, self._writing = fault, Path(scratch), while_writing
        self._go = self._scratch / "go"
        self._end = time.monotonic() + _MOST_S

    def __enter__(self) -> _Breaker:
        if self.mine and self._fault == "exits":
            threading.Thread(target=self._exit_soon, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def over(self) -> bool:
        """Whether the moment ends by itself: the client was killed and the rest has been seen, or it took too long."""
        return (self._fault == "client" and self._go.exists()) or time.monotonic() > self._end

    def maybe(self) -> None:
        if self.mine and self._fault in ("raises", "memory") and self._go.exists():
            _break(self._fault, self._scratch, self._writing is not None)

    def wait(self) -> None:
        """Until `go`; then break, if that is what it means."""
        while not self._go.exists() and time.monotonic() < self._end:
            time.sleep(0.002)
        self.maybe()

    def _exit_soon(self) -> None:
        """From a thread of its own: the main one is in the moment."""
        _until(self._go.exists, self._end)
        if self._writing is not None:
            writing = self._writing
            _until(lambda: any(writing.glob(".*.tmp")), self._end)
        _break("exits", self._scratch)


def _until(condition: Callable[[], bool], end: float) -> None:
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)


def _enter(scratch: str) -> None:
    (Path(scratch) / f"entered-{rank_info().rank}").touch()


def _break(fault: str, scratch: Path, on_write: bool = False) -> None:
    """The fault itself. on_write: a limit of the system lets the next checkpoint fail, not this line."""
    (scratch / "fault.new").write_text(repr(time.time()))
    os.replace(scratch / "fault.new", scratch / "fault")
    if fault == "exits":
        os._exit(EXIT_CODE)
    if fault == "raises" and not on_write:
        raise ValueError("raised on purpose")
    if fault == "raises":
        resource.setrlimit(resource.RLIMIT_FSIZE, (8 * _MIB, resource.RLIM_INFINITY))  # as a quota would do
        return
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + (16 if on_write else 256) * _MIB, resource.RLIM_INFINITY))
    if on_write:
        return
    held = []
    try:
        while True:
            held.append(bytearray(64 * _MIB))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
