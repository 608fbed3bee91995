"""Every way in which a batch run can end, for real, seen from outside: the command's exit code and what is on disk.

Each case is a notebook in `notebooks/` named after it.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest

from sciml_kernel import records
from sciml_kernel.pool import Pool
from sciml_kernel.pool.spec import pools_root
from sciml_kernel.records import Record

pytestmark = [pytest.mark.notebook, pytest.mark.mpi, pytest.mark.slow]

NOTEBOOKS = Path(__file__).parent / "notebooks"
PROGRAM = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's & ignores it
PROGRAM += "from sciml_kernel.cli import main; main()"


class Batch:
    """`sciml batch` in a process of its own."""

    def __init__(self, name: str, *options: str, before: Callable[[], None] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "batch", str(NOTEBOOKS / f"{name}.py"), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=before,
        )
        self.said = ""

    def end(self) -> int:
        self.said, _ = self.process.communicate(timeout=100)
        return self.process.returncode

    @property
    def record(self) -> Record:
        runs = [Record(path.parent) for path in records.runs_root().glob("*/record.json")]
        (found,) = [run for run in runs if run.read()["kind"] == "batch"]
        return found


@pytest.fixture
def batch(kernel: None, folder: Path) -> Iterator[Callable[..., Batch]]:
    started: list[Batch] = []

    def start(name: str, *options: str, **more: Any) -> Batch:
        started.append(Batch(name, *options, **more))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()
    for name in Pool.list()["name"]:
        Pool.attach(name).stop()


def wait_for(condition: Callable[[], bool], what: str, limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {what}"
        time.sleep(0.05)


def of_this_home() -> list[str]:
    """Command lines of living processes with this test's HOME, this one apart: kernels, keepers, controllers, ranks."""
    mine, found = f"HOME={os.environ['HOME']}".encode(), []
    for process in psutil.process_iter():
        try:
            variables = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            if mine in variables and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except (OSError, psutil.Error):
            continue
    return found


def nothing_is_left() -> None:
    wait_for(lambda: not of_this_home(), f"all processes have ended, there are {of_this_home()}", 15.0)
    assert not pools_root().exists() or not list(pools_root().iterdir())


def text_of(record: Record) -> str:
    node = nbformat.read(record.path / "notebook.ipynb", as_version=4)  # always whole
    nbformat.validate(node)
    texts = [output.get("text", "") for cell in node.cells for output in cell.get("outputs", [])]
    return "".join(texts)


def states(record: Record) -> list[str]:
    return [cell["status"] for cell in record.read()["cells"]]


DONE, FAILED, CUT, NOT = "completed", "failed", "interrupted", "not_run"


