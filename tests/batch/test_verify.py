"""A run is verified: its files, and its numbers by running it again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest

from sciml_kernel import records
from sciml_kernel.batch import run_notebook, verify
from sciml_kernel.batch.verify import Number, compare_numbers
from sciml_kernel.records import Record
from sciml_kernel.testing.notebooks import write_notebook

pytestmark = [pytest.mark.notebook, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

DRAWS = """
import numpy as np, pathlib, sciml_kernel as sk
random = np.random.default_rng(seed or None)
sk.note("mean", random.normal(size=n).mean())
sk.note("n", n)
pathlib.Path("count").open("a").write("x")
"""


@pytest.fixture
def seeded(kernel: None, folder: Path) -> Record:
    notebook = write_notebook(folder / "draws.ipynb", DRAWS, parameters="seed: int = 0\nn = 10\nwhen = (1, None)")
    record = run_notebook(notebook, {"seed": 7, "n": 100})
    assert record.read()["status"] == "completed"
    return record


def test_a_seeded_run_gives_the_same_numbers_again(seeded: Record, folder: Path) -> None:
    (folder / "draws.ipynb").unlink()  # what ran is in the record
    found = verify.again(seeded)
    assert found.holds, found.text()
    expected = np.random.default_rng(7).normal(size=100).mean()
    assert [(one.metric, one.recorded, one.verdict) for one in found.numbers] == [
        ("result/mean", expected, "identical"),
        ("result/n", 100.0, "identical"),
    ]
    assert (folder / "count").read_text() == "xx"  # it did run again, in the same folder
    assert found.again is not None
    new = records.find(found.again).read()
    assert new["digest"] == seeded.read()["digest"]
    assert new["extra"]["verifies"] == seeded.id


def test_a_run_without_a_seed_does_not_hold_and_says_why(kernel: None, folder: Path) -> None:
    notebook = write_notebook(folder / "draws.ipynb", DRAWS, parameters="seed: int = 0\nn = 10")
    found = verify.again(run_notebook(notebook))
    assert not found.holds
    assert [one.verdict for one in found.numbers] == ["differs", "identical"]
    (problem,) = found.problems
    assert "1 of 2 numbers differ by more than 1e-06" in problem
    assert "a seed that is not set" in problem


def test_a_run_that_fails_now_does_not_hold(seeded: Record, folder: Path) -> None:
    (folder / "count").unlink()
    (folder / "count").mkdir()
    found = verify.again(seeded)
    assert not found.holds
    assert "failed, the recorded one completed: IsADirectoryError" in found.problems[0]


def test_tolerance_is_relative_and_the_smallest_power_of_ten_is_said() -> None:
    then = {"a": 1.0, "b": 1e6, "c": 1.0, "gone": 1.0}
    now = {"a": 1.0 + 3e-9, "b": 1e6 + 10, "c": 1.0, "fresh": 2.0}
    found = compare_numbers(then, now, rtol=1e-6)
    assert [(one.metric, one.verdict, one.holds) for one in found] == [
        ("a", "within 1e-08", True),
        ("b", "differs", False),  # 1e-5
        ("c", "identical", True),
        ("gone", "missing now", False),
        ("fresh", "new", True),
    ]
    assert compare_numbers(then, now, rtol=1e-4)[1] == Number("b", 1e6, 1e6 + 10, 10 / (1e6 + 10), "within 1e-05")


def change_config(record: Record) -> str:
    path = record.path / "config.json"
    path.write_text(path.read_text().replace("100", "101"))
    return "config.json is not what was run"


def tear_metrics(record: Record) -> str:
    path = record.metrics_path
    path.write_text("{\n" + path.read_text())
    return "line 1: not a metric event"


def tear_notebook(record: Record) -> str:
    path = record.path / "notebook.ipynb"
    path.write_text(path.read_text()[:100])
    return "notebook.ipynb"


def spoil_checkpoint(record: Record) -> str:
    (record.checkpoints_dir / "step-00000001.npz").write_bytes(b"nothing")
    return "step-00000001.npz is truncated or damaged"


def change_data(record: Record) -> str:
    (record.path.parent / "data.bin").write_bytes(b"other")
    return "data.bin has another content"


@pytest.mark.parametrize("damage", [change_config, tear_metrics, tear_notebook, spoil_checkpoint, change_data])
def test_a_look_at_the_files_finds_what_was_changed(
    seeded: Record, damage: Callable[[Record], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sciml_kernel.records.hashes import describe_file

    file = seeded.path.parent / "data.bin"
    file.write_bytes(b"bytes")
    seeded.update(data=describe_file(file))
    assert verify.check(seeded).problems == []
    words = damage(seeded)
    problems = verify.check(seeded).problems
    assert len(problems) == 1
    assert words in problems[0]


def test_what_is_different_around_the_run_is_said_and_decides_nothing(seeded: Record) -> None:
    path = seeded.path / "record.json"
    content: dict[str, Any] = json.loads(path.read_text())
    numpy = content["versions"]["numpy"]
    content["versions"]["numpy"] = "0.1"
    path.write_text(json.dumps(content))
    found = verify.check(seeded)
    assert found.environment == {"versions.numpy": ["0.1", numpy]}
    assert found.holds
    assert f"different  versions.numpy: '0.1' then, {numpy!r} now" in found.text()
    json.dumps(found.to_json(), allow_nan=False)


def test_the_new_run_has_the_cells_of_the_old_one(seeded: Record) -> None:
    found = verify.again(seeded)
    assert found.again is not None
    old, new = (
        [(cell.cell_type, cell.source) for cell in nbformat.read(one.path / "notebook.ipynb", as_version=4).cells]
        for one in (seeded, records.find(found.again))
    )
    old.pop(1), new.pop(1)  # the given parameters: then those that were given, now all of them
    assert old == new
