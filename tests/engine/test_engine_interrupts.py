"""An interrupt at each stage of a training, on two ranks: it ends soon, leaves what is whole, and the pool lives."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from on_pool import pids, runs_again, train, until

import sciml_kernel as sk
from sciml_kernel.engine import checkpoint
from sciml_kernel.errors import RecordError, RunInterruptedError, SciMLError
from sciml_kernel.pool import Pool

pytestmark = [pytest.mark.mpi, pytest.mark.tf, pytest.mark.horovod]


def interrupted(run: sk.Run, began: Path) -> float:
    """Interrupt the run when the file says that the stage has begun; how many seconds it took to end."""
    until(began.exists, f"{began.name}: {run.record.read().get('error')}")
    begin = time.monotonic()
    run.interrupt()
    took = time.monotonic() - begin
    with pytest.raises(RunInterruptedError):
        run.wait(progress=False)
    assert run.status == "interrupted"
    return took


def steps_kept(run: sk.Run) -> list[int]:
    """Steps of the whole checkpoints; every file there is one."""
    return [checkpoint.read(path).position.step for path in sorted(run.record.checkpoints_dir.iterdir())]


def finishes(run: sk.Run) -> None:
    done = run.resume(fault="").wait(timeout=90, progress=False)
    assert done.status == "completed"
    assert done.history["val/loss"].sizes["epoch"] >= 1


@pytest.mark.parametrize("fault", ["slow_prepare", "prepare_waits"])
def test_while_the_data_is_prepared_it_ends_at_once_and_the_ranks_live(pool: Pool, tmp_path: Path, fault: str) -> None:
    """prepare_waits: rank 1 reads for ever, rank 0 waits for it in a collective, where no signal is heard."""
    runs_again(pool, tmp_path)
    before = pids(pool)
    run = train(pool, tmp_path, fault)
    until((tmp_path / f"{fault}-0").exists, "rank 0 prepares")
    assert interrupted(run, tmp_path / f"{fault}-1") < 2.0
    assert not run.record.checkpoints_dir.exists() or not [*run.record.checkpoints_dir.iterdir()]
    runs_again(pool, tmp_path)
    assert pids(pool) == before


def test_while_a_resumed_run_prepares_nothing_of_the_earlier_one_is_lost(pool: Pool, tmp_path: Path) -> None:
    first = train(pool, tmp_path, epochs=1).wait(timeout=90, progress=False)
    second = first.resume(epochs=2, fault="slow_prepare")
    interrupted(second, tmp_path / "slow_prepare-0")
    assert steps_kept(second) == [6]
    third = second.resume(fault="").wait(timeout=90, progress=False)
    assert (third.status, steps_kept(third)) == ("completed", [12])


def test_while_the_first_step_compiles(pool: Pool, tmp_path: Path) -> None:
    before = pids(pool)
    run = train(pool, tmp_path, "slow_compile")
    assert interrupted(run, tmp_path / "slow_compile-0") < 10.0  # 1 s of it is the test's
    assert steps_kept(run) == [3]  # asked in the first step, told to all by the second, heard while the third ran
    finishes(run)
    assert pids(pool) == before


def test_while_it_validates(pool: Pool, tmp_path: Path) -> None:
    before = pids(pool)
    run = train(pool, tmp_path, "slow_validation")
    assert interrupted(run, tmp_path / "slow_validation-0") < 5.0
    assert steps_kept(run) == [6]
    assert "val/loss" not in run.history  # the validation was not finished, so the epoch was not
    finishes(run)
    assert pids(pool) == before


def test_while_a_checkpoint_is_written(pool: Pool, tmp_path: Path) -> None:
    before = pids(pool)
    run = train(pool, tmp_path, "slow_disk", fault_rank=0, epochs=4)
    assert interrupted(run, tmp_path / "slow_disk-0") < 5.0
    kept = steps_kept(run)
    assert kept[0] == 12  # the one that was being written
    assert kept[1] in (13, 14)  # where it stopped
    finishes(run)
    assert pids(pool) == before


def test_twice_while_a_checkpoint_is_written_leaves_the_one_before(pool: Pool, tmp_path: Path) -> None:
    run = train(pool, tmp_path, "slow_disk", fault_rank=0, epochs=4)
    (rank_0, _), began = pids_of(pool), tmp_path / "slow_disk-0"
    until(began.exists, "a checkpoint is being written")
    for _ in range(2):
        os.kill(rank_0, signal.SIGINT)
        time.sleep(0.3)  # less would be one press that came twice
    with pytest.raises(SciMLError):
        run.wait(timeout=30, progress=False)
    assert run.status == "interrupted"
    assert steps_kept(run) == [6]
    with pytest.raises(RecordError):
        checkpoint.read(run.record.checkpoints_dir / "step-00000012.npz")
    finishes(run)


def pids_of(pool: Pool) -> list[int]:
    """Also while they are busy."""
    return [int(pid) for pid in pool.report().sort_values("rank")["pid"]]
