"""Talks to a pool's keeper; starts one; ends a pool whose keeper can't do it any more."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

from sciml_kernel.errors import PoolDeadError, PoolError
from sciml_kernel.pool import leftovers
from sciml_kernel.pool.files import age_s, read_json
from sciml_kernel.pool.health import Health, measure
from sciml_kernel.pool.keeper import socket_address
from sciml_kernel.pool.processes import MARK, ProcessId, kill_marked
from sciml_kernel.pool.spec import PoolDir, PoolSpec

__all__ = ["clear", "end", "request", "spawn_keeper", "wait_settled"]

POLL_S = 0.02

_keepers: dict[int, Path] = {}  # children of this process, by pid, and their pools: one that ends must be reaped


def spawn_keeper(directory: PoolDir, spec: PoolSpec) -> int:
    """Start the keeper in a session of its own; return its pid. As our child it is reaped here and in `end`."""
    _reap()
    log = str(directory.log("keeper"))
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        spec.python,
        [spec.python, "-m", "sciml_kernel.pool.keeper", str(directory.path)],
        {**os.environ, MARK: spec.id},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        # A caller that blocks or ignores signals (a notebook kernel ignores SIGINT) must not hand that on.
        setsigmask=[],
        setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE],
    )
    _keepers[pid] = directory.path
    return pid


def request(directory: PoolDir, command: str, *, timeout_s: float = 5.0, **fields: Any) -> dict[str, Any]:
    """One command, one answer. Raises PoolDeadError when no keeper answers, PoolError when it refuses."""
    try:
        with socket.socket(socket.AF_UNIX) as connection, socket_address(directory.path) as address:
            connection.settimeout(timeout_s)
            connection.connect(address)
            connection.sendall((json.dumps({"command": command, **fields}) + "\n").encode())
            with connection.makefile("r") as reader:
                answer = json.loads(reader.readline())
    except (OSError, ValueError) as error:
        health = measure(directory)
        reason = health.reason or f"its keeper does not answer ({error})"
        raise PoolDeadError(f"pool {directory.name!r} is {health.state}: {reason}", exits=health.exits) from error
    if not answer.get("ok"):
        raise PoolError(f"pool {directory.name!r}: {answer.get('error')}")
    return dict(answer)


def wait_settled(directory: PoolDir, *, generation: int, timeout_s: float, keeper: int | None = None) -> Health:
    """Wait until the engine set `generation` (or a later one) is up or lost; return what was measured.

    keeper: pid of a keeper that was started just now and may not have written anything yet.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        if not directory.state_path.exists() and keeper is not None and ProcessId.of(keeper).alive():
            health = Health("starting")
        else:
            health = measure(directory)
        settled = health.state not in ("queued", "starting", "tainted") and health.generation >= generation
        gone = health.state in ("stopped", "expired") or (health.state == "dead" and health.keeper is None)
        if settled or gone or time.monotonic() > deadline:
            return health
        if health.state == "dead" and health.keeper and health.keeper.here and not health.keeper.alive():
            return health
        time.sleep(POLL_S)


def end(directory: PoolDir, *, timeout_s: float = 3.0) -> None:
    """Stop the pool whatever is left of it: afterwards there is no process, socket or file. Idempotent."""
    if not directory.path.is_dir():
        _reap(directory.path)
        return
    state, spec = read_json(directory.state_path) or {}, directory.read_spec()
    keeper = _keeper(state)
    if keeper is not None and keeper.here and keeper.suspended():
        _signal(keeper.pid, signal.SIGKILL)  # it could not answer; its children get SIGTERM from the kernel
    elif keeper is not None and keeper.here and keeper.alive():
        try:
            request(directory, "stop", timeout_s=1.0)
        except PoolError:
            _signal(keeper.pid, signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        while keeper.alive() and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if keeper.alive():
            _signal(keeper.pid, signal.SIGKILL)
    if spec is not None:
        clear(spec)
    _reap(directory.path)
    directory.remove()


def clear(spec: PoolSpec) -> None:
    """End every process that a lost keeper left, and remove what its MPI made outside the pool's directory."""
    kill_marked(spec.id)
    leftovers.remove_tmp(spec.id)
    leftovers.remove(leftovers.orphans(time.time() - age_s(spec.created_utc)))


def _keeper(state: dict[str, Any]) -> ProcessId | None:
    try:
        return ProcessId.from_json(state.get("keeper"))
    except TypeError:
        return None


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _reap(wanted: Path | None = None) -> None:
    """Take keepers that have ended and are our children out of the process table; wait for that of the pool `wanted`,
    which was told to end."""
    for pid, path in list(_keepers.items()):
        deadline = time.monotonic() + (1.0 if path == wanted else 0.0)
        while True:
            try:
                ended = os.waitpid(pid, os.WNOHANG)[0] == pid
            except ChildProcessError:  # another process's child: this one was forked from that
                ended = True
            if ended:
                _keepers.pop(pid, None)
            if ended or time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
