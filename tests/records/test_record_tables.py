"""What runs reported and what they differ in, as tables that other programs read."""

from __future__ import annotations

import hashlib
import io
import json
import math
from pathlib import Path

import pandas as pd
import pytest
from record_helpers import make

from sciml_kernel.config.digest import canonical_json
from sciml_kernel.contracts import MetricEvent
from sciml_kernel.errors import UsageError
from sciml_kernel.metrics.jsonl import JsonlSink
from sciml_kernel.records import Record, compare, create, final_values, hashes, note, runs_table, tidy, write_table
from sciml_kernel.records.compare import relative_difference


def reported(record: Record, **values: list[float]) -> Record:
    with JsonlSink(record.metrics_path) as sink:
        for name, series in values.items():
            metric = name.replace("__", "/")
            sink.publish(MetricEvent(record.id, 0, i, i, metric, v, "", 1.5) for i, v in enumerate(series, start=1))
    return record


@pytest.fixture
def batch(tmp_path: Path) -> Record:
    batch = make(tmp_path, "tour", kind="batch")
    for losses in ([0.5, 0.25], [0.4, math.nan]):
        reported(make(tmp_path, parent=batch.id), val__loss=losses, train__samples_per_s=[10.0, 11.0])
    return batch


def test_the_numbers_of_a_batch_are_those_of_its_runs(batch: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCIML_PARENT_RUN", str(batch.path))
    assert note("error_of_p_k", 0.5) == 0.5
    note("error_of_p_k", 0.03, unit="1")  # the newer one counts
    found = final_values(batch)
    assert found.keys() == {"result/error_of_p_k", "cosmoflow:val/loss", "cosmoflow-2:val/loss"}
    assert (found["result/error_of_p_k"], found["cosmoflow:val/loss"]) == (0.03, 0.25)
    assert math.isnan(found["cosmoflow-2:val/loss"])
    assert "cosmoflow:train/samples_per_s" in final_values(batch, timings=True)


def test_a_note_by_hand_keeps_nothing_and_a_note_of_no_number_is_refused() -> None:
    assert note("x", 2) == 2.0
    with pytest.raises(UsageError, match=r"takes a number, got 'many'"):
        note("x", "many")  # type: ignore[arg-type]


def test_the_tidy_table_has_a_row_a_number(batch: Record) -> None:
    table = tidy([batch])
    assert table["part"].tolist() == ["cosmoflow"] * 4 + ["cosmoflow-2"] * 4
    row = table.iloc[1]
    assert (row["run"], row["metric"], row["step"], row["epoch"], row["value"]) == (batch.id, "val/loss", 2, 2, 0.25)
    assert table["wall_time_s"].tolist() == [1.5] * 8


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_a_table_comes_back_from_its_file_as_it_was(batch: Record, tmp_path: Path, kind: str) -> None:
    table = tidy([batch])
    path = tmp_path / f"t.{kind}"
    assert write_table(table, path) is None
    back = getattr(pd, f"read_{kind}")(path)
    back = back.assign(**{name: back[name].astype(object).fillna("") for name in ("part", "unit")})  # CSV has no ""
    table = table.astype({"part": object, "unit": object})
    pd.testing.assert_frame_equal(back, table, check_dtype=kind == "parquet", check_exact=True)


def test_a_row_a_run_holds_settings_of_any_type(tmp_path: Path) -> None:
    runs = [
        create("n", canonical_json({"parameters": {"x": x}}), root=tmp_path, kind="batch")
        for x in (1, "a", [1, 2], None)
    ]
    table = runs_table(runs)
    assert table["config.parameters.x"].tolist() == [1, "a", [1, 2], None]
    write_table(table, tmp_path / "runs.parquet")  # where a column has one type
    column = pd.read_parquet(tmp_path / "runs.parquet")["config.parameters.x"]
    assert column.tolist()[:3] == ["1", "a", "[1, 2]"]
    assert pd.isna(column[3])
    text = write_table(table, None)
    assert text is not None
    assert pd.read_csv(io.StringIO(text))["id"].tolist() == [run.id for run in runs]


def test_an_unknown_format_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'parquet'"):
        write_table(pd.DataFrame(), tmp_path / "t.parque")
    with pytest.raises(UsageError, match="--to"):
        write_table(pd.DataFrame(), None, "parquet")
    with pytest.raises(UsageError, match="can't be written"):
        write_table(pd.DataFrame(), tmp_path / "no" / "t.csv")


def test_a_comparison_holds_what_differs_and_all_results(tmp_path: Path) -> None:
    runs = []
    for lr, losses in ((0.1, [0.5]), (0.2, [0.25])):
        config = canonical_json({"recipe": "cosmoflow", "optim": {"lr": lr}, "train": {"epochs": 2}})
        runs.append(reported(create("cosmoflow", config, root=tmp_path, ranks=2), val__loss=losses))
    content = json.loads((runs[1].path / "record.json").read_text())
    content["versions"]["numpy"] = "1.0"
    content["versions"].pop("scipy")
    (runs[1].path / "record.json").write_text(json.dumps(content))
    found = compare(runs)
    before = runs[0].read()["versions"]
    assert found.config == {"optim.lr": [0.1, 0.2]}
    assert found.environment == {
        "versions.numpy": [before["numpy"], "1.0"],
        "versions.scipy": [before["scipy"], None],
    }
    assert found.metrics == {"val/loss": [0.5, 0.25]}
    assert found.status["ranks"] == [2, 2]
    json.dumps(found.to_json(), allow_nan=False)
    with pytest.raises(UsageError, match="two runs or more"):
        compare(runs[:1])


def test_relative_difference() -> None:
    assert relative_difference(1.0, 1.0) == 0
    assert relative_difference(math.nan, math.nan) == 0
    assert relative_difference(2.0, 1.0) == relative_difference(-1.0, -2.0) == 0.5
    assert relative_difference(0.0, 1e-300) == 1
    assert relative_difference(1.0, math.nan) == relative_difference(1.0, math.inf) == math.inf


def test_a_file_is_described_by_the_hash_of_all_of_it(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "b").write_bytes(b"two")
    (tmp_path / "d" / "a").write_bytes(b"one")
    found = hashes.describe_files([tmp_path / "d", tmp_path / "d" / "a"])
    assert [(Path(entry["path"]).name, entry["size"], entry["sha256"]) for entry in found] == [
        ("a", 3, hashlib.sha256(b"one").hexdigest()),
        ("b", 3, hashlib.sha256(b"two").hexdigest()),
    ]
    assert hashes.differences(found[0]) == ""
    (tmp_path / "d" / "a").write_bytes(b"ONE")
    assert hashes.differences(found[0]) == "has another content"
    (tmp_path / "d" / "a").write_bytes(b"longer")
    assert hashes.differences(found[0]) == "has 6 bytes, had 3"
    (tmp_path / "d" / "a").unlink()
    assert "can't be read" in hashes.differences(found[0])


def test_a_large_file_is_sampled_from_end_to_end_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes, "WHOLE_BYTES", 100)
    monkeypatch.setattr(hashes, "_BLOCK", 10)
    path = tmp_path / "large"
    path.write_bytes(bytes(2000))
    entry = hashes.describe_file(path)
    assert "sha256" not in entry
    assert entry["sampled"].startswith("64 blocks")
    for position in (0, 9, 1990, 1999):
        changed = bytearray(2000)
        changed[position] = 1
        path.write_bytes(changed)
        assert hashes.differences(entry) == "has another content"
