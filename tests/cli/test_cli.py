"""The command line: exit codes, messages, JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from sciml_kernel import errors, records
from sciml_kernel.cli.app import _COMMANDS, cli, main
from sciml_kernel.testing.notebooks import write_notebook


class Answer:
    """What a command printed and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def sciml(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command in this process."""
    import warnings

    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # main sets its own

    def run(*words: str) -> Answer:
        with pytest.raises(SystemExit) as caught:
            main(words)
        captured = capsys.readouterr()
        return Answer(caught.value.code, captured.out, captured.err)  # type: ignore[arg-type]

    return run


def command(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a person does."""
    program = str(Path(sys.executable).with_name("sciml"))
    env = {**os.environ, **variables}
    return subprocess.run([program, *words], capture_output=True, text=True, env=env, timeout=100, check=False)


def test_help_is_fast_and_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom sciml_kernel.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'tensorflow', 'pandas', 'numpy', 'xarray', 'IPython', 'papermill'} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "[]"
    assert all(name in answer.stdout for name in _COMMANDS)


def test_every_command_and_option_explains_itself() -> None:
    def walk(found: click.Command, path: str) -> None:
        assert found.help, path
        if isinstance(found, click.Group):
            with click.Context(found) as context:
                for name in found.list_commands(context):
                    child = found.get_command(context, name)
                    assert child is not None
                    walk(child, f"{path} {name}")

    walk(cli, "sciml")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bath"], "did you mean 'batch'"),
        (["runs", "lst"], "did you mean 'list'"),
        (["pool", "start", "--nme", "x"], "--name"),
        (["train"], "RECIPE"),
        (["train", "cosmoflow"], "--data is missing"),
        (["train", "cosmoflw", "--data", "."], "did you mean 'cosmoflow'"),
        (["train", "cosmoflow", "--data", ".", "--set", "epochs"], "write key=value"),
        (["train", "cosmoflow", "--data", ".", "--set", "epoch=3"], "did you mean 'epochs'"),
        (["train", "cosmoflow", "--data", ".", "--set", "epochs=many"], "epochs must be int"),
        (["train", "cosmoflow", "--data", ".", "--timeout", "0"], "more than 0"),
        (["train", "cosmoflow", "--resume", "nothing"], "no run 'nothing'"),
        (["batch", "missing.ipynb"], "no notebook"),
        (["runs", "show", "nothing"], "no run 'nothing'"),
        (["pool", "status"], "no live pool"),
        (["pool", "status", "nothing"], "no pool 'nothing'"),
        (["pool", "start", "-n", "0"], "at least 1 rank"),
        (["pool", "start", "-n", "10000"], "write n="),
        (["pool", "start", "--name", "a/b"], "can't be used"),
        (["pool", "start", "--launcher", "lokal"], "local"),
        (["data", "inspect", "nothing"], "no data at"),
        (["config", "explain", "cosmoflw"], "did you mean 'cosmoflow'"),
        (["models", "--shape", "big"], "write for example"),
    ],
)
def test_wrong_use_is_exit_code_2_and_says_what_to_write(
    sciml: Any, folder: Path, words: list[str], message: str
) -> None:
    answer = sciml(*words)
    assert answer.code == 2, answer.err
    assert message in answer.err
    assert "Traceback" not in answer.err
    assert answer.out == ""
    assert list(records.runs_root().iterdir()) == []
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.RunError("x"), 1),
        (errors.UsageError("x"), 2),
        (errors.EnvironmentNotFitError("x"), 3),
        (errors.RunTimeoutError("x"), 124),
        (errors.RunInterruptedError("x"), 130),
        (errors.RunCancelledError("x"), 143),
        (errors.RemoteError(type_name="DataError", message="x", rank=1, exit_code=2), 2),
        (KeyboardInterrupt(), 130),
        (RuntimeError("x"), 1),
    ],
)
def test_every_error_has_its_exit_code(
    sciml: Any, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def raise_it(*arguments: Any) -> None:
        raise error

    monkeypatch.setattr(records, "list_runs", raise_it)
    answer = sciml("runs", "list")
    assert answer.code == code
    assert answer.err.lstrip().startswith("sciml: ")  # click ends the line of a ^C
    assert "Traceback" not in answer.err


def test_debug_shows_the_traceback(sciml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCIML_DEBUG", "1")
    answer = sciml("runs", "show", "nothing")
    assert "Traceback" in answer.err
    assert answer.err.splitlines()[-1].startswith("sciml: no run 'nothing'")


def test_runs_are_listed_and_shown_as_text_and_json(sciml: Any) -> None:
    assert "no runs in" in sciml("runs", "list").out
    assert sciml("runs", "list", "--json").json == []
    record = records.create("cosmoflow", '{"recipe":"cosmoflow"}')
    record.start()
    record.close("failed", {"type": "OSError", "message": "disk"})
    assert record.id in sciml("runs", "list").out
    (row,) = sciml("runs", "list", "--json").json
    assert (row["id"], row["status"], row["val/loss"]) == (record.id, "failed", None)
    assert "OSError: disk" in sciml("runs", "show", record.id[:20]).out
    assert sciml("runs", "show", record.id, "--json").json["status"] == "failed"


def test_config_explain_says_where_each_value_comes_from(sciml: Any) -> None:
    out = sciml("config", "explain", "cosmoflow", "--set", "epochs=3").out
    (line,) = [line for line in out.splitlines() if line.startswith("train.epochs")]
    assert line.startswith("train.epochs = 3 epochs  [--set]")
    found = sciml("config", "explain", "cosmoflow", "--json").json
    assert found["data.batch_size"] == {"value": 8, "source": "default"}


def test_a_dry_run_of_a_pool_starts_nothing(sciml: Any) -> None:
    answer = sciml("pool", "start", "-n", "2", "--dry-run")
    assert answer.code == 0
    assert "mpiexec" in answer.out
    assert "-n 2" in answer.out
    assert sciml("pool", "list", "--json").json == []


@pytest.mark.mpi
def test_a_pool_of_the_command_line_stays_until_it_is_stopped(folder: Path) -> None:
    started = command("pool", "start", "-n", "2", "--name", "p", "--json")
    assert started.returncode == 0, started.stderr
    try:
        found = json.loads(started.stdout)
        assert (found["state"], found["n"], [row["rank"] for row in found["ranks"]]) == ("ready", 2, [0, 1])
        assert json.loads(command("pool", "list", "--json").stdout)[0]["state"] == "ready"
        assert "ready" in command("pool", "status").stdout
        again = command("pool", "start", "-n", "1", "--name", "p")
        assert again.returncode == 2
        assert "p" in again.stderr
        assert json.loads(command("pool", "restart", "p", "-n", "1", "--json").stdout)["n"] == 1
    finally:
        stopped = command("pool", "stop", "--all", "--json")
    assert json.loads(stopped.stdout) == ["p"]
    assert json.loads(command("pool", "list", "--json").stdout) == []


@pytest.mark.notebook
@pytest.mark.parametrize(
    ("source", "options", "code"),
    [
        ("1", [], 0),
        ("1/0", [], 1),
        ("import time; time.sleep(60)", ["--cell-timeout", "1"], 124),
        ("raise KeyboardInterrupt", [], 130),
    ],
)
def test_batch_ends_with_the_code_of_its_status(
    kernel: None, folder: Path, source: str, options: list[str], code: int
) -> None:
    write_notebook(folder / "n.ipynb", source)
    answer = command("batch", "n.ipynb", "--json", *options)
    assert answer.returncode == code, answer.stderr
    found = json.loads(answer.stdout)
    assert Path(found["record"], "notebook.html").exists()
    assert found["status"] == {0: "completed", 1: "failed", 124: "timeout", 130: "interrupted"}[code]
    assert ("sciml: the run" in answer.stderr) == (code != 0)
    assert "Traceback" not in answer.stderr


@pytest.mark.notebook
def test_batch_types_its_parameters_and_a_dry_run_shows_them(sciml: Any, kernel: None, folder: Path) -> None:
    write_notebook(folder / "n.ipynb", "1", parameters="n_ranks = 1\nrun_id = 'x'\nrate = 0.1")
    (folder / "p.yaml").write_text("run_id: 007\nrate: 5\n")
    words = ["batch", "n.ipynb", "-f", "p.yaml", "-p", "rate", "1e-3", "-n", "2", "--dry-run"]
    out = sciml(*words).out
    assert "run_id = '007'  [given]" in out
    assert "rate = 0.001  [given]" in out
    assert "n_ranks = 2  [given]" in out
    assert "sciml_kernel.jupyter.kernel" in out
    assert "mpiexec" in out
    assert str(records.runs_root()) in out
    assert list(records.runs_root().iterdir()) == []
    answer = sciml("batch", "n.ipynb", "-p", "rat", "1", "--dry-run")
    assert answer.code == 2
    assert "did you mean 'rate'" in answer.err


def test_batch_without_the_kernel_is_exit_code_3(folder: Path) -> None:
    write_notebook(folder / "n.ipynb", "1")
    code = "import sys; sys.prefix = '/nowhere'\nfrom sciml_kernel.cli import main; main(['batch', 'n.ipynb'])"
    env = {**os.environ, "JUPYTER_PATH": "", "JUPYTER_PREFER_ENV_PATH": "0"}
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert answer.returncode == 3, answer.stderr
    assert "sciml kernel install" in answer.stderr


def test_an_output_that_can_not_be_written_is_exit_code_2(kernel: None, folder: Path) -> None:
    write_notebook(folder / "n.ipynb", "1")
    (folder / "file").touch()  # a file where a folder is due: also refused to root
    answer = command("batch", "n.ipynb", SCIML_RUNS=str(folder / "file" / "runs"))
    assert answer.returncode == 2, answer.stderr
    assert str(folder / "file") in answer.stderr


def test_a_closed_pipe_is_no_error_message() -> None:
    program = str(Path(sys.executable).with_name("sciml"))
    answer = subprocess.run(
        ["bash", "-c", f"'{program}' config explain cosmoflow | true"], capture_output=True, text=True, check=False
    )
    assert answer.stderr == ""
