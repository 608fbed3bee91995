"""One suite for every pool: in this process, and on the MPI of this environment."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sciml_kernel.errors import UsageError
from sciml_kernel.pool import FakePool, Pool
from sciml_kernel.pool.processes import marked_pids
from sciml_kernel.testing.pool_suite import PoolContract


class TestFake(PoolContract):
    @pytest.fixture
    def pool(self) -> Iterator[FakePool]:
        pool = FakePool.start(n=3)
        yield pool
        pool.stop()

    @pytest.fixture
    def lose(self, pool: FakePool) -> Callable[[int], None]:
        return pool.lose_rank

    def test_no_ranks_are_refused(self) -> None:
        with pytest.raises(UsageError, match="at least 1 rank"):
            FakePool.start(n=0)


@pytest.fixture(scope="module")
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def shared(state_home: Path) -> Iterator[Pool]:
    """One pool for the class: each test leaves it ready, which is part of what is tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(state_home))
        pool = Pool.start(n=2, oversubscribe=True)
    mark = pool._spec().id
    yield pool
    pool.stop()
    assert marked_pids(mark) == []
    assert not pool.path.exists()


@pytest.mark.mpi
class TestLocalMpi(PoolContract):
    @pytest.fixture
    def pool(self, shared: Pool, state_home: Path, monkeypatch: pytest.MonkeyPatch) -> Pool:
        monkeypatch.setenv("XDG_STATE_HOME", str(state_home))
        return shared

    @pytest.fixture
    def lose(self, pool: Pool) -> Callable[[int], None]:
        def kill(rank: int) -> None:
            os.kill(int(pool.report().set_index("rank").loc[rank, "pid"]), signal.SIGKILL)

        return kill
