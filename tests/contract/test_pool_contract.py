"""One suite for every pool: in this process, on the MPI of this environment, and on Open MPI."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sciml_kernel.errors import UsageError
from sciml_kernel.pool import FakePool, Pool
from sciml_kernel.pool.processes import marked_pids
from sciml_kernel.testing.machine import open_mpi, remains
from sciml_kernel.testing.pool_suite import PoolContract, check_a_tainted_pool_that_waits


class TestFake(PoolContract):
    @pytest.fixture
    def pool(self) -> Iterator[FakePool]:
        pool = FakePool.start(n=3)
        yield pool
        pool.stop()

    @pytest.fixture
    def lose(self, pool: FakePool) -> Callable[[int], None]:
        return pool.lose_rank

    def test_a_tainted_pool_waits_where_that_was_asked_for(self) -> None:
        with FakePool.start(n=2, replace=False) as pool:
            check_a_tainted_pool_that_waits(pool)

    def test_no_ranks_are_refused(self) -> None:
        with pytest.raises(UsageError, match="at least 1 rank"):
            FakePool.start(n=0)


@pytest.fixture(scope="class")
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="class")
def shared(request: pytest.FixtureRequest, state_home: Path) -> Iterator[Pool]:
    """One pool for a class: each test leaves it ready, which is part of what is tested. Nothing is left of it."""
    before = remains()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(state_home))
        if request.cls.vendor == "openmpi":
            patch.setenv("SCIML_MPI", str(open_mpi(state_home)))
        pool = Pool.start(n=2, oversubscribe=True)
        if request.cls.vendor == "openmpi":
            assert pool._spec().mpi_vendor == "openmpi"
            assert all("Open MPI" in text for text in pool.report()["mpi_library"])
    mark = pool._spec().id
    yield pool
    pool.stop()
    assert marked_pids(mark) == []
    assert not pool.path.exists()
    assert remains() <= before


class RealPools(PoolContract):
    """Ranks are processes: SIGKILL to one is what `lose` says."""

    vendor = ""

    @pytest.fixture
    def pool(self, shared: Pool, state_home: Path, monkeypatch: pytest.MonkeyPatch) -> Pool:
        monkeypatch.setenv("XDG_STATE_HOME", str(state_home))
        return shared

    @pytest.fixture
    def lose(self, pool: Pool) -> Callable[[int], None]:
        def kill(rank: int) -> None:
            os.kill(int(pool.report().set_index("rank").loc[rank, "pid"]), signal.SIGKILL)

        return kill


@pytest.mark.mpi
class TestLocalMpi(RealPools):
    """The MPI of this environment."""


@pytest.mark.mpi
class TestOpenMpi(RealPools):
    """The system's Open MPI, named by $SCIML_MPI; mpi4py loads its library at run time."""

    vendor = "openmpi"
