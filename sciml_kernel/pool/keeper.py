"""One small process a pool: `python -m sciml_kernel.pool.keeper POOL_DIR`.

It owns the engine set, watches it, writes `pool.json` on every change and takes commands on a unix socket in the pool's
directory. It outlives the notebook; nothing of the pool outlives it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import selectors
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

from sciml_kernel.pool import setups
from sciml_kernel.pool.files import now_utc, read_json, write_json
from sciml_kernel.pool.generation import Generation
from sciml_kernel.pool.owner import OwnerWatch
from sciml_kernel.pool.processes import MARK, ProcessId, kill_marked
from sciml_kernel.pool.spec import PoolDir, PoolSpec

__all__ = ["Keeper", "socket_address"]

TICK_S = 0.1
ALIVE_SIGN_S = 2.0  # how often pool.json's time is renewed, for readers on other hosts
SLOW_CHECK_S = 0.5


class Keeper:
    """state is one of spec.STATES save busy, which the ranks' own markers tell."""

    def __init__(self, directory: PoolDir, spec: PoolSpec) -> None:
        self._directory, self._spec = directory, spec
        self._state, self._reason = "starting", ""
        self._exits: list[dict[str, Any]] = []
        self._engines: Generation | None = None
        self._number = 0
        self._retried = False
        self._ready_utc = ""
        self._start_deadline = 0.0
        self._last_used = time.monotonic()
        self._users = [user for user in [ProcessId.from_json(spec.owner)] if user]
        self._use: dict[str, Any] = {"users": [user.to_json() for user in self._users], "idle_since_utc": None}
        self._owner = OwnerWatch(directory.path)
        self._selector = selectors.DefaultSelector()
        self._pidfds: list[int] = []
        self._stopping, self._unwritten = "", False
        self._next_sign = self._next_slow = 0.0

    def main(self) -> None:
        self._catch_signals()
        listener = self._listen()
        self._selector.register(listener, selectors.EVENT_READ, self._answer)
        self._launch()
        while not self._stopping:
            for key, _ in self._selector.select(TICK_S):
                key.data(key.fileobj)
            if not self._stopping:
                self._look()
        self._end_engines()
        listener.close()
        kill_marked(self._spec.id, spare=os.getpid(), timeout_s=1.0)
        if self._stopping == "expired":
            self._directory.path.joinpath("keeper.sock").unlink(missing_ok=True)
            self._set("expired", self._reason)
        else:
            self._directory.remove()

    # -- what it sees -------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        now = time.monotonic()
        if self._state == "starting":
            self._look_at_start(now)
        elif self._state in ("ready", "tainted") and self._engines is not None:
            trouble = self._engines.trouble()
            if trouble:
                self._lose(trouble)
        if now >= self._next_slow:
            self._next_slow = now + SLOW_CHECK_S
            self._look_at_users(now)
        if now >= self._next_sign:
            self._next_sign = now + ALIVE_SIGN_S
            self._give_sign()

    def _give_sign(self) -> None:
        """Renew the time of pool.json; write again what is damaged, or could not be written before."""
        if not self._directory.path.is_dir():  # somebody removed it: the pool can't be reached any more
            self._stopping = "stopped"
        elif self._unwritten or read_json(self._directory.state_path) is None:
            self._set(self._state, self._reason)
        else:
            os.utime(self._directory.state_path)
        if not self._stopping and self._directory.read_spec() is None:
            self._directory.write_spec(self._spec)

    def _look_at_start(self, now: float) -> None:
        assert self._engines is not None
        here, wrong = self._engines.arrived()
        if here:
            self._retried = False
            self._ready_utc = now_utc()
            self._set("ready", "")
            return
        trouble = wrong or self._engines.trouble()
        if trouble and not wrong and not self._retried:
            self._retried = True  # a port that was free when the controller chose it may be taken when it binds
            self._end_engines()
            self._launch(self._start_deadline)
        elif trouble:
            known = wrong or self._engines.some_arrived()  # then MPI itself works
            doubt = "" if known else f"; is {self._spec.mpiexec} of the MPI that mpi4py uses? `sciml doctor` checks it"
            self._lose(f"start failed: {trouble}{doubt}\n{self._engines.last_words([0])}".rstrip())
        elif now > self._start_deadline:
            waited_s = setups.start_limit_s(self._directory, self._spec)
            self._lose(f"start failed: after {waited_s:.3g} s {self._engines.missing()}")

    def _look_at_users(self, now: float) -> None:
        """The time to live runs while no living process uses the pool and no call runs."""
        self._users = [user for user in self._users if not user.here or user.alive()]
        if self._owner.batch_gone() or (not self._users and self._owner.gone(now)):
            self._stopping = "stopped"
        if self._users or (self._engines is not None and self._engines.calls()):
            self._last_used = now
        elif self._spec.ttl_s is not None and now - self._last_used > self._spec.ttl_s:
            self._reason = f"nobody used it for {self._spec.ttl_s:g} s (ttl_s)"
            self._stopping = "expired"
        self._note_use(now)

    def _note_use(self, now: float) -> None:
        """Who uses it and since when nobody does, for those who look; written when it changes only."""
        idle_since = None if self._last_used == now else self._use["idle_since_utc"] or now_utc()
        use = {"users": [user.to_json() for user in self._users], "idle_since_utc": idle_since}
        if use != self._use and not self._stopping:
            self._use = use
            self._set(self._state, self._reason)

    # -- what it does -------------------------------------------------------------------------------------------------

    def _launch(self, deadline: float | None = None) -> None:
        self._number += 1
        self._start_deadline = deadline or time.monotonic() + setups.start_limit_s(self._directory, self._spec)
        self._exits = []
        self._engines = Generation(self._directory, self._spec, self._number)
        try:
            self._engines.start()
        except OSError as error:
            self._lose(f"start failed: {error}")
            return
        for pid in self._engines.watch():
            descriptor = os.pidfd_open(pid)
            self._pidfds.append(descriptor)
            self._selector.register(descriptor, selectors.EVENT_READ, self._forget_pidfd)
        self._set("starting", self._reason)

    def _forget_pidfd(self, descriptor: Any) -> None:
        """The process of this descriptor has ended; `_look` says what it means."""
        self._selector.unregister(descriptor)
        self._pidfds.remove(descriptor)
        os.close(descriptor)

    def _end_engines(self) -> None:
        for descriptor in list(self._pidfds):
            self._forget_pidfd(descriptor)
        if self._engines is not None:
            self._engines.end()

    def _lose(self, reason: str) -> None:
        """Say it first, clean up afterwards: a caller that waits learns of it at once."""
        assert self._engines is not None
        self._exits = self._engines.exits()
        self._set("dead", reason)
        self._end_engines()

    def _replace(self, state: str, reason: str, n: int | None = None) -> None:
        self._set(state, reason)
        old = self._engines
        self._end_engines()
        if n is not None:
            threads = max(1, self._spec.cores // n)
            self._spec = dataclasses.replace(self._spec, n=n, threads_per_rank=threads)
            self._directory.write_spec(self._spec)
        self._retried = False
        self._launch()
        if old is not None:
            import shutil

            shutil.rmtree(self._directory.generation(old.number), ignore_errors=True)

    def _set(self, state: str, reason: str) -> None:
        self._state, self._reason = state, reason
        engines = self._engines
        value = {
            "schema": 1,
            "name": self._spec.name,
            "state": state,
            "reason": reason,
            "n": self._spec.n,
            "generation": self._number,
            "keeper": ProcessId.of(os.getpid()).to_json(),
            "pids": engines.pids if engines else {},
            "ranks": engines.ranks if engines else [],
            "exits": self._exits,
            "created_utc": self._spec.created_utc,
            "ready_utc": self._ready_utc,
            "changed_utc": now_utc(),
            "replace": self._spec.replace,
            "ttl_s": self._spec.ttl_s,
            "ends_utc": None,  # a launcher with a time limit knows it
            **self._use,
        }
        try:
            write_json(self._directory.state_path, value)
            self._unwritten = False
        except FileNotFoundError:
            self._stopping = "stopped"
        except OSError as error:  # a full disk must not cost the pool; `_give_sign` tries again
            self._unwritten = True
            print(f"{self._directory.state_path} can't be written: {error}", file=sys.stderr, flush=True)

    # -- commands -----------------------------------------------------------------------------------------------------

    def _answer(self, listener: Any) -> None:
        """Take one JSON line, answer with one. The caller is another process of the same user."""
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(1.0)
            try:
                credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                if struct.unpack("3i", credentials)[1] not in (os.getuid(), 0):
                    return
                request = json.loads(connection.makefile("r").readline() or "{}")
                # Answered before it is done: ending an engine set takes longer than a caller should wait to be heard.
                answer, action = self._command(request)
                connection.sendall((json.dumps(answer) + "\n").encode())
            except (OSError, ValueError):
                return
        if action is not None:
            action()

    def _command(self, request: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        now = {"ok": True, "state": self._state, "generation": self._number}
        match request.get("command"):
            case "hello":
                user = ProcessId.from_json(request.get("process"))
                if user and user not in self._users:
                    self._users.append(user)
                return now, None
            case "restart":
                n = request.get("n")
                if self._state == "starting" and n in (None, self._spec.n):
                    return now, None  # join the one that is under way
                return now | {"generation": self._number + 1}, lambda: self._replace("starting", "", n)
            case "taint":
                if request.get("generation") != self._number or self._state != "ready":
                    return now, None
                reason = str(request.get("reason", ""))
                self._set("tainted", reason)
                then = (lambda: self._replace("tainted", reason)) if self._spec.replace else None
                return now | {"state": "tainted"}, then
            case "stop":
                self._stopping = "stopped"
                return now, None
            case other:
                return {"ok": False, "error": f"unknown command {other!r}"}, None

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        self._directory.path.joinpath("keeper.sock").unlink(missing_ok=True)
        with socket_address(self._directory.path) as address:
            listener.bind(address)
        listener.listen(16)
        return listener

    def _catch_signals(self) -> None:
        def stop(_number: int, _frame: Any) -> None:
            self._stopping = self._stopping or "stopped"

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


class socket_address:
    """Context: a path of `keeper.sock` in `directory` that fits into the 108 bytes of a unix socket's address."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __enter__(self) -> str:
        self._descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        return f"/proc/self/fd/{self._descriptor}/keeper.sock"

    def __exit__(self, *exception: object) -> None:
        os.close(self._descriptor)


def main(arguments: list[str]) -> int:
    os.umask(0o077)
    directory = PoolDir(Path(arguments[0]))
    spec = directory.read_spec()
    if spec is None:
        print(f"{directory.spec_path} can't be read", file=sys.stderr)
        return 2
    assert os.environ.get(MARK) == spec.id, "the keeper is started by pool.control"
    Keeper(directory, spec).main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
