"""Beside the matrix: damaged and stale files, a lost host, processes that are not ranks, real lack of memory."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sciml_kernel.errors import SciMLError
from sciml_kernel.pool import Pool
from sciml_kernel.pool.files import read_json
from sciml_kernel.pool.health import NO_SIGN_S
from sciml_kernel.pool.processes import ProcessId
from sciml_kernel.testing.fault_run import World, plain
from sciml_kernel.testing.pool_suite import HERE, wait_for

__all__ = ["CASES", "Case", "memory_group", "run_case"]

_SIGN_S = 4.0  # a keeper looks at its files every 2 s


@dataclass(frozen=True, slots=True)
class Case:
    """What is broken; `do` breaks it and returns (what the user reads, seconds until then); limit_s: owed."""

    what: str
    do: Callable[[Any, World], tuple[str, float]]
    limit_s: float


def run_case(case: Case, world: World) -> tuple[str, float]:
    """Break it, check that restart() mends all, that stop() twice leaves nothing. Returns what was seen, and seconds.

    Raises AssertionError where a promise is broken.
    """
    with world.environment():
        pool = world.pool()
        try:
            seen, seconds = case.do(pool, world)
            assert seconds < case.limit_s, f"seen after {seconds:.1f} s, owed within {case.limit_s:g} s: {seen}"
            pool.restart()
            assert pool.run(f"{HERE}:who") == [[rank, pool.n] for rank in range(pool.n)]
            world.stop_twice(pool)
        except BaseException:
            world.lose_pool()
            raise
    return plain(seen), round(seconds, 3)


def _error_of(work: Callable[[], Any], words: str) -> str:
    with pytest.raises(SciMLError, match=words) as caught:
        work()
    return str(caught.value)


def _who(pool: Any) -> Callable[[], Any]:
    return lambda: pool.run(f"{HERE}:who")


def _state(pool: Any) -> dict[str, Any]:
    return read_json(pool.path / "pool.json") or {}


# -- files ------------------------------------------------------------------------------------------------------------


def _client_file_truncated(pool: Any, _world: World) -> tuple[str, float]:
    file = pool._directory.connection_file(pool.health().generation)
    file.write_text(file.read_text()[:100])
    begin = time.monotonic()
    return _error_of(_who(Pool.attach(pool.name)), "ipcontroller-client.json is missing or truncated"), _since(begin)


def _client_file_stale(pool: Any, _world: World) -> tuple[str, float]:
    """It names a port where nobody listens, as that of a controller of yesterday."""
    file = pool._directory.connection_file(pool.health().generation)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        file.write_text(json.dumps({**json.loads(file.read_text()), "registration": free.getsockname()[1]}))
    begin = time.monotonic()
    return _error_of(_who(Pool.attach(pool.name)), "can't be reached: its controller does not answer"), _since(begin)


def _engine_file_truncated(pool: Any, _world: World) -> tuple[str, float]:
    """The ranks of the next set find half a file; the second try is whole."""
    generation = pool.health().generation + 1
    file = pool._directory.engine_file(generation)
    file.parent.mkdir(parents=True)
    file.write_text('{"ssh": "", "interface": "tcp://127')
    begin = time.monotonic()
    thread = threading.Thread(target=pool.restart, name="restart with a truncated file", daemon=True)
    thread.start()
    wait_for(lambda: _state(pool).get("generation") == generation and _state(pool)["pids"].get("controller"))
    os.kill(int(_state(pool)["pids"]["controller"]), signal.SIGSTOP)  # else it may be whole before a rank reads it
    thread.join(60.0)
    assert not thread.is_alive(), "restart() hangs"
    seconds = _since(begin)
    assert pool.state == "ready"
    assert pool.health().generation == generation + 1
    assert "JSONDecodeError" in pool.logs(0) + pool.logs(1), "the ranks did not meet the truncated file"
    return "ready: a second engine set was started by itself; logs(rank) has the reason", seconds


def _state_file_truncated(pool: Any, _world: World) -> tuple[str, float]:
    begin = time.monotonic()
    (pool.path / "pool.json").write_text('{"state": "rea')
    text = _error_of(_who(pool), r"is dead: \S+pool.json is missing or truncated")
    wait_for(lambda: pool.state == "ready", _SIGN_S)
    return f"{text.partition(';')[0]}; ready again when the keeper has written it anew", _since(begin)


def _spec_file_truncated(pool: Any, _world: World) -> tuple[str, float]:
    begin = time.monotonic()
    (pool.path / "spec.json").write_text("{")
    text = _error_of(pool.restart, r"spec.json is missing or truncated; its keeper writes it again")
    wait_for(lambda: pool.n == 2, _SIGN_S)
    return text, _since(begin)


def _all_files_truncated(pool: Any, _world: World) -> tuple[str, float]:
    """The keeper, who could mend them, was killed; spec.json alone is left."""
    os.kill(int(_state(pool)["keeper"]["pid"]), signal.SIGKILL)
    begin = time.monotonic()
    (pool.path / "pool.json").write_text("")
    return _error_of(_who(pool), "pool.json is missing or truncated; restart"), _since(begin)


# -- processes that are not ranks -------------------------------------------------------------------------------------


def _keeper_killed(pool: Any, _world: World) -> tuple[str, float]:
    return _killed(pool, int(_state(pool)["keeper"]["pid"]), r"the keeper @ \S+ \(pid \d+\) ended")


def _mpiexec_killed(pool: Any, _world: World) -> tuple[str, float]:
    """Its ranks die with it, so a rank may be named first."""
    return _killed(pool, int(_state(pool)["pids"]["mpiexec"]), r"mpiexec ended with signal 9|rank \d @ \S+ \(pid \d+\)")


def _scheduler_killed(pool: Any, _world: World) -> tuple[str, float]:
    controller = int(_state(pool)["pids"]["controller"])
    child = Path(f"/proc/{controller}/task/{controller}/children").read_text().split()[0]
    return _killed(pool, int(child), "a scheduler of the controller")


def _killed(pool: Any, pid: int, words: str) -> tuple[str, float]:
    call = pool.submit(f"{HERE}:wait_in_collective")
    wait_for(lambda: pool.measure().state == "busy")
    begin = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    assert call.wait(12.0), "the call goes on: this would hang"
    seconds = _since(begin)
    text = _error_of(call.result, words)
    assert pool.state == "dead"
    return text, seconds


# -- hosts and memory -------------------------------------------------------------------------------------------------


def _host_lost(pool: Any, _world: World) -> tuple[str, float]:
    """As a reader on another host sees a keeper whose node was switched off: pool.json is not renewed any more."""
    keeper = int(_state(pool)["keeper"]["pid"])
    os.kill(keeper, signal.SIGKILL)
    wait_for(lambda: not ProcessId.of(keeper).alive())
    seen = _state(pool)
    seen["keeper"]["host"] = "nid00099"
    file = pool.path / "pool.json"
    file.write_text(json.dumps(seen))
    assert pool.state == "ready"  # a sign of life is not due yet
    os.utime(file, (time.time(), time.time() - NO_SIGN_S - 1))
    text = _error_of(_who(pool), r"no sign of life from nid00099 for \d+ s")
    return re.sub(r"for \d+ s", "for N s", text), NO_SIGN_S


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path | None]:
    """A control group of ours with a limit, for the processes that join it; None where none can be made."""
    version_1 = Path("/sys/fs/cgroup/memory")
    place = (version_1 if version_1.is_dir() else Path("/sys/fs/cgroup")) / f"sciml-fault-{os.getpid()}"
    limit = "memory.limit_in_bytes" if version_1.is_dir() else "memory.max"
    try:
        place.mkdir()
        (place / limit).write_text(str(limit_bytes))
    except OSError:
        with suppress(OSError):
            place.rmdir()
        yield None
        return
    try:
        yield place
    finally:
        for _ in range(100):
            with suppress(OSError):
                place.rmdir()
            if not place.exists():
                break
            time.sleep(0.05)


def killed_for_memory(pool_home: Path) -> tuple[str, float] | None:
    """A whole pool in a control group of 700 MiB, one rank of which wants more. None where that can't be set up."""
    code = (
        "import os, sys, time, sciml_kernel as sk\n"
        "open(sys.argv[1] + '/cgroup.procs', 'w').write(str(os.getpid()))\n"
        "pool = sk.Pool.start(2, oversubscribe=True)\n"
        "begin = time.monotonic()\n"
        "try:\n"
        "    pool.execute('if mpi_rank == 1: held = [bytearray(b\"x\") * 2**26 for _ in range(64)]')\n"
        "except sk.errors.PoolDeadError as error:\n"
        "    print(round(time.monotonic() - begin, 3), error, flush=True)\n"
        "pool.stop()\n"
    )
    with memory_group(700 * 2**20) as place:
        if place is None:
            return None
        done = subprocess.run(
            [sys.executable, "-c", code, str(place)],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            env={**os.environ, "XDG_STATE_HOME": str(pool_home)},
        )
        assert done.stdout, done.stderr
    seconds, _, text = done.stdout.strip().partition(" ")
    assert "rank 1 @" in text, text
    assert "memory ran out, and the kernel killed it" in text, text
    return plain(text), float(seconds)


CASES = [
    Case("client's connection file truncated", _client_file_truncated, 1.0),
    Case("client's connection file stale", _client_file_stale, 12.0),
    Case("ranks' connection file truncated", _engine_file_truncated, 12.0),
    Case("pool.json truncated", _state_file_truncated, _SIGN_S),
    Case("spec.json truncated", _spec_file_truncated, _SIGN_S),
    Case("pool.json truncated and keeper killed", _all_files_truncated, 1.0),
    Case("keeper killed", _keeper_killed, 1.0),
    Case("mpiexec killed", _mpiexec_killed, 1.0),
    Case("a scheduler of the controller killed", _scheduler_killed, 10.0),
    Case("host of the keeper lost", _host_lost, NO_SIGN_S + 1),
]


def _since(begin: float) -> float:
    return time.monotonic() - begin
