from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sciml_kernel.contracts import MetricEvent
from sciml_kernel.errors import UsageError
from sciml_kernel.metrics import history as module
from sciml_kernel.metrics.history import HistoryReader, history
from sciml_kernel.metrics.jsonl import JsonlSink


def event(
    name: str, step: int, epoch: int, value: float, *, rank: int = 0, unit: str = "", run: str = "r"
) -> MetricEvent:
    return MetricEvent(run, rank, step, epoch, name, value, unit, 100.0 * step + epoch)


EVENTS = [
    event("train/loss", 2, 0, 0.9),
    event("train/samples_per_s", 2, 0, 11.0, unit="1/s"),
    event("val/loss", 4, 0, 0.8),
    event("train/loss", 4, 0, 0.7),
    event("baseline/mean/sigma_8", 4, 0, 0.05),
    event("train/loss", 6, 1, 0.5),
    event("val/loss", 8, 1, 0.4),
]


def test_train_metrics_lie_on_steps_and_validation_on_epochs() -> None:
    ds = history(EVENTS)
    assert ds["train/loss"].dims == ("step",)
    assert ds["val/loss"].dims == ("epoch",)
    assert ds["step"].values.tolist() == [2, 4, 6]
    assert ds["epoch"].values.tolist() == [0, 1]
    assert ds["train/loss"].values.tolist() == [0.9, 0.7, 0.5]
    assert ds["val/loss"].sel(epoch=1) == 0.4
    np.testing.assert_array_equal(ds["train/samples_per_s"], [11.0, np.nan, np.nan])
    np.testing.assert_array_equal(ds["baseline/mean/sigma_8"], [0.05, np.nan])


def test_steps_epochs_and_times_can_be_told_from_each_other() -> None:
    ds = history(EVENTS)
    assert ds["epoch_of_step"].values.tolist() == [0, 0, 1]
    assert ds["step_of_epoch"].values.tolist() == [4, 8]
    assert ds["wall_time_s"].values.tolist() == [200.0, 400.0, 601.0]
    assert ds["epoch_wall_time_s"].values.tolist() == [400.0, 801.0]
    assert ds["train/samples_per_s"].attrs["units"] == "1/s"
    assert ds.attrs["run"] == "r"


def test_a_step_reported_again_after_a_resume_wins() -> None:
    ds = history([*EVENTS, event("train/loss", 4, 0, 0.33), event("val/loss", 9, 1, 0.22)])
    assert ds["train/loss"].values.tolist() == [0.9, 0.33, 0.5]
    assert ds["val/loss"].values.tolist() == [0.8, 0.22]
    assert ds["step_of_epoch"].values.tolist() == [4, 9]


def test_only_a_metric_of_several_ranks_has_a_rank_dimension() -> None:
    times = [event("train/step_s", step, 0, 10 * step + rank, rank=rank) for step in (1, 2) for rank in (3, 1)]
    ds = history([*times[:3], event("train/loss", 1, 0, 0.5)])
    assert ds["train/step_s"].dims == ("step", "rank")
    assert ds["rank"].values.tolist() == [1, 3]
    # (step 2, rank 1) was never reported
    np.testing.assert_array_equal(ds["train/step_s"], [[11, 13], [np.nan, 23]])
    assert ds["train/loss"].dims == ("step",)
    assert "rank" not in history(EVENTS).dims


def test_events_of_two_runs_are_not_mixed() -> None:
    both = [*EVENTS, event("train/loss", 2, 0, 7.0, run="s")]
    with pytest.raises(UsageError, match="2 runs: r, s"):
        history(both)
    assert history(both, run="s")["train/loss"].values.tolist() == [7.0]


def test_no_events_give_an_empty_dataset_with_both_axes() -> None:
    ds = history([])
    assert dict(ds.sizes) == {"step": 0, "epoch": 0}
    assert not ds.data_vars


def test_a_diverged_loss_is_seen_as_it_is() -> None:
    assert np.isposinf(history([event("train/loss", 1, 0, np.inf)])["train/loss"].values[0])


def test_a_reader_takes_only_the_new_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.jsonl"
    reader = HistoryReader(path)
    assert dict(reader.dataset().sizes) == {"step": 0, "epoch": 0}
    offsets: list[int] = []
    read = module.read_events
    monkeypatch.setattr(module, "read_events", lambda p, offset: offsets.append(offset) or read(p, offset))
    with JsonlSink(path) as sink:
        sink.publish(EVENTS[:3])
        assert reader.dataset().identical(history(EVENTS[:3]))
        size = path.stat().st_size
        sink.publish(EVENTS[3:])
    assert reader.dataset().identical(history(EVENTS))
    assert offsets == [0, size]


def test_a_replaced_file_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    with JsonlSink(path) as sink:
        sink.publish(EVENTS)
    reader = HistoryReader(path)
    reader.dataset()
    path.unlink()
    with JsonlSink(path) as sink:
        sink.publish(EVENTS[:1])
    assert reader.dataset().identical(history(EVENTS[:1]))
