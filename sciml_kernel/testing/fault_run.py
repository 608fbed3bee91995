"""Runs one cell of the fault matrix: breaks it, and checks and measures what is seen and what is left."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sciml_kernel.errors import PoolDeadError, PoolStartError, RecordError, RemoteError, SciMLError
from sciml_kernel.pool import FakePool, Pool
from sciml_kernel.pool.files import read_json
from sciml_kernel.pool.leftovers import own_tmp
from sciml_kernel.pool.processes import marked_pids
from sciml_kernel.testing import fault_ranks, pool_suite
from sciml_kernel.testing.fault_suite import (
    LIMITS_S,
    RESTART_LIMIT_S,
    START_LIMIT_S,
    STOP_LIMIT_S,
    Cell,
)
from sciml_kernel.testing.machine import open_mpi, remains
from sciml_kernel.testing.pool_suite import wait_for

__all__ = ["Outcome", "World", "plain", "run_cell"]

N_RANKS = 2
_SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP, "controller": signal.SIGKILL}
_ENTER_S = 60.0  # the first import of TensorFlow on a busy machine
_RANK_VARIABLES = (b"PMI_RANK=", b"OMPI_COMM_WORLD_RANK=")


@dataclass(frozen=True, slots=True)
class Outcome:
    """seen: what the user reads, without pids. state: of the pool then. seen_s: from the fault until it was seen.
    then_s: how long restart(), or the first stop(), took.
    """

    cell: Cell
    seen: str
    state: str
    seen_s: float
    then_s: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class World:
    """The pools of one MPI. A pool that a cell left ready serves the next; `close` ends it."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name, self.directory = name, directory
        self._pool: Any = None
        self._before = remains()

    @contextmanager
    def environment(self) -> Iterator[None]:
        variables = {"XDG_STATE_HOME": str(self.directory), "HOROVOD_STALL_CHECK_DISABLE": "1"}
        if self.name == "openmpi":
            variables["SCIML_MPI"] = str(open_mpi(self.directory))
        with mock.patch.dict(os.environ, variables):
            yield

    def pool(self) -> Any:
        """A ready pool of two ranks."""
        self._before = remains()
        if self._pool is None:
            self._pool = FakePool.start(N_RANKS) if self.name == "fake" else Pool.start(N_RANKS, oversubscribe=True)
        assert self._pool.state == "ready", self._pool
        return self._pool

    def lose_pool(self) -> None:
        """The pool in hand is not to be used again; whatever is left of it ends."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()

    def stop_twice(self, pool: Any) -> float:
        """Seconds of the first stop; nothing of the pool is left."""
        mark = "" if self.name == "fake" else pool._spec().id
        begin = time.monotonic()
        pool.stop()
        first_s = time.monotonic() - begin
        begin = time.monotonic()
        pool.stop()
        assert time.monotonic() - begin < STOP_LIMIT_S
        assert first_s < STOP_LIMIT_S, f"stop took {first_s:.1f} s"
        assert pool.state == "stopped"
        if mark:
            assert marked_pids(mark) == []
            assert not pool.path.exists()
            assert list(own_tmp(mark).parent.glob(f"{own_tmp(mark).name}*")) == []
            left = remains() - self._before
            assert not left, f"left behind: {sorted(left)}"
        self._pool = None
        return first_s

    def close(self) -> None:
        if self._pool is not None:
            with self.environment():
                self.stop_twice(self._pool)


def run_cell(cell: Cell, world: World) -> Outcome:
    """Raises AssertionError where a promise is broken; the pool in hand is then ended."""
    scratch = Path(tempfile.mkdtemp(prefix="fault-"))
    try:
        with world.environment():
            return _Run(cell, world, scratch).run()
    except BaseException:
        with world.environment():
            world.lose_pool()
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


class _Run:
    def __init__(self, cell: Cell, world: World, scratch: Path) -> None:
        self.cell, self.world, self.scratch = cell, world, scratch
        self.rank = 0 if cell.moment == "checkpoint" else N_RANKS - 1
        self.pool: Any = None

    def run(self) -> Outcome:
        cell = self.cell
        self.pool = self.world.pool()
        begin: Callable[[], tuple[str, float]] = {
            "start": self.at_start,
            "idle": self.at_idle,
        }.get(cell.moment, self.in_call)
        seen, seen_s = begin()
        limit_s = START_LIMIT_S if cell.moment == "start" else LIMITS_S[cell.fault]
        assert seen_s < limit_s, f"seen after {seen_s:.2f} s, owed within {limit_s:g} s: {seen}"
        state = self.pool.state
        if cell.moment == "checkpoint":
            _only_whole_checkpoints(self.scratch / "checkpoints")
        return Outcome(cell, plain(seen), state, round(seen_s, 3), round(self.afterwards(), 3))

    def afterwards(self) -> float:
        """Seconds of restart(), after which n ranks with rank == id answer; or of stop(), and nothing is left."""
        if self.cell.then == "stop":
            return self.world.stop_twice(self.pool)
        begin = time.monotonic()
        self.pool.restart()
        seconds = time.monotonic() - begin
        assert seconds < RESTART_LIMIT_S, f"restart took {seconds:.1f} s"
        self._whole()
        return seconds

    def _whole(self) -> None:
        assert self.pool.run(f"{pool_suite.HERE}:who") == [[rank, N_RANKS] for rank in range(N_RANKS)]
        assert self.pool.state == "ready"

    # -- in a call ----------------------------------------------------------------------------------------------------

    def in_call(self) -> tuple[str, float]:
        if self.cell.fault == "client":
            return self._client_in_call()
        function = f"{fault_ranks.HERE}:{fault_ranks.MOMENT_FUNCTIONS[self.cell.moment].__name__}"
        call = self.pool.submit(function, self.cell.fault, self.rank, str(self.scratch))
        wait_for(lambda: call.done() or self._entered(), _ENTER_S)
        assert not call.done(), call.result()
        begin = self._break()
        assert call.wait(20.0), "the call goes on: this would hang"
        end = time.time()
        with pytest.raises(SciMLError) as caught:
            call.result()
        self._check_error(caught.value)
        return str(caught.value), end - (begin or self._fault_time())

    def _entered(self) -> bool:
        return all((self.scratch / f"entered-{rank}").exists() for rank in range(N_RANKS))

    def _break(self) -> float:
        """Do it, or let the rank do it; return the time of it, 0.0 where the rank notes it."""
        fault = self.cell.fault
        if fault not in _SIGNALS:
            (self.scratch / "go").touch()
            return 0.0
        if self.cell.moment == "checkpoint":
            writing = self.scratch / "checkpoints"
            wait_for(lambda: any(writing.glob(".*.tmp")))
        if self.world.name == "fake":
            begin = time.time()
            self.pool.lose_rank(self.rank)
            return begin
        pid = self._controller() if fault == "controller" else self._rank_pid(self.rank)
        begin = time.time()
        os.kill(pid, _SIGNALS[fault])
        return begin

    def _fault_time(self) -> float:
        return float((self.scratch / "fault").read_text())

    def _check_error(self, error: SciMLError) -> None:
        """The kind of error, and whether it names what broke."""
        fault, text = self.cell.fault, str(error)
        if fault in ("raises", "memory"):
            assert isinstance(error, RemoteError), repr(error)
            assert error.rank == self.rank
            kind = "MemoryError" if fault == "memory" else "ValueError"
            assert error.type_name == ("RecordError" if self.cell.moment == "checkpoint" else kind), text
            assert error.traceback
        else:
            assert isinstance(error, PoolDeadError), repr(error)
            assert _WORDS[fault].format(rank=self.rank) in plain(text), text
            assert self.pool.state == "dead"

    # -- with nothing running -----------------------------------------------------------------------------------------

    def at_idle(self) -> tuple[str, float]:
        if self.cell.fault == "client":
            return self._client_at_idle()
        begin = self._break()
        wait_for(lambda: self.pool.state == "dead", 12.0)
        seconds = time.time() - begin
        with pytest.raises(PoolDeadError) as caught:
            self.pool.run(f"{pool_suite.HERE}:who")
        self._check_error(caught.value)
        return str(caught.value), seconds

    # -- at start -----------------------------------------------------------------------------------------------------

    def at_start(self) -> tuple[str, float]:
        if self.cell.fault == "client":
            return self._client_at_start()
        if self.cell.fault in _SIGNALS:
            return self._signal_at_start()
        code = f"import {fault_ranks.HERE} as _f\n_f.break_in_set_up({self.cell.fault!r}, {str(self.scratch)!r})"
        self.pool.set_up(code)
        (self.scratch / "go").touch()
        with pytest.raises(PoolStartError) as caught:
            self.pool.restart()
        seconds, text = time.time() - self._fault_time(), str(caught.value)
        expected = {"raises": "ValueError: raised on purpose", "memory": "MemoryError"}
        assert expected.get(self.cell.fault, _WORDS["exits"].format(rank=self.rank)) in plain(text), text
        assert f"rank {self.rank} @ " in text
        assert self.pool.state == "dead"
        self.pool.forget_set_ups()
        return text.partition("\n")[0], seconds

    def _signal_at_start(self) -> tuple[str, float]:
        """One loss during a start is mended by a second try; the user waits a moment longer."""
        generation = self.pool.health().generation + 1
        result: list[Any] = []

        def restart() -> None:
            try:
                self.pool.restart()
            except BaseException as error:
                result.append(error)

        thread = threading.Thread(target=restart, name="restart under fault", daemon=True)
        thread.start()
        find = self._starting_controller if self.cell.fault == "controller" else self._starting_engine
        wait_for(lambda: find(generation), 20.0)
        begin = time.time()
        os.kill(find(generation) or 0, _SIGNALS[self.cell.fault])
        thread.join(60.0)
        assert not thread.is_alive(), "restart() hangs"
        seconds = time.time() - begin
        assert not result, result
        assert self.pool.health().generation == generation + 1
        self._whole()
        return "ready: a second engine set was started by itself", seconds

    def _starting_engine(self, generation: int) -> int:
        """Pid of the engine of our rank while it starts: the child of its wrapper; 0 when it is not there yet."""
        found = {pid for pid in marked_pids(f"{self.pool._spec().id}.{generation}") if self._of_our_rank(pid)}
        wrappers = {pid for pid in found if _parent(pid) not in found}
        return next((pid for pid in sorted(found) if _parent(pid) in wrappers), 0)

    def _of_our_rank(self, pid: int) -> bool:
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
        return any(name + str(self.rank).encode() in variables for name in _RANK_VARIABLES)

    def _starting_controller(self, generation: int) -> int:
        seen = read_json(self.pool.path / "pool.json") or {}
        return int(seen["pids"].get("controller", 0)) if seen.get("generation") == generation else 0

    # -- the client is killed -----------------------------------------------------------------------------------------

    def _client_at_start(self) -> tuple[str, float]:
        """The process is killed in the middle of Pool.start; another one uses the pool."""
        name = "orphan"
        self.world.stop_twice(self.pool)  # one pool at a time
        with _client(f"sk.Pool.start({N_RANKS}, name={name!r}, oversubscribe=True)") as process:
            place = self.pool.path.parent / name
            wait_for(lambda: (read_json(place / "pool.json") or {}).get("state") == "starting", 20.0)
            process.kill()
            process.wait()
            begin = time.time()
            self.world._pool = self.pool = Pool.attach(name)
        self._whole()
        return "the start goes on; Pool.attach() finds it ready", time.time() - begin

    def _client_at_idle(self) -> tuple[str, float]:
        with _client(
            f"pool = sk.Pool.attach({self.pool.name!r}); pool.execute('kept = 40 + mpi_rank'); wait()"
        ) as process:
            process.stdout.readline()
            process.kill()
            process.wait()
        begin = time.time()
        found = Pool.attach(self.pool.name)
        seconds = time.time() - begin
        assert found.state == "ready"
        found.execute("assert kept == 40 + mpi_rank")
        return "Pool.attach() finds it ready, with its variables", seconds

    def _client_in_call(self) -> tuple[str, float]:
        """The call of the killed client goes on to its end, and the pool is then ready."""
        function = f"{fault_ranks.HERE}:{fault_ranks.MOMENT_FUNCTIONS[self.cell.moment].__name__}"
        call = f"pool.submit({function!r}, 'client', {self.rank}, {str(self.scratch)!r})"
        with _client(f"pool = sk.Pool.attach({self.pool.name!r}); call = {call}; wait()") as process:
            process.stdout.readline()
            wait_for(self._entered, _ENTER_S)
            process.kill()
            process.wait()
        begin = time.time()
        found = Pool.attach(self.pool.name)
        seconds = time.time() - begin
        health = found.health()
        assert health.state == "busy"
        assert health.call is not None
        assert health.call["name"] == function
        if self.cell.then == "restart":
            (self.scratch / "go").touch()
            wait_for(lambda: found.state == "ready", 30.0)
            self._whole()
            return "Pool.attach() finds it busy; the call ends as it would have, then it is ready", seconds
        return "Pool.attach() finds it busy with the call", seconds

    # -- processes ----------------------------------------------------------------------------------------------------

    def _rank_pid(self, rank: int) -> int:
        return int(next(entry["report"]["pid"] for entry in self.pool.health().ranks if entry["engine_id"] == rank))

    def _controller(self) -> int:
        return int((read_json(self.pool.path / "pool.json") or {})["pids"]["controller"])


_WORDS = {
    "exits": "rank {rank} @ HOST (pid P) ended with exit code 7",
    "SIGKILL": "rank {rank} @ HOST (pid P) was ended by SIGKILL",
    "SIGSTOP": "rank {rank} @ HOST (pid P) was stopped by SIGSTOP",
    "controller": "the controller (pid P) ended with signal 9",
}


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return -1


def plain(text: str) -> str:
    """Without what differs from run to run: pids, host, directories."""
    text = re.sub(r"pid \d+", "pid P", text.replace(socket.gethostname(), "HOST"))
    return re.sub(r"/\S+/(fault-\w+|state[\w-]*|tmp\w*)/", ".../", text)


@contextmanager
def _client(code: str) -> Iterator[Any]:
    """A process that says a line and waits, until it is killed."""
    head = "import time, sciml_kernel as sk\ndef wait():\n    print('there', flush=True)\n    time.sleep(120)\n"
    with subprocess.Popen([sys.executable, "-c", head + code], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _only_whole_checkpoints(directory: Path) -> None:
    """What has the name of a checkpoint is one, with the hash that it was written with.

    Where only the client was killed the training goes on meanwhile: newer ones appear and the oldest are deleted.
    """
    from sciml_kernel.engine.checkpoint import newest, read

    steps = []
    for path in sorted(directory.glob("step-*.npz")):
        try:
            steps.append(read(path).position.step)
        except RecordError:
            if path.exists():
                raise
    passed_over: list[str] = []
    snapshot = newest(directory, say=passed_over.append)
    assert passed_over == []
    assert steps
    assert max(steps) <= snapshot.position.step
