"""What MPI jobs leave behind is removed, and what other jobs use is not."""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sciml_kernel.pool import Pool, leftovers
from sciml_kernel.pool.processes import ProcessId
from sciml_kernel.testing.pool_suite import wait_for

SHARED = Path("/dev/shm")


def exchange(n: int) -> float:
    """A message too large for one cell of the shared memory, both ways."""
    import numpy as np
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    got = np.empty(n)
    other = 1 - world.rank
    world.Sendrecv(np.full(n, float(world.rank)), other, recvbuf=got, source=other)
    return float(got.mean())


@pytest.fixture
def segment() -> Iterator[Path]:
    path = SHARED / f"mpich_shm_test{os.getpid()}_0"
    path.write_bytes(b"\0" * 4096)
    yield path
    path.unlink(missing_ok=True)


def test_a_segment_that_nobody_holds_is_an_orphan_and_a_held_one_is_not(segment: Path) -> None:
    before = time.time() - 60
    assert str(segment) in leftovers.orphans(before)
    with segment.open("r+b") as file:
        assert str(segment) not in leftovers.orphans(before)  # open
        held = mmap.mmap(file.fileno(), 4096)
    assert str(segment) not in leftovers.orphans(before)  # mapped
    assert str(segment) in leftovers.mapped([os.getpid()])
    held.close()
    assert str(segment) in leftovers.orphans(before)


def test_a_segment_from_before_is_left_alone(segment: Path) -> None:
    assert str(segment) not in leftovers.orphans(time.time() + 60)


def test_other_shared_memory_is_never_touched() -> None:
    other = SHARED / f"psm_test{os.getpid()}"
    other.write_bytes(b"\0")
    try:
        assert str(other) not in leftovers.orphans(0.0)
    finally:
        other.unlink()


@pytest.mark.mpi
def test_a_pool_leaves_no_shared_memory_even_when_its_keeper_is_killed(start: Callable[..., Pool]) -> None:
    pool = start(2)
    begin = time.time()
    pids = [entry["report"]["pid"] for entry in pool.measure().ranks]
    assert leftovers.mapped(pids) == set()  # MPICH's: the names are gone, the memory is there
    assert pool.run(exchange, 1_000_000) == [1.0, 0.0]
    keeper = pool.measure().keeper
    assert keeper is not None
    os.kill(keeper.pid, signal.SIGKILL)
    wait_for(lambda: not any(ProcessId.of(pid).alive() for pid in pids))
    pool.stop()
    assert leftovers.orphans(begin - 30) == set()


@pytest.mark.mpi
def test_ranks_have_the_temporary_directory_of_their_user(
    start: Callable[..., Pool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert start(1).run("os:getenv", "TMPDIR") == [str(tmp_path)]
    monkeypatch.delenv("TMPDIR")
    assert start(1).run("os:getenv", "TMPDIR") == [None]
    assert start(1, env={"TMPDIR": "/own"}).run("os:getenv", "TMPDIR") == ["/own"]
