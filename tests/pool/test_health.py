"""The measured state, from files and processes made for the purpose."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sciml_kernel.pool.calls import KEPT_CHARACTERS, RankOutput
from sciml_kernel.pool.card import Card
from sciml_kernel.pool.files import now_utc, write_json
from sciml_kernel.pool.health import measure
from sciml_kernel.pool.processes import MARK, ProcessId, kill_marked, marked_pids, signal_name
from sciml_kernel.pool.spec import PoolDir
from sciml_kernel.pool.tables import one_line, ranks_table
from sciml_kernel.testing.pool_suite import wait_for


@pytest.fixture
def directory() -> Iterator[PoolDir]:
    made = PoolDir.named("p")
    made.create()
    yield made
    made.remove()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "100"], env={**os.environ, MARK: "testmark.1"})
    wait_for(lambda: marked_pids("testmark") == [process.pid])  # between fork and exec it has no environment of its own
    yield process
    process.kill()
    process.wait()


def _write(directory: PoolDir, keeper: ProcessId, **changes: Any) -> None:
    value = {"state": "ready", "reason": "", "generation": 1, "n": 2, "ranks": [], "exits": []}
    write_json(directory.state_path, {**value, "keeper": keeper.to_json(), **changes})


def test_a_live_keeper_is_believed(directory: PoolDir) -> None:
    _write(directory, ProcessId.of(os.getpid()))
    assert (measure(directory).state, measure(directory).live) == ("ready", True)


def test_a_mark_of_a_rank_makes_it_busy(directory: PoolDir) -> None:
    _write(directory, ProcessId.of(os.getpid()))
    marks = directory.generation(1) / "calls"
    marks.mkdir(parents=True)
    write_json(marks / "rank-1.json", {"name": "m:f", "rank": 1, "pid": 1, "since_utc": now_utc()})
    health = measure(directory)
    assert health.state == "busy"
    assert health.call is not None
    assert (health.call["name"], health.call["ranks"]) == ("m:f", [1])


def test_a_killed_keeper_makes_it_dead(directory: PoolDir, sleeper: subprocess.Popen[bytes]) -> None:
    _write(directory, ProcessId.of(sleeper.pid))
    assert measure(directory).state == "ready"
    sleeper.kill()
    sleeper.wait()
    assert measure(directory).state == "dead"
    assert f"pid {sleeper.pid}" in measure(directory).reason


def test_another_process_with_the_keepers_pid_is_not_the_keeper(directory: PoolDir) -> None:
    me = ProcessId.of(os.getpid())
    _write(directory, ProcessId(me.pid, me.start_ticks - 1, me.host))
    assert measure(directory).state == "dead"


def test_a_suspended_keeper_makes_it_dead(directory: PoolDir, sleeper: subprocess.Popen[bytes]) -> None:
    _write(directory, ProcessId.of(sleeper.pid))
    sleeper.send_signal(signal.SIGSTOP)
    wait_for(lambda: measure(directory).state == "dead")
    assert "stopped by a signal" in measure(directory).reason


def test_a_keeper_elsewhere_is_believed_while_it_gives_signs(directory: PoolDir) -> None:
    _write(directory, ProcessId(1, 1, "elsewhere"))
    assert measure(directory).state == "ready"
    long_ago = time.time() - 100
    os.utime(directory.state_path, (long_ago, long_ago))
    assert measure(directory).state == "dead"
    assert "no sign of life from elsewhere" in measure(directory).reason


@pytest.mark.parametrize("text", [None, "", '{"state": "rea', "[]", "{}", '{"keeper": {"pid": 1}, "state": "ready"}'])
def test_a_missing_truncated_or_stale_file_is_dead_not_ready(directory: PoolDir, text: str | None) -> None:
    if text is not None:
        directory.state_path.write_text(text)
    assert measure(directory).state == "dead"


def test_no_directory_is_stopped() -> None:
    assert measure(PoolDir.named("never")).state == "stopped"


def test_an_ended_rank_shows_its_signal_in_the_report(directory: PoolDir) -> None:
    me = ProcessId.of(os.getpid())
    report = {
        "rank": 0, "world_size": 1, "host": me.host, "pid": me.pid, "cores": 1, "memory_gib": 1.0, "gpu": "",
        "versions": {"numpy": "2"}, "mpi_library": "x", "last_seen_utc": now_utc(),
    }  # fmt: skip
    exit_ = {"rank": 0, "host": me.host, "pid": 1, "exit_code": None, "signal": "SIGSEGV", "ended_utc": now_utc()}
    ranks = [{"engine_id": 0, "process": me.to_json(), "report": report}]
    _write(directory, me, ranks=ranks)
    assert list(ranks_table(measure(directory))["state"]) == ["alive"]
    _write(directory, me, ranks=ranks, exits=[exit_], state="dead", reason="<rank 0> lost")
    health = measure(directory)
    assert list(ranks_table(health)["state"]) == ["SIGSEGV"]
    assert "dead" in one_line("p", health)
    assert "&lt;rank 0&gt; lost" in Card("p", health)._repr_html_()


def test_only_marked_processes_are_killed(sleeper: subprocess.Popen[bytes]) -> None:
    other = subprocess.Popen(["sleep", "100"], env={**os.environ, MARK: "testmarkother"})
    try:
        wait_for(lambda: marked_pids("testmarkother") == [other.pid])
        assert kill_marked("testmark") == []
        assert sleeper.wait(5) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_signals_have_names() -> None:
    assert (signal_name(9), signal_name(200)) == ("SIGKILL", "SIG200")


def test_a_flood_of_output_keeps_head_tail_and_count() -> None:
    output = RankOutput()
    for i in range(400):
        output.add(f"{i:04d}" + "x" * 9_996)  # 4 million characters
    text = output.text()
    assert text.startswith("0000x")
    assert text.endswith("x")
    assert "0399" in text
    assert "3000000 characters left out" in text
    assert len(text) < KEPT_CHARACTERS + 200


def test_the_keeper_side_loads_neither_ipyparallel_nor_pandas() -> None:
    code = (
        "import sys, sciml_kernel.pool.keeper, sciml_kernel.pool.wrapper\n"
        "print([m for m in ('ipyparallel', 'pandas', 'numpy', 'zmq', 'mpi4py', 'tensorflow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
