"""papermill's own command with our engine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jupytext
import nbformat
import pytest

from sciml_kernel import records
from sciml_kernel.records import Record

pytestmark = [pytest.mark.notebook]

NOTEBOOKS = Path(__file__).parent / "notebooks"
Papermill = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def papermill(kernel: None, folder: Path) -> Papermill:
    def run(name: str, *options: str) -> subprocess.CompletedProcess[str]:
        node = jupytext.read(NOTEBOOKS / f"{name}.py")
        node.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        jupytext.write(node, folder / f"{name}.ipynb")
        command = [sys.executable, "-m", "papermill", "--engine", "sciml", f"{name}.ipynb", "out.ipynb", *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=100)

    return run


def the_record() -> Record:
    (path,) = records.runs_root().glob("*/record.json")
    return Record(path.parent)


def said(path: Path) -> str:
    cells = nbformat.read(path, as_version=4).cells
    return "".join(output.get("text", "") for cell in cells for output in cell.get("outputs", []))


def test_a_run_leaves_record_notebook_and_page(papermill: Papermill, folder: Path) -> None:
    answer = papermill("parameters", "-p", "epochs", "5", "-r", "name", "007", "--log-output")
    assert answer.returncode == 0, answer.stderr
    record = the_record()
    content = record.read()
    assert (content["status"], content["name"]) == ("completed", "parameters")
    assert record.config()["parameters"] == {"epochs": 5, "name": "007", "sizes": [1, 2], "rate": 1e-3}
    assert "papermill" in content["launch"]
    for path in (record.path / "notebook.ipynb", folder / "out.ipynb"):
        assert "(5, '007', (1, 2), 0.001)" in said(path)
    assert nbformat.read(folder / "out.ipynb", 4).metadata.papermill.sciml == {
        "record": str(record.path),
        "status": "completed",
    }
    assert (record.path / "notebook.html").exists()
    assert list((record.path / "figures").glob("*.png"))
    assert "(5, '007', (1, 2), 0.001)" in answer.stderr  # --log-output


def test_values_come_as_the_notebook_declares_them(papermill: Papermill, folder: Path) -> None:
    (folder / "p.yaml").write_text("sizes: [4, 5]\nrate: 1\n")  # a list and a whole number in YAML
    assert papermill("parameters", "-f", "p.yaml").returncode == 0
    assert "(3, 'a', (4, 5), 1.0)" in said(folder / "out.ipynb")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("-p", "epoch", "5"), "no parameter 'epoch'; did you mean 'epochs'"),
        (("-p", "epochs", "many"), "parameter epochs must be int"),
        (("-p", "name", "007"), "parameter name must be str (default 'a'), got 7"),  # papermill made a number of it
    ],
)
def test_what_the_notebook_does_not_take_is_refused_before_anything_runs(
    papermill: Papermill, folder: Path, options: tuple[str, ...], words: str
) -> None:
    answer = papermill("parameters", *options)
    assert answer.returncode != 0
    assert words in answer.stderr
    assert list(records.runs_root().iterdir()) == []


def test_a_failed_cell_fails_papermill_and_the_record(papermill: Papermill, folder: Path) -> None:
    answer = papermill("failed_cell")
    assert answer.returncode != 0
    assert "no good" in answer.stderr
    content = the_record().read()
    assert (content["status"], content["error"]["cell"]) == ("failed", 2)
    assert [cell["status"] for cell in content["cells"]] == ["completed", "failed", "not_run"]
    assert "the last line" in said(folder / "out.ipynb")


def test_a_dead_kernel_fails_papermill_and_is_no_completed_cell(papermill: Papermill, folder: Path) -> None:
    answer = papermill("crashed_kernel")
    assert answer.returncode != 0
    assert the_record().read()["error"]["signal"] == "SIGSEGV"
    cells = nbformat.read(folder / "out.ipynb", 4).cells
    states = [cell.metadata.papermill.status for cell in cells if "papermill" in cell.metadata]  # not papermill's notes
    assert states == ["completed", "failed", "pending"]  # the first is no code


def test_a_cell_over_papermills_time_limit_is_a_timeout(papermill: Papermill) -> None:
    answer = papermill("swallows_the_interrupt", "--execution-timeout", "2")
    assert answer.returncode != 0
    assert the_record().read()["status"] == "timeout"
