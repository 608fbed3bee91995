"""The function that a pool calls: JSON in, JSON out, and a record that says how it ended."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import toy

from sciml_kernel import config as configs
from sciml_kernel import records, registry
from sciml_kernel.engine import collective as collectives
from sciml_kernel.engine.entry import train
from sciml_kernel.errors import ConfigError, EnvironmentNotFitError, NotFoundError, RunError
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
    events, _ = read_events(Path(second["record"]) / "metrics.jsonl")
    assert [event.step for event in events if event.name == "train/loss"] == list(range(7, 13))


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
