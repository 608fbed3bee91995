"""The function that a pool calls: JSON in, JSON out, and a record that says how it ended."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import toy
import xarray as xr

from sciml_kernel import config as configs
from sciml_kernel import records, registry
from sciml_kernel.engine import collective as collectives
from sciml_kernel.engine.entry import train
from sciml_kernel.errors import ConfigError, EnvironmentNotFitError, NotFoundError, RunError
from sciml_kernel.metrics.history import HistoryReader
from sciml_kernel.metrics.jsonl import read_events

pytestmark = pytest.mark.tf


@pytest.fixture(autouse=True)
def _toy_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_points", toy.entry_points)


def _payload(tmp_path: Path, resume_from: Path | None = None, **settings: Any) -> dict[str, Any]:
    text = configs.to_json(toy.make_config(**settings))
    record = records.create("toy", text, root=tmp_path)
    return {
        "run": record.id,
        "record": str(record.path),
        "config": text,
        "resume_from": str(resume_from) if resume_from else None,
    }


def test_completed_run_leaves_metrics_predictions_checkpoint_log_and_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    payload = _payload(tmp_path, epochs=2)
    result = json.loads(json.dumps(train(payload)))
    assert result["status"] == "completed"
    assert (result["epochs"], result["steps"]) == (2, 12)
    assert result["seconds"] > 0
    assert len(result["hosts"]) == len(result["devices"]) == 1
    record = records.Record(Path(payload["record"]))
    state = record.read()
    assert state["status"] == "completed"
    assert state["ranks"] == 1
    assert state["hosts"] == result["hosts"]
    assert state["devices"] == result["devices"]
    events, _ = read_events(record.metrics_path)
    assert {event.run for event in events} == {record.id}
    assert [event.step for event in events if event.name == "val/loss"] == [6, 12]
    assert (record.path / "predictions.csv").exists()
    names = sorted(path.name for path in record.checkpoints_dir.iterdir())
    assert names == ["step-00000006.npz", "step-00000012.npz"]
    assert "epoch 2/2" in record.log_path(0).read_text()
    assert "epoch 2/2" in capsys.readouterr().out


def test_many_trainings_in_one_process_give_the_same_numbers(tmp_path: Path) -> None:
    losses = []
    for _ in range(3):
        payload = _payload(tmp_path, epochs=1, dropout=0.5)
        train(payload)
        events, _ = read_events(Path(payload["record"]) / "metrics.jsonl")
        losses.append([event.value for event in events if event.name in ("train/loss", "val/loss")])
    assert losses[0] == losses[1] == losses[2]


def test_resume_goes_on_in_a_new_record(tmp_path: Path) -> None:
    first = _payload(tmp_path, epochs=1)
    train(first)
    second = _payload(tmp_path, resume_from=Path(first["record"]), epochs=2)
    assert train(second)["steps"] == 12
    before, _ = read_events(Path(first["record"]) / "metrics.jsonl")
    events, _ = read_events(Path(second["record"]) / "metrics.jsonl")
    assert [event.step for event in events if event.name == "train/loss"] == list(range(1, 13))  # its history is whole
    assert {event.run for event in events} == {second["run"]}
    carried = [dataclasses.replace(event, run=second["run"]) for event in before]
    assert events[: len(carried)] == carried


def test_what_came_after_the_checkpoint_is_not_carried_over_but_done_again(tmp_path: Path) -> None:
    first = _payload(tmp_path, epochs=3, checkpoint_every_epochs=2)
    train(first)
    older = sorted((Path(first["record"]) / "checkpoints").iterdir())[-1]
    assert older.name == "step-00000018.npz"
    older.unlink()  # as when the run was killed in its third epoch
    whole, _ = read_events(Path(first["record"]) / "metrics.jsonl")
    second = _payload(tmp_path, resume_from=Path(first["record"]), epochs=3, checkpoint_every_epochs=2)
    train(second)
    events, _ = read_events(Path(second["record"]) / "metrics.jsonl")
    for name in ("train/loss", "val/loss"):
        assert [(e.step, e.value) for e in events if e.name == name] == [
            (e.step, e.value) for e in whole if e.name == name
        ]
    assert (Path(second["record"]) / "predictions.csv").read_bytes() == (
        Path(first["record"]) / "predictions.csv"
    ).read_bytes()


def test_resume_of_a_finished_run_has_its_final_metrics_and_predictions(tmp_path: Path) -> None:
    first = _payload(tmp_path, epochs=2)
    train(first)
    second = _payload(tmp_path, resume_from=Path(first["record"]), epochs=2)
    assert train(second)["status"] == "completed"
    histories = [HistoryReader(Path(one["record"]) / "metrics.jsonl").dataset() for one in (first, second)]
    xr.testing.assert_equal(*histories)
    assert (Path(second["record"]) / "predictions.csv").exists()


def test_a_record_says_what_each_rank_took(tmp_path: Path) -> None:
    before = time.process_time()
    payload = _payload(tmp_path, epochs=1)
    train(payload)
    usage = records.read(payload["record"])["usage"]
    (rank,) = usage["ranks"]
    assert (rank["rank"], rank["host"]) == (0, os.uname().nodename)
    assert 0 < rank["cpu_s"] <= time.process_time() - before + 1e-3
    # TensorFlow alone is over 100 MB; the kernel's two counts differ by what single threads have not yet added
    assert 1e8 < rank["peak_memory_bytes"] <= 1.05 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert usage["wall_s"] > 0


def test_failure_is_written_with_type_message_rank_host_and_step_and_raised(tmp_path: Path) -> None:
    payload = _payload(tmp_path, fault="raise")
    with pytest.raises(OSError, match="the disk is gone"):
        train(payload)
    state = records.read(payload["record"])
    assert state["status"] == "failed"
    error = state["error"]
    assert (error["type"], error["message"], error["rank"]) == ("OSError", "the disk is gone", 0)
    assert error["host"] == os.uname().nodename
    assert error["step"] == 3  # before the third batch
    assert "OSError: the disk is gone" in (Path(payload["record"]) / "logs" / "rank-0.log").read_text()


def test_diverged_run_fails_with_the_step_and_keeps_its_metrics(tmp_path: Path) -> None:
    payload = _payload(tmp_path, fault="nan")
    with pytest.raises(RunError, match="loss is nan") as caught:
        train(payload)
    error = records.read(payload["record"])["error"]
    assert f"at step {error['step']} " in str(caught.value)
    events, _ = read_events(Path(payload["record"]) / "metrics.jsonl")
    assert [event for event in events if event.name == "train/loss"][-1].value != 0


def test_sigint_leaves_an_interrupted_record_and_a_checkpoint(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    payload = _payload(tmp_path, epochs=4, fault="sigint")
    result = train(payload)
    assert result["status"] == "interrupted"
    assert result["steps"] in (9, 10)  # asked before the ninth batch
    assert signal.getsignal(signal.SIGINT) is before
    record = records.Record(Path(payload["record"]))
    assert record.read()["status"] == "interrupted"
    assert (record.checkpoints_dir / f"step-{result['steps']:08d}.npz").exists()


def test_payload_that_lacks_something_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="lacks config, resume_from"):
        train({"run": "x", "record": str(tmp_path)})


def test_config_that_can_not_be_used_fails_the_record(tmp_path: Path) -> None:
    payload = _payload(tmp_path)
    text = payload["config"].replace('"toy"', '"toyy"')
    with pytest.raises(NotFoundError, match=r"unknown recipe 'toyy'; did you mean 'toy'\?"):
        train({**payload, "config": text})
    assert records.read(payload["record"])["error"]["type"] == "NotFoundError"
    payload = _payload(tmp_path)
    with pytest.raises(ConfigError, match="unknown setting"):
        train({**payload, "config": payload["config"].replace("learning_rate", "learning_race", 1)})


def test_missing_horovod_names_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", None)
    with pytest.raises(EnvironmentNotFitError, match=r"Horovod can't be used: .*run env/setup"):
        collectives.make("horovod")


def test_horovod_of_another_mpi_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # four ranks were launched, and Horovod, linked with another MPI, finds itself alone
    alone = SimpleNamespace(rank=lambda: 0, size=lambda: 1, local_rank=lambda: 0, local_size=lambda: 1)
    monkeypatch.setattr(collectives, "_horovod", lambda: alone)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    monkeypatch.setenv("PMI_SIZE", "4")
    with pytest.raises(EnvironmentNotFitError, match=r"Horovod sees a world of 1 rank\(s\).* 4: .*another MPI"):
        collectives.make("horovod")