@pytest.mark.parametrize(
    ("name", "options", "code", "status", "error", "cells"),
    [
        ("completes", (), 0, "completed", None, [DONE, DONE, DONE]),
        ("failed_cell", (), 1, "failed", {"type": "ValueError", "message": "no good", "cell": 2}, [DONE, FAILED, NOT]),
        ("failing_rank", (), 1, "failed", {"type": "OSError", "rank": 1, "cell": 2}, [DONE, FAILED, NOT]),
        (
            "killed_rank", (), 1, "failed",
            {"type": "PoolDeadError", "rank": 1, "signal": "SIGKILL", "cell": 2}, [DONE, FAILED, NOT],
        ),
        ("failing_magic", (), 1, "failed", {"type": "UsageError", "cell": 2}, [DONE, FAILED, NOT]),
        (
            "dead_kernel", (), 1, "failed",
            {"type": "DeadKernelError", "signal": "SIGKILL", "cell": 2}, [DONE, FAILED, NOT],
        ),
        (
            "crashed_kernel", (), 1, "failed",
            {"type": "DeadKernelError", "signal": "SIGSEGV", "cell": 1}, [FAILED, NOT],
        ),
        ("out_of_memory", (), 1, "failed", {"type": "MemoryError", "cell": 2}, [DONE, FAILED, NOT]),
        (
            "too_slow_cell", ("--cell-timeout", "6"), 124, "timeout",
            {"type": "RunTimeoutError", "cell": 2}, [DONE, CUT, NOT],
        ),
        ("waits", ("--timeout", "8"), 124, "timeout", {"type": "RunTimeoutError", "cell": 3}, [DONE, DONE, CUT, NOT]),
        (
            "swallows_the_interrupt", ("--timeout", "6"), 124, "timeout",
            {"type": "RunTimeoutError", "cell": 1}, [DONE, NOT],
        ),
        ("failed_training", (), 1, "failed", {"type": "RunError", "rank": 1, "host": "n7", "step": 12}, [DONE, DONE]),
    ],
)  # fmt: skip
def test_a_run_ends_with_its_status_cell_rank_and_code(
    batch: Callable[..., Batch],
    name: str,
    options: tuple[str, ...],
    code: int,
    status: str,
    error: dict[str, Any] | None,
    cells: list[str],
) -> None:
    run = batch(name, *options)
    assert run.end() == code, run.said
    content = run.record.read()
    assert content["status"] == status
    if error is None:
        assert content["error"] is None
    else:
        assert {key: content["error"][key] for key in error} == error
        assert f"{content['error']['type']}: " in run.said
    assert states(run.record)[-len(cells) :] == cells
    assert {"completed"} >= set(states(run.record)[: -len(cells)])
    if name != "failing_magic":
        assert "the last line" in text_of(run.record)
    assert "not reached" not in text_of(run.record)
    assert "the last line" in (run.record.path / "notebook.html").read_text()
    nothing_is_left()


@pytest.mark.parametrize(
    ("number", "code", "status"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "cancelled")],  # scancel sends the second
)
def test_a_signal_ends_the_run_as_what_it_is(
    batch: Callable[..., Batch], folder: Path, number: signal.Signals, code: int, status: str
) -> None:
    run = batch("waits", "-p", "sign", str(folder / "here"))
    wait_for((folder / "here").exists, "the cell waits")
    run.process.send_signal(number)
    assert run.end() == code, run.said
    content = run.record.read()
    assert (content["status"], content["error"]["cell"]) == (status, 4)
    assert states(run.record)[-2:] == [CUT, NOT]
    assert "the last line" in text_of(run.record)
    nothing_is_left()


def test_a_killed_runner_is_found_by_the_next_reader_and_leaves_no_process(
    batch: Callable[..., Batch], folder: Path
) -> None:
    run = batch("waits", "-p", "sign", str(folder / "here"))
    wait_for((folder / "here").exists, "the cell waits")
    assert json.loads((run.record.path / "record.json").read_text())["status"] == "running"
    run.process.kill()
    assert run.end() == -signal.SIGKILL
    nothing_is_left()
    content = run.record.read()
    assert content["status"] == "failed"
    assert (content["error"]["type"], content["error"]["cell"]) == ("OwnerVanished", 4)
    assert states(run.record)[-2:] == [CUT, NOT]
    text_of(run.record)  # the notebook is whole
    assert "the last line" in (run.record.path / "logs" / "notebook.log").read_text()
    shown = subprocess.run(
        [sys.executable, "-c", PROGRAM, "runs", "show", run.record.id], capture_output=True, text=True
    )
    assert "the last line" in shown.stdout  # from the log: it had not reached the notebook


def test_a_full_disk_fails_the_run_and_keeps_what_was_written(batch: Callable[..., Batch]) -> None:
    """A limit on the size of a file stands for a full disk: the same OSError from the same write."""
    limit = 100_000

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    run = batch("full_disk", before=small_files)
    assert run.end() == 1
    content = run.record.read()
    assert content["status"] == "failed"
    assert content["error"]["type"] == "OSError"
    assert "notebook.ipynb can't be written: File too large" in content["error"]["message"]
    assert content["error"]["cell"] == 2
    assert states(run.record) == [DONE, FAILED, NOT]
    assert "the first line" in text_of(run.record)  # the earlier file
    nothing_is_left()
