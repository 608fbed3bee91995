"""A batch run that ended early is resumed: what was finished is not run again, unless its inputs have changed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest

from sciml_kernel import records
from sciml_kernel.batch import run_notebook
from sciml_kernel.batch.stages import kept_stages, stage
from sciml_kernel.errors import UsageError
from sciml_kernel.records import Record
from sciml_kernel.testing.notebooks import write_notebook

pytestmark = [pytest.mark.notebook, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

NOTEBOOKS = Path(__file__).parent / "notebooks"


def said(record: Record) -> str:
    """All that the cells printed or displayed as text."""
    cells = nbformat.read(record.path / "notebook.ipynb", as_version=4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    return "".join(output.get("text", "") or output.get("data", {}).get("text/plain", "") + "\n" for output in outputs)


def stages_of(record: Record) -> dict[str, str]:
    return {name: entry["status"] for name, entry in record.read()["extra"]["stages"].items()}


def why(record: Record, name: str) -> str:
    return str(record.read()["extra"]["stages"][name]["why"])


@pytest.fixture
def failed(kernel: None, folder: Path) -> Record:
    record = run_notebook(NOTEBOOKS / "stages.py")
    assert record.read()["error"]["message"] == "here"
    return record


def test_a_first_run_keeps_what_it_has_finished(failed: Record) -> None:
    assert stages_of(failed) == {
        "draw": "done", "scaled": "done", "part-0": "done", "part-1": "done", "locked": "done, not kept",
    }  # fmt: skip
    assert kept_stages(failed) == ["draw", "part-0", "part-1", "scaled"]
    assert "its input 'lock' (lock) can't be compared between runs" in why(failed, "locked")


def test_a_resumed_run_skips_finished_stages_and_has_their_results_and_outputs(failed: Record) -> None:
    resumed = run_notebook(None, {"fail": False}, resume=failed)
    content = resumed.read()
    assert content["status"] == "completed", content["error"]
    assert content["extra"]["resumed_from"] == failed.id
    assert [stages_of(resumed)[name] for name in ("draw", "scaled", "part-0", "part-1")] == ["kept"] * 4
    assert records.final_values(resumed) == records.final_values(failed)  # log too, which was changed in place
    text = said(resumed)
    assert f"stage 'draw' is kept from {failed.id}" in text
    assert "part 0" not in text  # its cell holds more than the stage, and was run
    assert "scaling" in text  # the cell is the stage: what it printed and showed then is there
    assert "array([" in text
    log = (resumed.path / "logs" / "notebook.log").read_text()
    assert "drawing" not in log
    assert "scaling" not in log
    assert "locking" in log  # can't be kept, so it is run; its lock was made in a kept stage, and was absent


def test_a_result_that_can_not_be_kept_says_so_when_it_is_used(kernel: None, folder: Path) -> None:
    notebook = write_notebook(
        folder / "n.ipynb",
        "import threading, sciml_kernel as sk\nwith sk.stage('a'):\n    lock, x = threading.Lock(), 1",
        "assert x == 1\nif use:\n    lock.acquire()\nelse:\n    raise ValueError",
        parameters="use = False",
    )
    first = run_notebook(notebook)
    error = run_notebook(None, {"use": True}, resume=first).read()["error"]
    assert error["type"] == "UsageError"
    assert error["message"].startswith(
        "'lock' was made in stage 'a', which was not run again, and can't be kept (lock: "
    )


@pytest.mark.parametrize(
    ("given", "again", "words"),
    [
        ({"n": 4}, {"draw", "scaled", "part-0", "part-1"}, ("draw", "n was 3, is 4")),
        ({"k": 3.0}, {"scaled", "part-0", "part-1"}, ("scaled", "scale has changed; k was 2.0, is 3.0")),
    ],
)
def test_changed_inputs_are_named_and_what_depends_on_them_is_run(
    failed: Record, given: dict[str, Any], again: set[str], words: tuple[str, str]
) -> None:
    resumed = run_notebook(None, {**given, "fail": False}, resume=failed)
    states = stages_of(resumed)
    assert {name for name, state in states.items() if state == "done"} == again
    assert words[1] in why(resumed, words[0])
    fresh = run_notebook(NOTEBOOKS / "stages.py", {**given, "fail": False})
    assert records.final_values(resumed) == records.final_values(fresh)


def test_a_changed_cell_or_file_is_named(kernel: None, folder: Path) -> None:
    (folder / "d.txt").write_text("one")
    script = folder / "n.py"
    source = (NOTEBOOKS / "stages.py").read_text()
    script.write_text(source)
    first = run_notebook(script, {"data": "d.txt"})
    script.write_text(
        source.replace("size=n)", "size=n) + 1").replace('print("part", i)', 'print( "part" , i)  # layout')
    )
    (folder / "d.txt").write_text("two")
    resumed = run_notebook(None, {"fail": False}, resume=first)
    assert why(resumed, "draw") == "stage 'draw' is run again: the code of the stage has changed"
    assert "file " + str(folder / "d.txt") + " has changed" in why(resumed, "part-0")
    assert "the code" not in why(resumed, "part-0")  # layout is no code


def test_a_run_that_was_resumed_twice_keeps_what_both_had_finished(failed: Record, folder: Path) -> None:
    second = run_notebook(None, {}, resume=failed)  # fails at the same place
    third = run_notebook(None, {"fail": False}, resume=second)
    assert third.read()["status"] == "completed"
    assert f"kept from {failed.id}" in why(third, "draw")  # where it was really run
    assert records.lineage(third) == [third, second, failed]


def test_by_hand_a_stage_is_its_body() -> None:
    with stage("x") as one:
        value = 3
    assert (value, one.needed) == (3, True)
    with pytest.raises(UsageError, match="letters, digits"):
        stage("no / name")


def test_a_stage_that_is_there_twice_is_refused(kernel: None, folder: Path) -> None:
    twice = "import sciml_kernel as sk\nfor i in range(2):\n    with sk.stage('x'):\n        y = i"
    assert "there twice" in run_notebook(write_notebook(folder / "n.ipynb", twice)).read()["error"]["message"]
    (folder / "t.py").write_text('# %% tags=["stage:a"]\nx = 1\n\n# %% tags=["stage:a"]\ny = 1\n')
    with pytest.raises(UsageError, match="stage 'a': two cells"):
        run_notebook(folder / "t.py")


def test_what_a_stage_leaves_on_ranks_is_not_kept(kernel: None, folder: Path) -> None:
    (folder / "n.py").write_text('# %% tags=["stage:ranks"]\n# %pool list\n\n# %%\nraise ValueError\n')
    record = run_notebook(folder / "n.py")
    assert stages_of(record) == {"ranks": "done, not kept"}
    assert "uses a magic" in why(record, "ranks")


def test_only_a_batch_run_that_is_over_is_resumed(kernel: None, folder: Path) -> None:
    training = records.create("cosmoflow", "{}")
    with pytest.raises(UsageError, match=r"is a training; .*sciml train --resume"):
        run_notebook(None, resume=training)
    batch = records.create("n", "{}", kind="batch")
    batch.start()
    with pytest.raises(UsageError, match="is running still"):
        run_notebook(None, resume=batch)


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.tf
@pytest.mark.horovod
@pytest.mark.timeout(300)
def test_a_killed_training_goes_on_and_ends_with_the_numbers_of_one_that_was_not(
    kernel: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCIML_DATA", str(folder / "data"))
    whole = run_notebook(NOTEBOOKS / "trains.py")
    assert whole.read()["status"] == "completed"
    program = str(Path(sys.executable).with_name("sciml"))
    with subprocess.Popen([program, "batch", str(NOTEBOOKS / "trains.py"), "--quiet"], cwd=folder) as process:
        deadline = time.monotonic() + 100
        while not (found := _checkpointed(whole)):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    (cut,) = found
    _wait_until_its_ranks_are_gone(cut)
    assert cut.read()["status"] == "failed"
    (before,) = cut.children()
    assert before.read()["status"] == "failed"
    resumed = run_notebook(None, {}, resume=cut)
    assert resumed.read()["status"] == "completed", resumed.read()["error"]
    assert stages_of(resumed) == {"data": "kept", "train": "done"}
    (child,) = resumed.children()
    assert child.read()["extra"]["resumed_from"] == before.id
    assert f"goes on from run {before.id}" in said(resumed)
    assert "resumed at epoch" in child.log_path(0).read_text()
    assert "epochs 150" in said(resumed)
    assert records.final_values(resumed) == records.final_values(whole)

    done = run_notebook(None, {}, resume=resumed)  # nothing is left to do
    assert stages_of(done) == {"data": "kept", "train": "kept"}
    assert [one.id for one in done.children()] == [child.id]
    assert records.final_values(done) == records.final_values(whole)
    changed = run_notebook(None, {"lr": 2e-3, "epochs": 2}, resume=resumed)
    assert "epochs was 150, is 2" in why(changed, "train")
    assert "lr was 0.001, is 0.002" in why(changed, "train")
    (fresh,) = changed.children()
    assert fresh.read()["extra"]["resumed_from"] is None  # other settings: another training


def _checkpointed(whole: Record) -> list[Record]:
    """The batch run that was started by the command, once its training has a checkpoint and goes on."""
    for path in records.runs_root().iterdir():
        record = Record(path)
        if path != whole.path and (path / "record.json").exists() and record.read()["kind"] == "batch":
            return [record for child in record.children() if any(child.checkpoints_dir.glob("*.npz"))]
    return []


def _wait_until_its_ranks_are_gone(batch: Record) -> None:
    """The next reader must find what a person finds a moment later."""
    deadline = time.monotonic() + 30
    while any(child.read()["status"] == "running" for child in batch.children()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert json.loads((batch.path / "record.json").read_text())["owner"]["pid"] != os.getpid()


def test_a_resumed_notebook_is_in_the_state_that_it_would_be_in(kernel: None, folder: Path) -> None:
    (folder / "helper.py").write_text("def double(x):\n    return 2 * x\n")
    first = run_notebook(NOTEBOOKS / "tricky_stages.py")
    expected = records.final_values(first)
    # by hand: 3 and 4 are the seeds, k is 2 and then 3
    random_numbers, numpy_numbers = random.Random(4), np.random.RandomState(3)
    assert expected["result/drawn"] == numpy_numbers.normal() + random_numbers.random()
    assert expected["result/after"] == numpy_numbers.normal() + random_numbers.random()
    assert (expected["result/scaled"], expected["result/factor"]) == (3.0, 3.0)
    assert (expected["result/total"], expected["result/helped"]) == (7.0, 42.0)
    assert (expected["result/one object"], expected["result/own class"], expected["result/gone"]) == (1.0, 1.0, 1.0)
    resumed = run_notebook(None, {"fail": False}, resume=first)
    assert resumed.read()["status"] == "completed", resumed.read()["error"]
    assert stages_of(resumed) == {"one": "kept", "two": "kept"}
    assert "ran" not in (resumed.path / "logs" / "notebook.log").read_text()
    assert records.final_values(resumed) == expected


def test_an_edited_helper_and_another_random_state_are_changes(kernel: None, folder: Path) -> None:
    (folder / "helper.py").write_text("def double(x):\n    return 2 * x\n")
    script = folder / "n.py"
    source = (NOTEBOOKS / "tricky_stages.py").read_text()
    script.write_text(source)
    first = run_notebook(script)
    (folder / "helper.py").write_text("def double(x):\n    return x + x + 1\n")
    script.write_text(source.replace("seed(3)", "seed(30)"))
    resumed = run_notebook(None, {"fail": False}, resume=first)
    assert f"module {folder / 'helper.py'} has changed" in why(resumed, "one")
    assert "numpy's global random state has changed" in why(resumed, "one")
    assert "the state of random" not in why(resumed, "one")
    fresh = run_notebook(script, {"fail": False})
    assert records.final_values(resumed) == records.final_values(fresh)
    assert records.final_values(fresh)["result/helped"] == 43.0
