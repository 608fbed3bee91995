"""Ranks that part: what the user is told, how soon, and that the next training runs on the same pool."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from on_pool import pids, runs_again, train

import sciml_kernel as sk
from sciml_kernel.errors import RemoteError
from sciml_kernel.pool import Pool

pytestmark = [pytest.mark.mpi, pytest.mark.tf, pytest.mark.horovod]

STALL_S = 4  # a loaded machine must not be taken for ranks that part


def failure(pool: Pool, folder: Path, fault: str) -> tuple[sk.Run, RemoteError]:
    run = train(pool, folder, fault)
    with pytest.raises(RemoteError) as caught:
        run.wait(timeout=90, progress=False)
    return run, caught.value


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("sum_shape", "float32 (3,) on rank 0; float32 (4,) on rank 1"),
        ("sum_dtype", "float32 (3,) on rank 0; float64 (3,) on rank 1"),
    ],
)
def test_tensor_that_differs_is_named_with_the_ranks_and_the_pool_goes_on(
    pool: Pool, tmp_path: Path, fault: str, words: str
) -> None:
    before = pids(pool)
    run, error = failure(pool, tmp_path, fault)
    first, *rest = error.message.splitlines()
    assert first == f"tensor 'sum_in_graph' differs between the ranks: {words}; all ranks must send the same"
    assert any(line.startswith("Horovod: Mismatched ") for line in rest)
    assert error.type_name == "CollectiveError"
    assert error.step == 1
    entry = run.record.read()["error"]
    assert entry["type"] == "CollectiveError"
    assert entry["message"].startswith("tensor 'sum_in_graph' differs")
    assert "unlike_the_others" not in error.message  # not TensorFlow's history of the graph
    runs_again(pool, tmp_path)
    assert pids(pool) == before  # Horovod lives: nothing had to be replaced


def test_different_order_is_ended_and_named_and_the_next_training_runs_by_itself(pool: Pool, tmp_path: Path) -> None:
    before = pids(pool)
    begin = time.monotonic()
    run, error = failure(pool, tmp_path, "order")
    # one rank sums 3 numbers, the other is on its way to average gradients
    first, second = error.message.splitlines()[:2]
    assert first == (
        "the ranks waited for each other in different collectives: in 'sum_in_graph' on rank 0; "
        "in 'gradients.float32' on rank 1"
    )
    assert second.startswith("Horovod gave up after 4 s (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS)")
    assert time.monotonic() - begin < 60
    assert run.status == "failed"
    assert run.record.read()["error"]["message"].startswith("the ranks waited for each other")
    runs_again(pool, tmp_path)
    assert not set(pids(pool)) & set(before)  # Horovod was dead in those processes


def test_rank_that_never_comes_is_named_and_the_others_are_freed(pool: Pool, tmp_path: Path) -> None:
    _, error = failure(pool, tmp_path, "late")
    assert error.rank == 0
    assert re.search(r"in '[a-z0-9_.]+' on rank 0; in no collective on rank 1$", error.message.splitlines()[0])
    runs_again(pool, tmp_path)


def test_horovod_that_ended_in_a_cell_costs_no_second_call(pool: Pool, tmp_path: Path) -> None:
    code = (
        "import tensorflow as tf, horovod.tensorflow as hvd; hvd.init()\n"
        "@tf.function\n"
        "def parted():\n"
        "    return hvd.allreduce(tf.ones(3), name='a' if hvd.rank() else 'b')\n"
        "parted()\n"
    )
    train(pool, tmp_path, epochs=1).wait(timeout=90, progress=False)  # sets the limits
    with pytest.raises(RemoteError, match="Horovod has been shut down"):
        pool.execute(code, timeout=60)
    runs_again(pool, tmp_path)


def test_one_rank_that_raises_ends_all_within_2_s_with_its_traceback_and_step(pool: Pool, tmp_path: Path) -> None:
    runs_again(pool, tmp_path)  # TensorFlow is loaded: the step comes soon
    run, error = failure(pool, tmp_path, "raise")
    ended = time.time()
    assert ended - float((tmp_path / "raise-1").read_text()) < 2.0
    assert (error.type_name, error.message, error.rank, error.step) == ("OSError", "the disk is gone", 1, 3)
    assert "train_batches" in error.traceback
    entry = run.record.read()["error"]
    assert run.status == "failed"
    assert (entry["type"], entry["rank"], entry["step"]) == ("OSError", 1, 3)
    assert entry["host"] == error.host
    runs_again(pool, tmp_path)
