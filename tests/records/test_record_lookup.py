"""find, list_runs and show: what is looked at after the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from record_helpers import make

from sciml_kernel.contracts import MetricEvent
from sciml_kernel.errors import NotFoundError
from sciml_kernel.metrics.jsonl import JsonlSink
from sciml_kernel.records import Record, find, list_runs, show, this_process


def with_loss(record: Record, *values: float) -> Record:
    with JsonlSink(record.metrics_path) as sink:
        for step, value in enumerate(values):
            sink.publish([MetricEvent(record.id, 0, step, step, "val/loss", value, "", 1.0)])
            sink.publish([MetricEvent(record.id, 0, step, step, "train/samples_per_s", 10.0 * value, "1/s", 1.0)])
    return record


def test_runs_are_listed_newest_first_with_their_last_loss(tmp_path: Path) -> None:
    batch = make(tmp_path, "tour", kind="batch")
    child = with_loss(make(tmp_path, ranks=2, parent=batch.id), 0.5, 0.25)
    child.start()
    child.close("failed", {"type": "ValueError", "message": "bad"})
    table = list_runs(tmp_path)
    assert table["id"].tolist() == [child.id, batch.id]
    row = table.iloc[0]
    assert (row["name"], row["kind"], row["status"], row["recipe"]) == ("cosmoflow", "train", "failed", "cosmoflow")
    assert (row["ranks"], row["val/loss"], row["parent"]) == (2, 0.25, batch.id)
    assert row["reason"] == "ValueError: bad"
    assert 0 <= row["seconds"] < 30
    assert row["started"].tzinfo is not None
    assert pd.isna(table.iloc[1]["val/loss"])
    assert pd.isna(table.iloc[1]["ranks"])


def test_a_broken_record_is_a_row_and_not_an_error(tmp_path: Path) -> None:
    good, torn, empty, odd, wrong = (make(tmp_path) for _ in range(5))
    (torn.path / "record.json").write_text((torn.path / "record.json").read_text()[:100])
    (empty.path / "record.json").unlink()
    (odd.path / "config.json").write_text('{"recipe":"changed"}')
    text = (wrong.path / "record.json").read_text().replace('"started_utc": null', '"started_utc": "yesterday"')
    (wrong.path / "record.json").write_text(text)
    (tmp_path / "notes.txt").write_text("no run")
    (tmp_path / "tour").mkdir()  # a folder of parameter files
    (tmp_path / ".creating-00").mkdir()
    (tmp_path / ".creating-00" / "config.json").write_text("{}")
    table = list_runs(tmp_path).set_index("id")
    assert set(table.index) == {record.id for record in (good, torn, empty, odd, wrong)}
    assert table.loc[good.id, "status"] == "created"
    for record, reason in [
        (torn, "can't be read"),
        (empty, "no run record"),
        (odd, "was changed"),
        (wrong, "yesterday"),
    ]:
        assert table.loc[record.id, "status"] == "unreadable"
        assert reason in table.loc[record.id, "reason"]


@pytest.mark.parametrize("exists", [True, False])
def test_no_runs_give_an_empty_table_with_its_columns(tmp_path: Path, exists: bool) -> None:
    table = list_runs(tmp_path if exists else tmp_path / "none")
    assert len(table) == 0
    assert {"id", "status", "val/loss"} <= set(table.columns)
    assert not (tmp_path / "none").exists()


def test_listing_tells_the_truth_about_a_vanished_owner(tmp_path: Path) -> None:
    record = make(tmp_path)
    record.start(owner={**this_process(), "pid": 2**22 + 1})
    row = list_runs(tmp_path).iloc[0]
    assert row["status"] == "failed"
    assert "owner vanished" in row["reason"]


def test_a_run_is_found_by_id_prefix_or_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = make(tmp_path, "alpha"), make(tmp_path, "beta")
    assert find(first.id, tmp_path) == first
    assert find(first.path) == first
    assert find(second.id[:-8], tmp_path) == second
    monkeypatch.setenv("SCIML_RUNS", str(tmp_path))
    assert find(second.id) == second


def test_a_run_that_is_not_there_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there are no runs in"):
        find("x", tmp_path)
    first, second = make(tmp_path, "alpha"), make(tmp_path, "alpha")
    with pytest.raises(NotFoundError, match=rf"did you mean '{first.id}'"):
        find(first.id.replace("alpha", "alhpa"), tmp_path)
    with pytest.raises(NotFoundError, match=r"the newest is") as caught:
        find("zzz", tmp_path)
    assert second.id in str(caught.value)
    with pytest.raises(NotFoundError, match="2 runs begin with"):
        find(first.id[:8], tmp_path)  # the day
    with pytest.raises(NotFoundError):
        find("", tmp_path)  # every id begins with nothing


def test_show_says_what_ran_and_how_it_ended(tmp_path: Path) -> None:
    data = {"path": "/data/u", "size": 2_500_000, "sha256": "abcd"}
    record = with_loss(make(tmp_path, ranks=2, seeds={"train": 3}, data=data, launch=["mpiexec", "-n", "2"]), 0.5, 0.25)
    record.start()
    assert f"running (owner alive: process {os.getpid()}" in show(record)
    record.update(cells=[{"index": 0, "status": "completed", "seconds": 1.26}])
    record.close("failed", {"type": "ValueError", "message": "bad\nworse", "rank": 1, "step": 7})
    text = show(record)
    for part in [
        f"run       {record.id}",
        "status    failed",
        "ranks     2 on ",
        "seeds     train 3",
        "data      /data/u, 2.5 MB, sha256 abcd",
        "launch    mpiexec -n 2",
        "error     ValueError: bad (rank 1, step 7)",
        "          worse",
        "cell 0    completed 1.3 s",
        "metric    val/loss             0.25  (step 1, epoch 1)",
        "metric    train/samples_per_s  2.5 1/s  (step 1, epoch 1)",
    ]:
        assert part in text.replace(f"{record.path}", ""), part


def test_show_survives_broken_metrics(tmp_path: Path) -> None:
    record = make(tmp_path)
    record.metrics_path.write_text("{broken\n")
    assert "metrics   unreadable" in show(record)


def test_listing_loads_no_heavy_library(tmp_path: Path) -> None:
    make(tmp_path)
    code = (
        f"import sys; from sciml_kernel.records import list_runs; assert len(list_runs({str(tmp_path)!r})) == 1\n"
        "print([m for m in ('tensorflow', 'mpi4py', 'dask', 'xarray', 'IPython', 'ipyparallel') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "[]"
