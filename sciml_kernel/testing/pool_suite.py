"""What every pool must do, whatever its ranks are. Derive a class from `PoolContract` and override the fixture `pool`.

The pool of the fixture has at least two ranks and may be shared by all tests of the class: each leaves it ready. The
functions at the top run on the ranks, called by name.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sciml_kernel.errors import (
    PoolBusyError,
    PoolDeadError,
    PoolStartError,
    PoolTaintedError,
    RemoteError,
    RunInterruptedError,
    RunTimeoutError,
    UsageError,
)
from sciml_kernel.pool.rank import rank_info

__all__ = ["HERE", "PoolContract", "check_a_tainted_pool_that_waits", "wait_for"]

HERE = __name__


# -- on the ranks -----------------------------------------------------------------------------------------------------


def who() -> list[int]:
    """[rank, size], asked of MPI where there is one."""
    info = rank_info()
    if info.place is None:
        return [info.rank, info.size]
    from mpi4py import MPI

    return [MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()]


def weighted(a: float, *, factor: float = 1.0) -> float:
    return a * factor + rank_info().rank


def fail_on(ranks: list[int], text: str = "broken on purpose") -> int:
    if rank_info().rank in ranks:
        raise ValueError(text)
    return rank_info().rank


def fail_while_others_wait(rank: int) -> None:
    """One rank raises and says when; the others enter a collective that can't complete."""
    if rank_info().rank == rank:
        raise ValueError(f"raised at {time.time()}")
    wait_in_collective()


def wait_in_collective(folder: str | None = None) -> None:
    """Block where no interrupt frees: rank 0 never comes to a barrier that all others enter.

    folder: each rank leaves a file there on its way into the collective.
    """
    info = rank_info()
    if info.place is not None:
        from mpi4py import MPI
    if folder is not None:
        Path(folder, str(info.rank)).touch()
    if info.place is None:
        from sciml_kernel.pool.fake import hold

        hold()
    if info.rank != 0:
        MPI.COMM_WORLD.Barrier()
    MPI.COMM_WORLD.recv(source=(info.rank + 1) % info.size, tag=77)  # rank 0 waits for what nobody sends


def sleep(seconds: float) -> str:
    """Sleep in steps, as Python code that an interrupt ends."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)
    return "slept"


def no_json() -> object:
    return object()


def kill_myself(rank: int, number: int) -> None:
    if rank_info().rank == rank:
        os.kill(os.getpid(), number)
    wait_in_collective()


# -- the suite --------------------------------------------------------------------------------------------------------


def wait_for(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    """Wait on a condition; fail when it does not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.01)


def check_a_tainted_pool_that_waits(pool: Any) -> None:
    """For a pool of at least 2 ranks started with replace=False."""
    with pytest.raises(RemoteError, match=r"\[rank 1 .*ValueError: raised at"):
        pool.run(f"{HERE}:fail_while_others_wait", 1)
    assert pool.state == "tainted"
    with pytest.raises(PoolTaintedError, match=r"rank 1.*ValueError.*restart\(\) replaces"):
        pool.run(f"{HERE}:who")
    pool.restart()
    assert pool.run(f"{HERE}:who") == [[rank, pool.n] for rank in range(pool.n)]


