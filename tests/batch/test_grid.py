"""Variants of a notebook, side by side within a budget."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import psutil
import pytest

from sciml_kernel import records
from sciml_kernel.batch import run_grid
from sciml_kernel.batch.budget import Budget
from sciml_kernel.batch.grid import read_grid, variants
from sciml_kernel.batch.parameter_files import from_pairs
from sciml_kernel.batch.sweep import Grid, Row, plan_grid
from sciml_kernel.batch.sweep_table import NotebookTable, TerminalTable, table_rows
from sciml_kernel.batch.values import Text
from sciml_kernel.errors import ParameterError, UsageError
from sciml_kernel.records import Record
from sciml_kernel.views.shown import register_display

pytestmark = [pytest.mark.notebook, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

NOTEBOOK = Path(__file__).parent / "notebooks" / "variant.py"


def test_a_product_is_every_combination_and_a_zip_goes_row_by_row() -> None:
    grid = {"product": {"a": [1, 2], "b": ["x", "y", "z"]}, "zip": {"c": [10, 20], "d": [0.1, 0.2]}}
    found = [tuple(row.values()) for row in variants(grid)]
    assert found == [(*ab, *cd) for ab in itertools.product([1, 2], "xyz") for cd in [(10, 0.1), (20, 0.2)]]
    assert [list(row) for row in variants(grid)] == [["a", "b", "c", "d"]] * 12
    assert variants({"a": [1, 2]}) == [{"a": 1}, {"a": 2}]  # the short form
    assert variants({"product": [1, 2]}) == [{"product": 1}, {"product": 2}]  # a parameter of that name


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({"a": 1}, "a must be a list of values"),
        ({"a": "xyz"}, "a must be a list"),
        ({"a": []}, "at least one"),
        ({}, "it is empty"),
        ({"product": {}, "zip": {}}, "it is empty"),
        ({"product": {"a": [1]}, "zip": {"a": [1]}}, "a is in product and in zip"),
        ({"zip": {"a": [1], "b": [1, 2]}}, r"one length, got \{'a': 1, 'b': 2\}"),
        ({"a": [0] * 200, "b": [0] * 200}, "40000 variants; 10000 at most"),
    ],
)
def test_a_wrong_grid_is_refused(grid: dict[str, Any], words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        variants(grid)


def test_values_of_a_file_become_what_the_notebook_declares(tmp_path: Path, kernel: None) -> None:
    (tmp_path / "g.yaml").write_text("product: {x: [1, 2e-1], tag: [007]}\nzip: {bad: [yes, no]}\n")
    assert read_grid(tmp_path / "g.yaml")[0]["tag"] == Text("007", 7)
    rows = plan_grid(NOTEBOOK, tmp_path / "g.yaml")
    assert [row.varied for row in rows][:2] == [
        {"x": 1.0, "tag": "007", "bad": True},
        {"x": 1.0, "tag": "007", "bad": False},
    ]
    for grid, words in [
        ({"y": [1]}, "variant 1: the notebook has no parameter 'y'"),
        ({"x": [1, "many"]}, "variant 2: parameter x must be float"),
    ]:
        with pytest.raises(ParameterError, match=words):
            plan_grid(NOTEBOOK, grid)
    with pytest.raises(ParameterError, match="x is in the grid and given for all"):
        plan_grid(NOTEBOOK, {"x": [1]}, from_pairs([("x", "2")]))


def test_a_budget_gives_out_each_processor_and_gpu_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {4, 5, 6, 7})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a, GPU-b,GPU-c")
    budget = Budget(cores=3)
    one, two = budget.take(2), budget.take(1)
    assert one is not None
    assert two is not None
    assert (one.cpus, one.gpus) == ((4, 5), ("GPU-a", "GPU-b"))
    assert (two.cpus, two.gpus) == ((6,), ("GPU-c",))
    assert budget.take(1) is None
    budget.give_back(one)
    assert budget.take(3) is None
    budget.give_back(two)
    everything = budget.take(100)  # more than there is: it runs alone
    assert everything is not None
    assert (everything.cpus, everything.gpus) == ((4, 5, 6), ("GPU-a", "GPU-b", "GPU-c"))
    with pytest.raises(UsageError, match="at least 1 core"):
        Budget(cores=0)
    with pytest.raises(UsageError, match="there are 3 GPUs here, 4"):
        Budget(gpus=4)


def test_more_cores_than_there_are_tie_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    share = Budget(cores=4, gpus=0).take(2)
    assert share is not None
    assert (share.cpus, share.gpus) == ((), None)


def said(record: Record) -> str:
    cells = nbformat.read(record.path / "notebook.ipynb", as_version=4).cells
    return "".join(output.get("text", "") for cell in cells for output in cell.get("outputs", []))


@pytest.mark.slow
def test_variants_run_side_by_side_each_on_its_own_processor_and_gpu(
    kernel: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    cpus = sorted(os.sched_getaffinity(0))[:2]
    (folder / "signs").mkdir()
    seen: list[dict[str, int]] = []

    class Both:
        """Lets the variants end when two wait at once: then they run side by side."""

        def changed(self, grid: Grid, row: Row | None) -> None:
            seen.append(grid.counts())
            if len(list((folder / "signs").iterdir())) == 2:
                (folder / "go").touch()

        def end(self, grid: Grid) -> None: ...

    base = {"wait_for": str(folder / "go"), "signs": str(folder / "signs")}
    grid = run_grid(NOTEBOOK, {"x": [1.0, 2.0, 3.0]}, base, cores=2, watcher=Both())
    content = grid.record.read()
    assert (content["kind"], content["status"], content["error"]) == ("grid", "completed", None)
    assert content["children"] == [row.run for row in grid.rows]
    assert max(counts.get("running", 0) for counts in seen) == 2
    assert [row.values["result/square"] for row in grid.rows] == [1.0, 4.0, 9.0]
    shares = [said(records.find(str(row.run))) for row in grid.rows]
    assert sorted(shares[:2]) == [f"cpus [{cpus[i]}] gpus {i}\nsquaring\n" for i in range(2)]
    # one that follows has the share of one that has ended
    first_end = min(row.values["result/ended"] for row in grid.rows[:2])
    assert grid.rows[2].values["result/begun"] > first_end
    index = pd.read_csv(grid.record.path / "index.csv")
    assert index["x"].tolist() == [1.0, 2.0, 3.0]
    assert index["run"].tolist() == content["children"]
    assert index["result/square"].tolist() == [1.0, 4.0, 9.0]
    assert {child.read()["parent"] for child in grid.record.children()} == {grid.record.id}


@pytest.mark.slow
def test_a_failed_variant_is_named_the_others_go_on_and_a_resume_runs_only_what_is_not_done(
    kernel: None, folder: Path
) -> None:
    values = {"product": {"x": [1.0, 2.0]}, "zip": {"tag": ["a", "b"], "bad": [True, False]}}
    grid = run_grid(NOTEBOOK, values, cores=2)
    assert [row.status for row in grid.rows] == ["failed", "completed", "failed", "completed"]
    error = grid.record.read()["error"]
    assert error["message"].startswith(
        "2 of 4 variants did not complete; variant 1 (x=1.0, tag='a', bad=True) failed: "
    )
    assert error["message"].endswith("ValueError: bad a")
    (folder / "mended").touch()
    again = run_grid(resume=grid.record, cores=2)
    assert again.record.read()["status"] == "completed"
    assert [row.kept for row in again.rows] == [False, True, False, True]
    assert [row.run for row in again.rows][1::2] == [row.run for row in grid.rows][1::2]
    assert [row.values["result/square"] for row in again.rows] == [1.0, 1.0, 4.0, 4.0]
    resumed = records.find(str(again.rows[0].run))
    assert resumed.read()["extra"]["resumed_from"] == grid.rows[0].run
    assert resumed.read()["extra"]["stages"]["square"]["status"] == "kept"  # its stages are resumed too
    assert set(again.record.read()["children"]) == {row.run for row in again.rows}


@pytest.mark.slow
def test_a_grid_that_stops_at_a_failure_begins_no_other_variant(kernel: None, folder: Path) -> None:
    grid = run_grid(NOTEBOOK, {"bad": [True, False], "tag": ["a", "b"]}, cores=1, on_failure="stop")
    assert [row.status for row in grid.rows] == ["failed", "not_run", "not_run", "not_run"]
    assert grid.record.read()["status"] == "failed"


class Command:
    """`sciml batch --grid` with two variants that wait."""

    def __init__(self, folder: Path) -> None:
        (folder / "signs").mkdir()
        (folder / "grid.yaml").write_text("x: [1, 2, 3]\n")
        program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        program += "from sciml_kernel.cli import main; main()"
        words = ["batch", str(NOTEBOOK), "--grid", "grid.yaml", "--cores", "2", "-p", "wait_for", "never"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, *words, "-p", "signs", str(folder / "signs")],
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
        )
        wait_for(lambda: len(list((folder / "signs").iterdir())) == 2)

    def end(self) -> int:
        self.said, _ = self.process.communicate(timeout=60)
        return self.process.returncode


def wait_for(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def processes() -> list[int]:
    mine, found = f"HOME={os.environ['HOME']}".encode(), []
    for process in psutil.process_iter():
        try:
            variables = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            if mine in variables and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (OSError, psutil.Error):
            continue
    return found


def ends_by_kind(kind: str) -> list[str]:
    return [r["status"] for r in json.loads(records.list_runs().to_json(orient="records")) if r["kind"] == kind]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "status"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "cancelled")]
)
def test_a_signal_ends_every_variant_as_what_it_is(
    kernel: None, folder: Path, number: signal.Signals, code: int, status: str
) -> None:
    command = Command(folder)
    command.process.send_signal(number)
    assert command.end() == code
    assert ends_by_kind("grid") == [status]
    assert ends_by_kind("batch") == [status, status]
    assert f"2 {status}, 1 not_run" in command.said
    wait_for(lambda: not processes())


@pytest.mark.slow
def test_a_killed_grid_takes_its_variants_with_it(kernel: None, folder: Path) -> None:
    command = Command(folder)
    command.process.kill()
    assert command.end() == -signal.SIGKILL
    wait_for(lambda: not processes())
    assert ends_by_kind("grid") == ["failed"]  # owner vanished, as the next reader finds
    assert ends_by_kind("batch") == ["cancelled", "cancelled"]


def a_grid(tmp_path: Path, n: int = 3) -> Grid:
    rows = [Row(i, {"x": 0.1 * i, "name": "<b>" * i}, None) for i in range(1, n + 1)]  # type: ignore[arg-type]
    for row, status in zip(rows, itertools.cycle(["completed", "running", "failed"]), strict=False):
        row.status, row.seconds, row.values = status, 12.3, {"cosmoflow:val/loss": 0.5, "result/error": 0.25}
        row.reason = "ValueError: no" if status == "failed" else ""
    return Grid(records.create("g", "{}", root=tmp_path, kind="grid"), rows)


def test_the_table_shows_what_varies_how_it_goes_and_what_came_out(tmp_path: Path, capsys: Any) -> None:
    grid = a_grid(tmp_path)
    head, rows = table_rows(grid)
    assert head == ["variant", "x", "name", "status", "s", "cosmoflow:val/loss", "result/error", "reason"]
    assert rows[2] == ["3", "0.3", "<b><b><b>", "failed", "12", "0.5", "0.25", "ValueError: no"]
    watcher = TerminalTable()
    watcher.changed(grid, grid.rows[0])
    watcher.end(grid)
    assert "1 completed, 1 running, 1 failed" in capsys.readouterr().out


def test_in_a_notebook_the_table_is_replaced_in_place(tmp_path: Path) -> None:
    shown: list[dict[str, Any]] = []

    class Output:
        def show(self, bundle: dict[str, Any]) -> None:
            shown.append(bundle)

        def update(self, bundle: dict[str, Any]) -> None:
            shown[-1] = bundle

    register_display(Output)
    try:
        grid, table = a_grid(tmp_path), NotebookTable()
        table.changed(grid, None)
        grid.rows[1].status = "completed"
        table.end(grid)
    finally:
        register_display(None)
    (bundle,) = shown
    assert "2 completed, 1 failed" in bundle["text/html"]
    assert "&lt;b&gt;" in bundle["text/html"]
    assert "<b>" not in bundle["text/html"]


def test_of_many_variants_those_that_matter_come_first(tmp_path: Path) -> None:
    _, rows = table_rows(a_grid(tmp_path, 90))
    assert len(rows) == 40
    assert [row[3] for row in rows[:30]] == ["failed"] * 30
