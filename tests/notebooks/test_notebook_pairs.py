"""Every notebook as it lies there: a pair of files that say the same, stripped, with parameters and without programs."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module", params=NOTEBOOKS, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.fixture(scope="module")
def notebook(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def test_there_are_notebooks_and_each_has_its_pair() -> None:
    folder = Path(__file__).parents[2] / "notebooks"
    assert {"00_tour", "01_pools"} <= {path.stem for path in NOTEBOOKS}
    assert [path.stem for path in NOTEBOOKS] == sorted(path.stem for path in folder.glob("*.py"))


def code(notebook: Any) -> list[str]:
    """As Python: magics are calls."""
    transform = TransformerManager().transform_cell
    return [transform(cell.source) for cell in notebook.cells if cell.cell_type == "code"]


def test_both_files_of_the_pair_say_the_same(path: Path, notebook: Any) -> None:
    nbformat.validate(notebook)
    pair = jupytext.read(path.with_suffix(".py"))
    of = [
        [(cell.cell_type, cell.source, cell.metadata.get("tags", [])) for cell in nb.cells] for nb in (notebook, pair)
    ]
    assert of[0] == of[1]
    assert notebook.metadata.kernelspec.name == pair.metadata.kernelspec.name == "sciml"


def test_outputs_are_stripped(notebook: Any) -> None:
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


def test_every_parameter_is_an_annotated_literal_with_a_word_on_it(notebook: Any) -> None:
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    types = {"int": int, "float": float, "str": str, "bool": bool}
    for line, statement in zip(cell.source.splitlines(), ast.parse(cell.source).body, strict=True):
        assert isinstance(statement, ast.AnnAssign), line
        assert isinstance(statement.annotation, ast.Name), line
        assert statement.value is not None, line
        assert type(ast.literal_eval(statement.value)) is types[statement.annotation.id], line
        assert "  # " in line
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    assert first is cell


def test_it_holds_no_path_no_job_and_no_program_of_its_own(notebook: Any) -> None:
    for source in code(notebook):
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not re.search(r"^[/~]|\.\./|^[A-Z]:\\", node.value), f"a path: {node.value!r}"
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                assert node.end_lineno - node.lineno < 10, f"{node.name} belongs into the package"
        assert "import os" not in source
        assert not re.search(r"job_?id|SLURM|\b\d{8}T\d{6}Z\b", source)
