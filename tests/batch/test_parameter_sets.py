"""A file that names a notebook, its parameters and what they must give."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from sciml_kernel import records
from sciml_kernel.batch.sets import Expectation, check_sets, find_sets, read_set
from sciml_kernel.errors import NotFoundError, ParameterError
from sciml_kernel.testing.notebooks import write_notebook

pytestmark = [pytest.mark.notebook, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

PUBLISHED = Path(__file__).parents[2] / "papermill_runs"
SET = """
notebook: ../n.ipynb
parameters: {side: 2.0, label: 007}
check:
  parameters: {side: 1.5}
  expect:
    result/area: {value: 2.25, rtol: 1.0e-9}
    result/length: {at_most: %s}
"""
AREA = "import sciml_kernel as sk\nassert label == '007'\nsk.note('area', side**2)\nsk.note('length', len(label))"


@pytest.fixture
def sets(kernel: None, folder: Path) -> Path:
    write_notebook(folder / "n.ipynb", AREA, parameters="side = 1.0\nlabel = ''")
    (folder / "sets").mkdir()
    (folder / "sets" / "area.yaml").write_text(SET % 3)
    (folder / "sets" / "plain.yaml").write_text("side: 3")  # parameters only: nothing to check
    return folder / "sets"


def sciml(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).with_name("sciml")), *words], capture_output=True, text=True, timeout=100
    )


def test_a_set_is_all_that_a_batch_run_needs(sets: Path) -> None:
    answer = sciml("batch", "-f", str(sets / "area.yaml"), "--quiet")
    assert answer.returncode == 0, answer.stderr
    record = records.find(answer.stdout.strip())
    assert record.config()["parameters"] == {"side": 2.0, "label": "007"}
    assert records.final_values(record)["result/area"] == 4.0
    assert record.read()["name"] == "area"
    answer = sciml("batch", "-f", str(sets / "area.yaml"), "-p", "side", "3", "--dry-run")
    assert "side = 3.0  [given]" in answer.stdout
    answer = sciml("batch", "-f", str(sets / "plain.yaml"))
    assert answer.returncode == 2
    assert "which notebook?" in answer.stderr


def test_a_check_runs_the_toy_size_and_leaves_nothing_where_all_is_as_expected(sets: Path) -> None:
    answer = sciml("batch", "--check", str(sets), "--quiet")
    assert answer.returncode == 0, answer.stderr + answer.stdout
    assert answer.stdout.startswith("area.yaml: as expected (")
    assert list(records.runs_root().iterdir()) == []


def test_a_check_names_what_is_not_as_expected_and_keeps_the_record(sets: Path) -> None:
    (sets / "area.yaml").write_text(SET % 2)
    answer = sciml("batch", "--check", str(sets / "area.yaml"), "--json")
    assert answer.returncode == 1
    (found,) = json.loads(answer.stdout)
    assert found["problems"] == ["result/length is 3, expected -inf to 2"]
    assert found["values"] == {"result/area": 2.25, "result/length": 3.0}
    assert (Path(found["record"]) / "notebook.html").exists()


def test_a_run_that_fails_is_not_as_expected(sets: Path) -> None:
    (sets / "area.yaml").write_text((SET % 3).replace("007", "008"))
    (found,) = check_sets(sets)
    assert found.problems[0] == "the run failed: AssertionError: "
    assert found.problems[1:] == ["result/area was not reported", "result/length was not reported"]


def test_a_wrong_set_is_refused_before_any_runs(sets: Path) -> None:
    (sets / "broken.yaml").write_text((SET % 3).replace("side: 1.5", "sid: 1.5"))
    with pytest.raises(ParameterError, match="no parameter 'sid'; did you mean 'side'"):
        check_sets(sets)
    for old, new, words in [
        ("check:", "chek:", "unknown key 'chek'; did you mean 'check'"),
        ("rtol", "tol", "unknown key 'tol'"),
        ("{at_most: 3}", "3", "must be like"),
        ("at_most: 3", "at_most: many", "could not convert"),
    ]:
        (sets / "broken.yaml").write_text((SET % 3).replace(old, new))
        with pytest.raises(ParameterError, match=words):
            read_set(sets / "broken.yaml")
    with pytest.raises(NotFoundError, match="no parameter set"):
        find_sets(sets.parent)


@pytest.mark.parametrize(
    ("expected", "found", "good"),
    [
        (Expectation("m", 2.0, rtol=0.1), 2.19, True),
        (Expectation("m", 2.0, rtol=0.1), 2.21, False),
        (Expectation("m", 0.0, atol=0.1), -0.1, True),
        (Expectation("m", 2.0, rtol=0.1), math.nan, False),
        (Expectation("m", at_least=1, at_most=2), 1.0, True),
        (Expectation("m", at_least=1, at_most=2), 2.5, False),
        (Expectation("m", at_most=2), math.nan, False),
        (Expectation("m", at_most=2), None, False),
    ],
)
def test_an_expectation_is_a_value_with_tolerances_or_bounds(
    expected: Expectation, found: float | None, good: bool
) -> None:
    assert (expected.wrong(found) == "") is good


def test_every_published_set_names_a_notebook_and_parameters_that_there_are(kernel: None) -> None:
    from sciml_kernel.batch import plan

    files = sorted(PUBLISHED.glob("*.yaml"))
    assert files
    for file in files:
        one = read_set(file)
        assert one.notebook is not None
        assert plan(one.notebook, one.parameters).given.keys() == one.parameters.keys()
        assert one.expect, f"{file} says nothing of what it gives at toy size"


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.tf
@pytest.mark.horovod
@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_the_published_sets_give_what_they_expect(kernel: None) -> None:
    for found in check_sets(PUBLISHED):
        assert found.problems == [], found