class PoolContract:
    """Fulfilled by `FakePool` and by `Pool` on every launcher."""

    @pytest.fixture
    def pool(self) -> Any:
        raise NotImplementedError("override the fixture `pool`")

    @pytest.fixture
    def lose(self, pool: Any) -> Callable[[int], None]:
        """Ends the process of a rank by SIGKILL."""
        raise NotImplementedError("override the fixture `lose`")

    def test_every_rank_knows_itself_and_one_world(self, pool: Any) -> None:
        assert pool.state == "ready"
        assert pool.run(f"{HERE}:who") == [[rank, pool.n] for rank in range(pool.n)]

    def test_arguments_reach_all_ranks_and_values_come_back_by_rank(self, pool: Any) -> None:
        assert pool.run(f"{HERE}:weighted", 2.5, factor=4.0) == [10.0 + rank for rank in range(pool.n)]

    def test_a_function_object_runs_on_all_ranks(self, pool: Any) -> None:
        offset = 7
        assert pool.run(lambda x: {"sum": x + offset}, 1) == [{"sum": 8}] * pool.n

    def test_a_failing_rank_is_named_with_its_traceback_and_the_pool_stays(self, pool: Any) -> None:
        generation = pool.health().generation
        with pytest.raises(RemoteError, match=r"\[rank 1 @ .*\] ValueError: odd") as caught:
            pool.run(f"{HERE}:fail_on", [1], text="odd")
        assert caught.value.rank == 1
        assert caught.value.type_name == "ValueError"
        assert "raise ValueError(text)" in caught.value.traceback
        assert "raise ValueError(text)" in "".join(caught.value.__notes__)
        assert (pool.state, pool.health().generation) == ("ready", generation)
        assert len(pool.run(f"{HERE}:who")) == pool.n

    def test_a_function_object_fails_like_a_named_one(self, pool: Any) -> None:
        with pytest.raises(RemoteError, match="ZeroDivisionError"):
            pool.run(lambda: 1 / 0)
        assert pool.state == "ready"

    def test_a_rank_that_raises_ends_the_call_of_ranks_in_a_collective(self, pool: Any) -> None:
        n, generation = pool.n, pool.health().generation
        with pytest.raises(RemoteError, match=r"\[rank 1 .*ValueError: raised at") as caught:
            pool.run(f"{HERE}:fail_while_others_wait", 1)
        assert time.time() - float(caught.value.message.split()[-1]) < 2.0
        assert pool.run(f"{HERE}:who") == [[rank, n] for rank in range(n)]  # waits for the new engine set
        assert pool.health().generation == generation + 1

    def test_a_call_ends_at_its_time_limit(self, pool: Any) -> None:
        generation = pool.health().generation
        begin = time.monotonic()
        with pytest.raises(RunTimeoutError, match=r"ended after 0\.3 s"):
            pool.run(f"{HERE}:sleep", 30, timeout=0.3)
        assert time.monotonic() - begin < 3.0
        assert pool.run(f"{HERE}:sleep", 0) == ["slept"] * pool.n
        assert pool.health().generation == generation  # Python code heeds the interrupt: nothing was replaced

    def test_a_submitted_call_ends_at_its_time_limit_though_nobody_waits(self, pool: Any) -> None:
        call = pool.submit(f"{HERE}:sleep", 30, timeout=0.3)
        assert call.wait(3.0)
        with pytest.raises(RunTimeoutError, match=r"ended after 0\.3 s"):
            call.result()
        assert pool.state == "ready"

    def test_a_time_limit_frees_ranks_that_no_interrupt_reaches(self, pool: Any) -> None:
        n = pool.n
        with pytest.raises(RunTimeoutError):
            pool.run(f"{HERE}:wait_in_collective", timeout=0.3)
        assert pool.run(f"{HERE}:who") == [[rank, n] for rank in range(n)]

    def test_a_second_call_on_busy_ranks_is_refused(self, pool: Any) -> None:
        call = pool.submit(f"{HERE}:sleep", 30)
        assert pool.state == "busy"
        with pytest.raises(PoolBusyError, match="running"):
            pool.run(f"{HERE}:who")
        call.interrupt()
        assert call.wait(5.0)
        assert pool.state == "ready"

    def test_an_interrupt_is_an_error_and_the_next_call_is_not_lost(self, pool: Any) -> None:
        for _ in range(5):
            call = pool.submit(f"{HERE}:sleep", 30)
            wait_for(lambda: pool.measure().state == "busy")  # the ranks run, not only the request
            pool.interrupt()
            assert call.wait(5.0)
            with pytest.raises(RemoteError, match="KeyboardInterrupt") as caught:
                call.result()
            assert caught.value.exit_code == 130
            assert pool.run(f"{HERE}:sleep", 0) == ["slept"] * pool.n

    def test_a_second_interrupt_frees_ranks_that_no_interrupt_reaches(self, pool: Any, tmp_path: Path) -> None:
        n = pool.n
        call = pool.submit(f"{HERE}:wait_in_collective", str(tmp_path))
        wait_for(lambda: len(list(tmp_path.iterdir())) == n)
        call.interrupt()
        assert not call.wait(0.3)
        begin = time.monotonic()
        call.abort("interrupted twice")
        assert time.monotonic() - begin < 2.5
        with pytest.raises(RunInterruptedError, match="interrupted twice"):
            call.result()
        assert pool.run(f"{HERE}:who") == [[rank, n] for rank in range(n)]

    def test_submit_returns_before_the_ranks_answer(self, pool: Any) -> None:
        call = pool.submit(f"{HERE}:sleep", 0.2)
        assert not call.done()
        assert not call.wait(0.0)
        assert call.result() == ["slept"] * pool.n
        assert call.done()

    def test_an_unknown_function_is_an_error_of_the_rank(self, pool: Any) -> None:
        with pytest.raises(RemoteError, match=r"NotFoundError.*'weighted'") as caught:
            pool.run(f"{HERE}:weigted", 1)
        assert caught.value.exit_code == 2

    def test_a_name_without_a_function_is_refused(self, pool: Any) -> None:
        with pytest.raises(UsageError, match="module:function"):
            pool.run("os.getpid")

    def test_only_json_goes_to_a_named_function(self, pool: Any) -> None:
        with pytest.raises(UsageError, match="must be JSON"):
            pool.submit(f"{HERE}:weighted", object())

    def test_only_json_comes_from_a_named_function(self, pool: Any) -> None:
        with pytest.raises(RemoteError, match="no JSON"):
            pool.run(f"{HERE}:no_json")

    def test_a_cell_keeps_its_names_and_prints_by_rank(self, pool: Any) -> None:
        pool.execute("kept = 10 + mpi_rank")
        printed: dict[int, str] = {}
        lock = threading.Lock()

        def note(rank: int, stream: str, text: str) -> None:
            with lock:
                printed[rank] = printed.get(rank, "") + f"{stream}:{text}"

        pool.execute("print('kept', kept)", on_output=note)
        assert printed == {rank: f"stdout:kept {10 + rank}\n" for rank in range(pool.n)}

    def test_a_cell_runs_on_chosen_ranks_only(self, pool: Any) -> None:
        printed: list[int] = []
        pool.execute("print('here')", targets=[1], on_output=lambda rank, _stream, _text: printed.append(rank))
        assert set(printed) == {1}
        with pytest.raises(UsageError, match="targets"):
            pool.execute("1", targets=[pool.n])

    def test_a_failing_cell_names_the_rank(self, pool: Any) -> None:
        with pytest.raises(RemoteError, match=r"\[rank 1 .*ZeroDivisionError"):
            pool.execute("if mpi_rank == 1:\n    1 / 0")
        with pytest.raises(RemoteError, match="SyntaxError"):
            pool.execute("if if")
        assert pool.state == "ready"

    def test_set_up_cells_run_again_on_every_new_engine_set_in_their_order(self, pool: Any) -> None:
        pool.set_up("base = 10 * mpi_rank")
        pool.set_up("made = base + 1", name="made")
        pool.set_up("made = base + 2", name="made")  # the newer one of this name counts
        pool.set_up("base = 10 * mpi_rank")
        assert pool.set_ups == ["base = 10 * mpi_rank", "made = base + 2"]
        with pytest.raises(RemoteError, match="ZeroDivisionError"):
            pool.set_up("1 / 0")  # is not kept
        pool.restart()
        pool.execute("assert made == 10 * mpi_rank + 2, made")
        pool.forget_set_ups()
        pool.restart()
        pool.execute("assert 'made' not in globals()")

    def test_set_up_cells_run_again_after_the_automatic_replacement(self, pool: Any) -> None:
        pool.set_up("kept = 7")
        with pytest.raises(RemoteError, match="raised at"):
            pool.run(f"{HERE}:fail_while_others_wait", 1)
        pool.execute("assert kept == 7")
        pool.forget_set_ups()

    def test_a_set_up_cell_that_fails_on_a_new_engine_set_is_named(self, pool: Any, tmp_path: Any) -> None:
        switch = tmp_path / "switch"
        pool.set_up(f"import os\nif mpi_rank == 1 and os.path.exists({str(switch)!r}):\n    raise OSError('no disk')")
        switch.touch()
        with pytest.raises(PoolStartError, match=r"rank 1 @ .*set-up cell 1 failed: OSError: no disk"):
            pool.restart()
        assert pool.state == "dead"
        pool.forget_set_ups()
        pool.restart()
        assert len(pool.run(f"{HERE}:who")) == pool.n

    def test_a_lost_rank_is_named_and_restart_brings_all_back(self, pool: Any, lose: Callable[[int], None]) -> None:
        n = pool.n
        lose(1)
        wait_for(lambda: pool.state == "dead", 2.0)
        with pytest.raises(PoolDeadError, match=r"rank 1 @ .*SIGKILL") as caught:
            pool.run(f"{HERE}:who")
        assert (caught.value.exits[0]["rank"], caught.value.exits[0]["signal"]) == (1, "SIGKILL")
        pool.restart()
        assert pool.state == "ready"
        assert pool.run(f"{HERE}:who") == [[rank, n] for rank in range(n)]

    def test_a_rank_lost_in_a_collective_ends_the_call(self, pool: Any, lose: Callable[[int], None]) -> None:
        call = pool.submit(f"{HERE}:wait_in_collective")
        wait_for(lambda: pool.measure().state == "busy")
        lose(1)
        assert call.wait(2.0)
        with pytest.raises(PoolDeadError, match=r"rank 1 @ .*SIGKILL"):
            call.result()
        pool.restart()
        assert len(pool.run(f"{HERE}:who")) == pool.n

    def test_resize_changes_the_number_of_ranks(self, pool: Any) -> None:
        n = pool.n
        pool.resize(n - 1)
        assert pool.run(f"{HERE}:who") == [[rank, n - 1] for rank in range(n - 1)]
        pool.resize(n)
        assert pool.n == n
        assert len(pool.run(f"{HERE}:who")) == n
        with pytest.raises(UsageError, match="at least 1 rank"):
            pool.resize(0)

    def test_z_stop_twice_is_one_stop(self, pool: Any) -> None:
        """Last of the class: it ends the shared pool."""
        pool.stop()
        begin = time.monotonic()
        pool.stop()
        assert time.monotonic() - begin < 0.5
        assert pool.state == "stopped"
        with pytest.raises(PoolDeadError, match="stopped"):
            pool.run(f"{HERE}:who")
