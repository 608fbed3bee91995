"""Two ranks under mpiexec against one rank in this process: the same mathematics, whatever sums it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toy

from sciml_kernel import config as configs
from sciml_kernel import records

HERE = Path(__file__).parent
MPIEXEC = Path(sys.executable).parent / "mpiexec"
EQUAL = {"optimizer": "adam", "epochs": 2}  # as in on_ranks.py

pytestmark = [pytest.mark.mpi, pytest.mark.tf]


@pytest.fixture(scope="module", params=[pytest.param("horovod", marks=pytest.mark.horovod), pytest.param("mpi4py")])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks saw in all scenarios of on_ranks.py."""
    out = tmp_path_factory.mktemp(request.param)
    command = [MPIEXEC, "-n", "2", sys.executable, HERE / "on_ranks.py", request.param, out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert [one["size"] for one in found] == [2, 2]
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> toy.Fitted:
    return toy.fit(tmp_path_factory.mktemp("alone"), toy.make_config(**EQUAL))


def test_two_ranks_with_a_batch_of_4_equal_one_rank_with_8(ranks: list[dict[str, Any]], alone: toy.Fitted) -> None:
    for one in ranks:
        for got, wanted in zip(one["equal_to_one_rank"]["weights"], alone.weights, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)  # twelve steps of Adam in float32
    first = ranks[0]["equal_to_one_rank"]
    np.testing.assert_allclose(first["train_loss"], alone.values("train/loss"), rtol=1e-4)
    np.testing.assert_allclose(first["val"][0], alone.values("val/loss"), rtol=1e-4)


def test_all_ranks_end_with_the_same_bits(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["equal_to_one_rank"]["weights"] == ranks[1]["equal_to_one_rank"]["weights"]


def test_ranks_read_disjoint_halves_of_each_batch(ranks: list[dict[str, Any]], alone: toy.Fitted) -> None:
    halves = [np.array(one["equal_to_one_rank"]["seen"]) for one in ranks]
    np.testing.assert_array_equal(np.concatenate(halves, axis=1), alone.task.seen)


def test_validation_over_two_ranks_counts_all_13_samples(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["equal_to_one_rank"]["val"][1] == [13, 13]


def test_only_rank_0_reports_and_computes_baselines(ranks: list[dict[str, Any]]) -> None:
    assert [one["equal_to_one_rank"]["baselines"] for one in ranks] == [1, 0]
    assert ranks[1]["equal_to_one_rank"]["train_loss"] == []


def test_batch_norm_statistics_are_the_same_on_all_ranks(ranks: list[dict[str, Any]]) -> None:
    assert ranks[0]["batch_norm_statistics_are_equal"] == ranks[1]["batch_norm_statistics_are_equal"]


def test_dropout_masks_differ_by_rank_and_weights_do_not(ranks: list[dict[str, Any]]) -> None:
    first, second = (one["dropout_differs"] for one in ranks)
    assert first["mask"] != second["mask"]
    assert first["weights"] == second["weights"]


def test_interrupt_of_one_rank_stops_all_at_the_same_step(ranks: list[dict[str, Any]]) -> None:
    results = [one["interrupted_and_resumed"]["results"][0] for one in ranks]
    assert [result["status"] for result in results] == ["interrupted", "interrupted"]
    assert results[0]["steps"] == results[1]["steps"]
    assert results[0]["steps"] in (9, 10)  # asked before the ninth batch
    assert [one["interrupted_and_resumed"]["logs"] for one in ranks] == [True, True]


def test_interrupted_run_is_resumed_to_its_end_and_a_finished_one_is_left_alone(
    ranks: list[dict[str, Any]], tmp_path: Path
) -> None:
    seen = ranks[0]["interrupted_and_resumed"]
    assert seen["statuses"] == ["interrupted", "completed", "completed"]
    assert [result["steps"] for result in seen["results"]][1:] == [24, 24]
    assert seen["weights"] == ranks[1]["interrupted_and_resumed"]["weights"]
    whole = toy.fit(tmp_path, toy.make_config(optimizer="adam", epochs=4))
    for got, wanted in zip(seen["weights"], whole.weights, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)
    rows = (Path(seen["record"]) / "predictions.csv").read_text().splitlines()
    assert [int(row.split(",")[0]) for row in rows[1:]] == list(range(13))


def test_checkpoint_of_two_ranks_goes_on_on_one(ranks: list[dict[str, Any]], tmp_path: Path) -> None:
    record = Path(ranks[0]["interrupted_and_resumed"]["record"])
    config = toy.make_config(optimizer="adam", epochs=5)
    rest = toy.fit(tmp_path / "rest", config, resume_from=record / "checkpoints")
    assert rest.outcome.position.step == 30
    whole = toy.fit(tmp_path / "whole", config)
    for got, wanted in zip(rest.weights, whole.weights, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)


def test_wrong_inputs_are_refused_on_every_rank_and_none_is_left_waiting(ranks: list[dict[str, Any]]) -> None:
    for one in ranks:
        found = one["refused_on_all_ranks"]
        assert found["other_data"].startswith("DataError: training samples differ between rank 0 and rank 1: 48 and 40")
        assert found["shape"].startswith("DataError: the network predicts (4, 2) but the target is (4, 1)")
        assert found["nan"].startswith("RunError: train/loss is nan at step")
        assert found["no_checkpoint"].startswith("RecordError: ")
        assert "no whole checkpoint in" in found["no_checkpoint"]
        assert found["odd_batch"].startswith("ConfigError: batch 7 not divisible by 2 ranks; use 6 or 8")
        assert found["single"].startswith("EnvironmentNotFitError: collective 'single' on 2 ranks")
    assert ranks[0]["refused_on_all_ranks"]["nan"] == ranks[1]["refused_on_all_ranks"]["nan"]


def test_failing_rank_writes_the_record_itself_while_the_other_waits(tmp_path: Path) -> None:
    """Rank 1 raises in the third step; rank 0 sits in a collective until the launcher ends it, as a pool would."""
    text = configs.to_json(toy.make_config(collective="mpi4py", fault="raise", fault_rank=1))
    record = records.create("toy", text, root=tmp_path)
    payload = {"run": record.id, "record": str(record.path), "config": text, "resume_from": None}
    code = (
        f"import sys; sys.path.insert(0, {str(HERE)!r}); import toy; from sciml_kernel import registry\n"
        "registry.entry_points = toy.entry_points\n"
        "from sciml_kernel.engine.entry import train\n"
        f"try:\n    train({payload!r})\n"
        "except OSError:\n    from mpi4py import MPI; MPI.COMM_WORLD.Abort(5)\n"
    )
    done = subprocess.run(
        [MPIEXEC, "-n", "2", sys.executable, "-c", code], capture_output=True, timeout=100, check=False
    )
    assert done.returncode != 0
    state = record.read()
    assert state["status"] == "failed"
    assert (state["error"]["type"], state["error"]["rank"]) == ("OSError", 1)
