"""`FakePool`: a pool in one process, one thread a rank, for tests of what stands on pools.

It goes through the same calls, failures and states as `Pool`; only the ranks differ. A thread stands for an engine:
an interrupt raises KeyboardInterrupt in it, and `hold` stands for a collective that no interrupt frees.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

from sciml_kernel.contracts import RankExit, RankReport
from sciml_kernel.errors import PoolDeadError, PoolStartError, UsageError
from sciml_kernel.pool import rank as rank_side
from sciml_kernel.pool import setups
from sciml_kernel.pool.base import BasePool
from sciml_kernel.pool.files import now_utc
from sciml_kernel.pool.health import Health, describe_call
from sciml_kernel.pool.processes import ProcessId
from sciml_kernel.pool.setups import SetUp

__all__ = ["FakePool", "hold"]


def hold() -> None:
    """Block this rank until its engine set is replaced or the pool is stopped, whatever interrupts it."""
    link = _thread.link
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            while not link.closed.wait(0.01):
                pass
            raise SystemExit


class _Thread(threading.local):
    link: Any = None


_thread = _Thread()
_output_lock = threading.Lock()  # sys.stdout is one for all threads


class _ThreadLink:
    """One engine set: threads are made for each call, namespaces last."""

    def __init__(self, generation: int, n: int) -> None:
        self.generation, self.n = generation, n
        self.closed = threading.Event()
        self._namespaces: list[dict[str, Any]] = [{"mpi_rank": rank, "mpi_size": n} for rank in range(n)]
        self._running: dict[int, int] = {}  # rank -> thread ident

    def hear(self) -> None:
        """Threads are always heard."""

    def send(
        self,
        rank: int,
        function: str,
        arguments: list[Any],
        *,
        on_reply: Callable[[int, Any], None],
        on_idle: Callable[[int], None],
        on_text: Callable[[int, str, str], None],
        on_data: Callable[[int, Mapping[str, Any]], None],
        on_display: Callable[[int, Mapping[str, Any]], None],
    ) -> None:
        def work() -> None:
            _thread.link = self
            rank_side.set_up(rank=rank, size=self.n, host=socket.gethostname(), this_thread_only=True)
            self._running[rank] = threading.get_ident()
            answer: Any = None
            with contextlib.suppress(SystemExit, KeyboardInterrupt):  # one that came after the guard
                if function == "execute":
                    answer = self._execute(rank, arguments[0], on_text)
                else:
                    answer = getattr(rank_side, function)(*arguments)
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self._running.pop(rank, None)
                if not self.closed.is_set():
                    on_reply(rank, answer)
                    on_idle(rank)

        threading.Thread(target=work, name=f"fake rank {rank}", daemon=True).start()

    def _execute(self, rank: int, code: str, on_text: Callable[[int, str, str], None]) -> Any:
        with _output_lock, contextlib.redirect_stdout(io.StringIO()) as output:
            answer = rank_side.run_guarded(lambda: exec(code, self._namespaces[rank]), "cell")
        if output.getvalue():
            on_text(rank, "stdout", output.getvalue())
        return answer

    def set_up(self, cells: list[SetUp]) -> str:
        """Run set-up cells on all ranks; "" or what failed first."""
        failed: list[str] = []

        def work(rank: int) -> None:
            host = socket.gethostname()
            rank_side.set_up(rank=rank, size=self.n, host=host, this_thread_only=True)
            reason = setups.run_all(cells, lambda code: str(self._execute(rank, code, lambda *_: None)))
            if reason:
                failed.append(f"rank {rank} @ {host}: {reason}")

        for rank in range(self.n) if cells else ():
            thread = threading.Thread(target=work, args=(rank,), daemon=True)
            thread.start()
            thread.join()
        return failed[0] if failed else ""

    def signal(self, number: int, ranks: list[int]) -> None:
        for rank in ranks:
            if rank in self._running:
                _raise_in_thread(self._running[rank], KeyboardInterrupt)

    def running(self) -> list[int]:
        return sorted(self._running)

    def close(self) -> None:
        """What a killed engine set is to its ranks."""
        if self.closed.is_set():
            return
        self.closed.set()
        for ident in list(self._running.values()):
            _raise_in_thread(ident, SystemExit)


class FakePool(BasePool):
    """See `Pool`; `lose_rank` stands for a kill. Start with `FakePool.start(n)`."""

    def __init__(self, n: int = 4, name: str = "fake", *, replace: bool = True) -> None:
        super().__init__()
        self._replace = replace
        self._name, self._n = name, n
        self._state, self._reason, self._started_utc = "ready", "", now_utc()
        self._exits: list[dict[str, Any]] = []
        self._set_ups: list[SetUp] = []
        self._threads = _ThreadLink(1, n)

    @classmethod
    def start(cls, n: int = 4, **options: Any) -> FakePool:
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise UsageError(f"a pool needs at least 1 rank, got n={n!r}; write n=1 or more")
        return cls(n, name=options.get("name") or "fake", replace=options.get("replace", True))

    @property
    def name(self) -> str:
        return self._name

    @property
    def id(self) -> str:
        return f"fake-{id(self)}"

    @property
    def n(self) -> int:
        return self._n if self._state != "stopped" else 0

    def measure(self) -> Health:
        if self._state == "stopped":
            return Health("stopped")
        running = self._threads.running() if self._state == "ready" else []
        name, since_utc = (self._call.name, self._call.since_utc) if self._call else ("a call", "")
        return Health(
            state="busy" if running else self._state,
            reason=self._reason,
            generation=self._threads.generation,
            n=self._n,
            ranks=[self._rank(rank) for rank in range(self._n)],
            exits=self._exits,
            call=describe_call(name, since_utc, running) if running else None,
            n_here=self._n,
            marks=[{"rank": rank, "name": name, "since_utc": since_utc} for rank in running],
            replaces=self._replaces(),
            started_utc=self._started_utc,
            ready_utc=self._started_utc,
            users=[ProcessId.of(os.getpid()).to_json()],
        )

    def _rank(self, rank: int) -> dict[str, Any]:
        host, pid = socket.gethostname(), os.getpid()
        report = RankReport(rank, self._n, host, pid, 1, 0.0, "", {}, "threads", now_utc())
        return {"engine_id": rank, "process": ProcessId.of(pid).to_json(), "report": report.to_json()}

    def taint(self, generation: int, reason: str) -> None:
        if generation == self._threads.generation and self._state == "ready":
            if self._replace:
                self._new_set(self._n)
            else:
                self._state, self._reason = "tainted", reason

    def lose_rank(self, rank: int, signal_name: str = "SIGKILL") -> None:
        """As if the engine of that rank had been ended by a signal."""
        host = socket.gethostname()
        self._exits = [RankExit(rank, host, os.getpid(), None, signal_name, now_utc()).to_json()]
        self._state, self._reason = "dead", f"rank {rank} @ {host} (pid {os.getpid()}) was ended by {signal_name}"
        self._threads.close()

    def restart(self, *, n: int | None = None) -> FakePool:
        if self._state == "stopped":
            raise PoolDeadError(f"pool {self.name!r} is stopped; start another")
        self._new_set(n or self._n)
        if self._state != "ready":
            raise PoolStartError(f"pool {self.name!r}: {self._reason}")
        return self

    def resize(self, n: int) -> FakePool:
        if n < 1:
            raise UsageError(f"a pool needs at least 1 rank, got n={n!r}; write n=1 or more")
        return self.restart(n=n)

    def stop(self) -> None:
        self._state = "stopped"
        self._disconnect()
        self._threads.close()

    def command(self) -> str:
        return f"# {self._n} threads of process {os.getpid()}"

    def logs(self, rank: int | str, *, lines: int | None = None) -> str:
        return ""

    def __enter__(self) -> FakePool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _new_set(self, n: int) -> None:
        self._threads.close()
        self._threads = _ThreadLink(self._threads.generation + 1, n)
        self._n, self._state, self._reason, self._exits = n, "ready", "", []
        failed = self._threads.set_up(self._set_ups)
        if failed:
            self._state, self._reason = "dead", f"start failed: {failed}"
            self._threads.close()

    def _replaces(self) -> bool:
        return self._replace

    def _read_set_ups(self) -> list[SetUp]:
        return [*self._set_ups]

    def _write_set_ups(self, cells: list[SetUp]) -> None:
        self._set_ups = [*cells]

    def _claim(self, health: Health) -> Callable[[], None]:
        return lambda: None  # no other process has these threads

    def _settle(self, generation: int) -> Health:
        return self.measure()

    def _open_link(self, health: Health) -> _ThreadLink:
        return self._threads


def _raise_in_thread(ident: int, kind: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(kind))
