"""`sciml runs compare|verify|export`, as a person types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sciml_kernel import records
from sciml_kernel.batch import run_notebook
from sciml_kernel.testing.notebooks import write_notebook

pytestmark = [pytest.mark.notebook, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

WAVE = (
    "import sciml_kernel as sk\nsk.note('area', side * height)\nimport random\nsk.note('luck', random.random() * luck)"
)


def sciml(*words: str) -> subprocess.CompletedProcess[str]:
    program = str(Path(sys.executable).with_name("sciml"))
    return subprocess.run([program, *words], capture_output=True, text=True, timeout=100)


@pytest.fixture
def ids(kernel: None, folder: Path) -> list[str]:
    notebook = write_notebook(folder / "wave.ipynb", WAVE, parameters="side = 2.0\nheight = 3.0\nluck = 0.0")
    return [run_notebook(notebook, given).id for given in ({}, {"height": 4.0})]


def test_compare_says_what_differs(ids: list[str], folder: Path) -> None:
    answer = sciml("runs", "compare", *ids, "--json")
    assert answer.returncode == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)
    assert found["config"] == {"parameters.height": [3.0, 4.0]}
    assert found["metrics"] == {"result/area": [6.0, 8.0], "result/luck": [0.0, 0.0]}
    assert found["environment"] == {}
    text = sciml("runs", "compare", *ids).stdout
    assert "parameters.height" in text
    assert "environment: no difference" in text
    drawn = sciml("runs", "compare", *ids, "--figure", "c.png")
    assert drawn.returncode == 2
    assert "no metric to draw" in drawn.stderr  # one number each is no curve
    assert sciml("runs", "compare", ids[0]).returncode == 2
    assert "no run" in sciml("runs", "compare", ids[0], "missing").stderr


def test_export_writes_what_pandas_reads(ids: list[str], folder: Path) -> None:
    assert sciml("runs", "export", *ids, "--to", "t.parquet").returncode == 0
    table = pd.read_parquet("t.parquet")
    assert table[table["metric"] == "result/area"]["value"].tolist() == [6.0, 8.0]
    rows = json.loads(sciml("runs", "export", ids[1], "--table", "runs", "--json").stdout)
    assert (rows[0]["config.parameters.height"], rows[0]["result/area"]) == (4.0, 8.0)
    assert sciml("runs", "export", ids[0]).stdout.splitlines()[0].startswith("run,part,metric,")
    wrong = sciml("runs", "export", ids[0], "--to", "t.xls")
    assert wrong.returncode == 2
    assert "can't be written as 'xls'" in wrong.stderr


def test_verify_ends_with_what_it_found(ids: list[str], folder: Path) -> None:
    good = sciml("runs", "verify", ids[0])
    assert good.returncode == 0, good.stderr
    assert good.stdout.splitlines()[0].split() == ["result/area", "then", "6.0", "now", "6.0", "identical"]
    assert good.stdout.splitlines()[-1] == f"{ids[0]} holds"
    assert "completed" in good.stderr  # the new run's progress
    lucky = run_notebook(folder / "wave.ipynb", {"luck": 1.0})
    bad = sciml("runs", "verify", lucky.id, "--json")
    assert bad.returncode == 1
    assert [number["verdict"] for number in json.loads(bad.stdout)["numbers"]] == ["identical", "differs"]
    before = len(os.listdir(records.runs_root()))
    (lucky.path / "config.json").write_text("{}")
    static = sciml("runs", "verify", lucky.id, "--static")
    assert static.returncode == 1
    assert "config.json is not what was run" in static.stdout
    assert len(os.listdir(records.runs_root())) == before


def test_list_can_be_narrowed(ids: list[str]) -> None:
    assert {row["id"] for row in json.loads(sciml("runs", "list", "--name", "wave", "--json").stdout)} == set(ids)
    assert "no such runs" in sciml("runs", "list", "--status", "failed").stdout
