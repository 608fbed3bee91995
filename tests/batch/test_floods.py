"""What a cell prints never breaks a run, nor makes its notebook heavy."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from sciml_kernel.batch import run_notebook

pytestmark = [pytest.mark.notebook, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

NOTEBOOKS = Path(__file__).parent / "notebooks"


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [("flood_of_lines", "line 0\nline 1\n", "line 49999\n"), ("progress_bar", "step 10000 of 10000 [####", "]")],
)
def test_a_flood_leaves_a_small_notebook_and_the_whole_log(
    kernel: None, folder: Path, name: str, first: str, last: str
) -> None:
    record = run_notebook(NOTEBOOKS / f"{name}.py")
    assert record.read()["status"] == "completed"
    notebook = record.path / "notebook.ipynb"
    assert notebook.stat().st_size < 100_000
    *_, flood, after = nbformat.read(notebook, as_version=4).cells
    (output,) = flood.outputs
    assert output.text.startswith(first)
    assert output.text.endswith(last)
    assert after.outputs[0].text == "reached\n"
    log = (record.path / "logs" / "notebook.log").read_bytes()
    n = log.count(b"line ") if name == "flood_of_lines" else log.count(b"\rstep ")
    assert n == {"flood_of_lines": 50_000, "progress_bar": 10_001}[name]
