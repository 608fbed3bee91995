"""Commands with a log: retries, a sign of life, the end of the log on failure, a clean end on interrupt."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sciml_env.say import FAILED, Log, SetupError


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setenv("SCIML_SETUP_RETRY_S", "0.01")
    return Log(tmp_path / "logs" / "setup.log", heartbeat_s=0.05)


def test_a_broken_download_is_tried_again(log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    count = tmp_path / "count"
    script = f'echo x >> "{count}"; [ $(wc -l < "{count}") -ge 3 ] || {{ echo "connection reset"; exit 1; }}'
    log.run(["sh", "-c", script], what="downloading", tries=4)
    assert count.read_text().count("x") == 3
    said = capsys.readouterr().out
    assert "connection reset" in said
    assert "try 3 of 4" in said


def test_a_full_disk_is_not_tried_again(log: Log, tmp_path: Path) -> None:
    script = f'echo x >> "{tmp_path / "count"}"; echo "No space left on device"; exit 1'
    with pytest.raises(SetupError, match="No space left"):
        log.run(["sh", "-c", script], what="unpacking", tries=4)
    assert (tmp_path / "count").read_text().count("x") == 1


def test_a_failure_shows_the_last_20_lines_and_the_log(log: Log) -> None:
    with pytest.raises(SetupError) as caught:
        log.run(["sh", "-c", "seq 100 130; exit 7"], what="building", hint="try a newer compiler")
    text = str(caught.value)
    assert caught.value.code == FAILED
    assert "building failed (exit code 7)" in text
    assert str(log.path) in text
    assert "\n111\n" in text
    assert "\n110\n" not in text
    assert "try a newer compiler" in text


def test_a_command_that_is_missing_is_a_failure_not_a_traceback(log: Log) -> None:
    with pytest.raises(SetupError, match="No such file or directory: '/no/such/tool'"):
        log.run(["/no/such/tool"], what="running it")


def test_a_long_step_shows_that_it_lives(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    script = "echo '[ 42%] Building CXX object'; echo 'warning: noise'; sleep 0.4"
    log.run(["sh", "-c", script], what="building", progress=r"\[ *\d+%\]")
    said = capsys.readouterr().out
    assert "[ 42%] Building CXX object" in said
    assert "noise" not in said


def test_an_interrupt_ends_what_the_command_started(tmp_path: Path, project: Path) -> None:
    # The build is a tree of processes; a grandchild writes its pid and would sleep for a minute.
    pid_file = tmp_path / "pid"
    code = (
        "import sys, signal, pathlib; sys.path.insert(0, sys.argv[1]); from sciml_env import main, say\n"
        "signal.signal(signal.SIGTERM, main._terminated)\n"
        "log = say.Log(pathlib.Path(sys.argv[2]) / 'log')\n"
        "try: log.run(['sh', '-c', 'sh -c \"echo \\$\\$ > pid.new; mv pid.new pid; sleep 60\"; true'],"
        " what='x', cwd=pathlib.Path(sys.argv[2]))\n"
        "except say.SetupError as error: sys.exit(error.code)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(project / "env" / "lib"), str(tmp_path)])
    deadline = time.monotonic() + 20
    while not pid_file.exists() and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.01)
    grandchild = int(pid_file.read_text())
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 143
    while _lives(grandchild) and time.monotonic() < deadline:  # its new parent reaps it
        time.sleep(0.01)
    assert not _lives(grandchild)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False
