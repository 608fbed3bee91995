"""The processes of one rank: wrapper, engine, nanny, one interpreter for all."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from sciml_kernel.pool import Pool
from sciml_kernel.testing.pool_suite import HERE, wait_for

pytestmark = pytest.mark.mpi


def comm(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def test_engine_and_nanny_are_forked_so_that_a_rank_imports_its_libraries_once(start: Callable[..., Pool]) -> None:
    pool = start(2)
    for rank, pid in enumerate(pool.report()["pid"]):
        engine = psutil.Process(int(pid))
        (nanny,) = engine.children()
        wrapper = engine.parent()
        assert wrapper is not None
        assert [comm(process.pid) for process in (engine, nanny)] == [f"sciml-rank-{rank}", f"sciml-nanny-{rank}"]
        assert wrapper.cmdline() == engine.cmdline() == nanny.cmdline()  # exec would have changed it
        assert os.getsid(nanny.pid) == nanny.pid  # an interrupt of the group does not reach it


def test_the_nanny_holds_nothing_that_mpiexec_waits_for(start: Callable[..., Pool]) -> None:
    """mpiexec waits until the pipes that it gave its processes are closed."""
    pool = start(1)
    engine = psutil.Process(int(pool.report()["pid"][0]))
    (nanny,) = engine.children()
    wrapper = engine.parent()
    assert wrapper is not None

    def pipes(pid: int) -> set[str]:
        links = {os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
        return {link for link in links if link.startswith(("pipe:", "socket:"))}

    given = pipes(wrapper.pid)
    assert given  # else this test shows nothing
    assert pipes(nanny.pid) & given == set()


def test_the_nanny_hands_on_signals_and_goes_with_its_engine(start: Callable[..., Pool]) -> None:
    pool = start(1)
    engine = psutil.Process(int(pool.report()["pid"][0]))
    (nanny,) = engine.children()
    call = pool.submit(f"{HERE}:sleep", 60)
    wait_for(lambda: pool.measure().call is not None)  # the rank itself says so: from here on a signal counts
    pool.client.send_signal(signal.SIGINT, targets=[0], block=True)
    assert call.wait(5.0)
    engine.kill()
    wait_for(lambda: not nanny.is_running() or nanny.status() == psutil.STATUS_ZOMBIE, 5.0)
