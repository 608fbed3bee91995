"""A notebook in the real `sciml` kernel: its record says how it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import nbformat
import pytest

from sciml_kernel import records
from sciml_kernel.batch import run_notebook
from sciml_kernel.batch.parameter_files import from_pairs
from sciml_kernel.batch.progress import Lines
from sciml_kernel.errors import EnvironmentNotFitError, NotFoundError, ParameterError, UsageError
from sciml_kernel.records import Record
from sciml_kernel.testing.notebooks import write_notebook

pytestmark = [pytest.mark.notebook, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

PICTURE = """
from IPython.display import display, Image
import base64
display(Image(data=base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")))
"""


def statuses(record: Record) -> list[str]:
    return [cell["status"] for cell in record.read()["cells"]]


def outputs(record: Record) -> str:
    """Everything that cells printed."""
    node = nbformat.read(record.path / "notebook.ipynb", as_version=4)
    texts = [output for cell in node.cells for output in cell.get("outputs", [])]
    return "".join(output.get("text", "") for output in texts)


def kernels() -> set[str]:
    """Kernels that this test process started and that still live, by command line."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add((entry / "cmdline").read_text())
        except OSError:
            continue
    return {line for line in found if "sciml_kernel.jupyter.kernel" in line}


def test_a_good_run_leaves_the_whole_record(kernel: None, folder: Path) -> None:
    notebook = write_notebook(
        folder / "demo.ipynb",
        "print(repr((x, name, sizes)))",
        PICTURE,
        "import os, pathlib; pathlib.Path('seen').write_text(os.environ['SCIML_PARENT_RUN'])",
        parameters="x = 1\nname = 'a'\nsizes = (1, 2)",
        markdown=["# Title"],
    )
    record = run_notebook(notebook, from_pairs([("name", "007"), ("sizes", "(3,)")]))
    content = record.read()
    assert content["status"] == "completed"
    assert content["kind"] == "batch"
    assert content["error"] is None
    # markdown 0, parameters 1, injected 2, three code cells
    assert [cell["index"] for cell in content["cells"]] == [1, 2, 3, 4, 5]
    assert statuses(record) == ["completed"] * 5
    assert "(1, '007', (3,))" in outputs(record)
    assert record.config()["parameters"] == {"x": 1, "name": "007", "sizes": [3]}
    assert (folder / "seen").read_text() == str(record.path)
    (picture,) = (record.path / "figures").glob("*.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    html = (record.path / "notebook.html").read_text()
    assert "007" in html
    assert "data:image/png;base64" in html
    assert not list(record.path.rglob("*.tmp"))
    assert kernels() == set()


def test_a_failing_cell_fails_the_run_and_later_cells_are_not_run(kernel: None, folder: Path) -> None:
    notebook = write_notebook(folder / "n.ipynb", "print('before')", "raise ValueError('no good')", "print('after')")
    record = run_notebook(notebook)
    content = record.read()
    assert content["status"] == "failed"
    assert {key: content["error"][key] for key in ("type", "message", "cell")} == {
        "type": "ValueError",
        "message": "no good",
        "cell": 1,
    }
    assert statuses(record) == ["completed", "failed", "not_run"]
    assert "no good" in (record.path / "notebook.html").read_text()
    states = [cell.metadata.papermill.status for cell in nbformat.read(record.path / "notebook.ipynb", 4).cells]
    assert states == ["completed", "failed", "pending"]


def test_an_error_of_a_rank_keeps_its_own_type_and_rank(kernel: None, folder: Path) -> None:
    raising = (
        "from sciml_kernel.errors import RemoteError\n"
        "raise RemoteError(type_name='OSError', message='disk', rank=3, host='n12', step=40)"
    )
    error = run_notebook(write_notebook(folder / "n.ipynb", raising)).read()["error"]
    expected = {"type": "OSError", "message": "disk", "cell": 0, "rank": 3, "host": "n12", "step": 40, "signal": None}
    assert error == expected


def test_a_magic_that_fails_fails_the_run(kernel: None, folder: Path) -> None:
    record = run_notebook(write_notebook(folder / "n.ipynb", "%pool strat", "1"))
    assert record.read()["error"]["type"] == "UsageError"
    assert statuses(record) == ["failed", "not_run"]


def test_a_killed_kernel_is_a_failure_with_its_last_line_kept(kernel: None, folder: Path) -> None:
    killing = "import os, signal\nprint('the last line')\nos.kill(os.getpid(), signal.SIGKILL)"
    record = run_notebook(write_notebook(folder / "n.ipynb", "1", killing, "2"))
    content = record.read()
    assert content["status"] == "failed"
    assert content["error"]["type"] == "DeadKernelError"
    assert content["error"]["cell"] == 1
    assert content["error"]["signal"] == "SIGKILL"
    assert statuses(record) == ["completed", "failed", "not_run"]
    assert "the last line" in outputs(record)


def test_sys_exit_zero_ends_the_notebook_well(kernel: None, folder: Path) -> None:
    record = run_notebook(write_notebook(folder / "n.ipynb", "import sys; sys.exit(0)", "1/0"))
    assert record.read()["status"] == "completed"
    assert statuses(record) == ["completed", "not_run"]


def test_a_cell_over_its_time_is_a_timeout_at_that_cell(kernel: None, folder: Path) -> None:
    sleeping = "import time\nprint('waiting', flush=True)\ntime.sleep(60)"
    record = run_notebook(write_notebook(folder / "n.ipynb", "1", sleeping, "2"), cell_timeout_s=1.0)
    content = record.read()
    assert content["status"] == "timeout"
    assert content["error"]["cell"] == 1
    assert "cell 1 ran longer than 1 s" in content["error"]["message"]
    assert statuses(record) == ["completed", "interrupted", "not_run"]
    assert "waiting" in outputs(record)


def test_a_cell_that_ignores_the_interrupt_is_killed_after_the_grace_time(kernel: None, folder: Path) -> None:
    stubborn = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(60)"
    record = run_notebook(write_notebook(folder / "n.ipynb", stubborn, "2"), cell_timeout_s=1.0, grace_s=0.5)
    assert record.read()["status"] == "timeout"
    assert statuses(record) == ["interrupted", "not_run"]
    assert kernels() == set()


def test_a_cell_that_swallows_the_interrupt_does_not_go_on(kernel: None, folder: Path) -> None:
    swallowing = "import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print('swallowed')"
    record = run_notebook(write_notebook(folder / "n.ipynb", swallowing, "2"), timeout_s=4.0)
    assert record.read()["status"] == "timeout"
    assert statuses(record) == ["completed", "not_run"]


@pytest.mark.parametrize(
    ("number", "status", "code"), [(signal.SIGINT, "interrupted", 130), (signal.SIGTERM, "cancelled", 143)]
)
def test_a_signal_ends_the_command_with_its_own_status_and_code(
    kernel: None, folder: Path, number: signal.Signals, status: str, code: int
) -> None:
    sleeping = "import pathlib, time\npathlib.Path('there').touch()\nprint('here', flush=True)\ntime.sleep(60)"
    write_notebook(folder / "n.ipynb", sleeping, "2")
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's & ignores it
    program += "from sciml_kernel.cli import main; main(['batch', 'n.ipynb'])"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "here" in line and "print" not in line:
                process.send_signal(number)
                break
        process.stdout.read()
        assert process.wait(60) == code
    (run_id,) = [path.parent.name for path in records.runs_root().glob("*/record.json")]
    record = records.find(run_id)
    assert record.read()["status"] == status
    assert statuses(record) == ["interrupted", "not_run"]
    assert "here" in outputs(record)


def test_the_executed_notebook_can_be_read_while_it_runs(kernel: None, folder: Path) -> None:
    notebook = write_notebook(
        folder / "n.ipynb",
        "print('first')",
        "import os, json, pathlib\n"
        "text = (pathlib.Path(os.environ['SCIML_PARENT_RUN']) / 'notebook.ipynb').read_text()\n"
        "assert 'first' in json.dumps(json.loads(text)['cells'][0]['outputs'])",
    )
    assert run_notebook(notebook).read()["status"] == "completed"


def child_source(status: str, delay_s: float = 0.0) -> str:
    """A cell that begins a child run as `sk.train` does; it ends later, from a thread."""
    return (
        "import os, threading\n"
        "from sciml_kernel import records\n"
        "child = records.create('cosmoflow', '{}', parent=os.environ['SCIML_PARENT_RUN'])\n"
        "child.start()\n"
        f"timer = threading.Timer({delay_s}, lambda: child.close({status!r}))\n"
        "timer.start()"
    )


def test_a_batch_ends_only_when_its_children_have_ended(kernel: None, folder: Path) -> None:
    record = run_notebook(write_notebook(folder / "n.ipynb", child_source("completed", 2.0)))
    content = record.read()
    assert content["status"] == "completed"
    (child,) = record.children()
    assert child.read()["status"] == "completed"
    assert child.read()["ended_utc"] <= content["ended_utc"]


def test_a_failed_child_fails_the_batch(kernel: None, folder: Path) -> None:
    record = run_notebook(write_notebook(folder / "n.ipynb", child_source("failed")))
    content = record.read()
    assert content["status"] == "failed"
    assert statuses(record) == ["completed"]
    assert content["children"][0] in content["error"]["message"]


def test_a_python_script_of_jupytext_runs_too(kernel: None, folder: Path) -> None:
    script = folder / "n.py"
    script.write_text('# %% [markdown]\n# # Title\n\n# %% tags=["parameters"]\nx = 1\n\n# %%\nprint("x is", x)\n')
    record = run_notebook(script, {"x": 5})
    assert record.read()["status"] == "completed"
    assert "x is 5" in outputs(record)


def test_progress_shows_cells_and_their_output_as_plain_lines(kernel: None, folder: Path, capsys: Any) -> None:
    run_notebook(write_notebook(folder / "n.ipynb", "print('one')\nprint('two')\n3 + 4"), progress=Lines())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("record /")
    assert lines[1] == "[1/1] print('one')"
    assert [line.strip() for line in lines[2:5]] == ["one", "two", "7"]
    assert lines[5].startswith("[1/1] completed in ")
    assert lines[6] == "completed"


def test_bad_input_leaves_nothing(kernel: None, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = write_notebook(folder / "n.ipynb", "1", parameters="epochs = 1")
    (folder / "broken.ipynb").write_text("{")
    with pytest.raises(NotFoundError, match=r"did you mean 'n\.ipynb'"):
        run_notebook(folder / "m.ipynb")
    with pytest.raises(UsageError, match="no notebook"):
        run_notebook(folder / "broken.ipynb")
    with pytest.raises(ParameterError, match="epochs"):
        run_notebook(notebook, {"epoch": 2})
    with pytest.raises(UsageError, match="more than 0"):
        run_notebook(notebook, timeout_s=0)
    monkeypatch.setenv("JUPYTER_PATH", str(folder / "nowhere"))
    monkeypatch.setattr("jupyter_core.paths.ENV_JUPYTER_PATH", [])  # env/setup puts the kernel into the environment
    with pytest.raises(EnvironmentNotFitError, match="sciml kernel install"):
        run_notebook(notebook)
    assert list(records.runs_root().iterdir()) == []


def test_a_kernel_of_another_environment_is_refused(kernel: None, folder: Path) -> None:
    spec = Path(os.environ["JUPYTER_PATH"].split(os.pathsep)[0]) / "kernels" / "sciml" / "kernel.json"
    content = json.loads(spec.read_text())
    content["argv"][0] = "/usr/bin/python3"
    spec.write_text(json.dumps(content))
    with pytest.raises(EnvironmentNotFitError, match="another environment"):
        run_notebook(write_notebook(folder / "n.ipynb", "1"))


def test_it_runs_in_a_thread_without_touching_signals(kernel: None, folder: Path) -> None:
    notebook = write_notebook(folder / "n.ipynb", "1")
    found: list[Record] = []
    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=lambda: found.append(run_notebook(notebook)))
    thread.start()
    thread.join(60)
    assert found[0].read()["status"] == "completed"
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.mpi
def test_a_pool_of_the_notebook_ends_with_it_even_when_it_was_to_be_kept(kernel: None, folder: Path) -> None:
    from sciml_kernel.pool import Pool

    mine = Pool.start(1, name="mine", keep=True)
    try:
        notebook = write_notebook(
            folder / "n.ipynb",
            "import sciml_kernel as sk\npool = sk.Pool.start(n_ranks, keep=True)",
            "%%ranks\nprint('hello')",
            "raise ValueError",
            parameters="n_ranks = 1",
        )
        record = run_notebook(notebook, n_ranks=2)
        assert record.read()["ranks"] == 2
        said = set(outputs(record).splitlines())  # once, if both said it at the same moment
        assert "[ranks 0-1] hello" in said or {"[rank 0] hello", "[rank 1] hello"} <= said
        assert list(Pool.list()["name"]) == ["mine"]
        assert mine.state == "ready"
    finally:
        mine.stop()


@pytest.mark.mpi
def test_a_failing_rank_fails_the_run_and_is_named(kernel: None, folder: Path) -> None:
    record = run_notebook(
        write_notebook(
            folder / "n.ipynb",
            "%pool start -n 2",
            "%%ranks\nfrom mpi4py import MPI\nif MPI.COMM_WORLD.rank == 1:\n    raise OSError('disk is full')",
            "print('after')",
        )
    )
    error = record.read()["error"]
    assert (error["type"], error["rank"], error["cell"]) == ("OSError", 1, 1)
    assert "disk is full" in error["message"]
    assert statuses(record) == ["completed", "failed", "not_run"]


@pytest.mark.mpi
def test_a_pool_whose_keeper_was_killed_leaves_nothing_either(kernel: None, folder: Path) -> None:
    from sciml_kernel.pool import Pool

    record = run_notebook(
        write_notebook(
            folder / "n.ipynb",
            "import os, sciml_kernel as sk\npool = sk.Pool.start(1)",
            "os.kill(pool.health().keeper.pid, 9)\npool.run('os:getpid')",
        )
    )
    assert record.read()["error"]["type"] == "PoolDeadError"
    assert Pool.list().empty


def test_a_kernel_that_the_system_killed_for_memory_is_said_to_be_so(
    kernel: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's count of such kills goes up meanwhile; that it does is the system's own word, see `pool.oom`."""
    counts = iter([3, 4])
    monkeypatch.setattr("sciml_kernel.batch.engine.oom_kills", lambda: next(counts))
    killing = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    error = run_notebook(write_notebook(folder / "n.ipynb", killing)).read()["error"]
    assert error["message"] == (
        "the kernel ended while the cell ran (SIGKILL: memory ran out, and the system killed a process for it)"
    )


def test_a_parameter_that_is_a_secret_by_its_name_is_refused(kernel: None, folder: Path) -> None:
    notebook = write_notebook(folder / "n.ipynb", "1", parameters="api_token = ''\nn_tokens = 1")
    with pytest.raises(ParameterError, match=r"'api_token' is a secret by its name.*environment variable"):
        run_notebook(notebook, {"api_token": "hunter2"})
    assert run_notebook(notebook, {"n_tokens": 2}).read()["status"] == "completed"


def test_a_batch_record_says_what_it_took_and_on_which_data(kernel: None, folder: Path) -> None:
    child = (
        "import os\nfrom sciml_kernel import records\n"
        "for name in 'aab':\n"
        "    child = records.create('cosmoflow', '{}', parent=os.environ['SCIML_PARENT_RUN'],"
        " data={'path': name, 'size': 1, 'sha256': name})\n"
        "    child.start()\n    child.update(hosts=['n1'], devices=['gpu ' + name])\n    child.close('completed')\n"
        "block = bytearray(150_000_000)"
    )
    content = run_notebook(write_notebook(folder / "n.ipynb", child, parameters="seed = 5")).read()
    assert [entry["path"] for entry in content["data"]] == ["a", "b"]
    assert (content["hosts"], content["devices"]) == (["n1"], ["gpu a", "gpu b"])
    assert content["seeds"] == {"seed": 5}
    assert content["usage"]["wall_s"] > content["usage"]["kernel"]["cpu_s"] * 0.1 > 0
    assert content["usage"]["kernel"]["peak_memory_bytes"] > 150_000_000
