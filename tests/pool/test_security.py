"""What another user of the machine sees of a pool, and what a stranger on the network gets from it.

On the MPI of this environment and on Open MPI. Host names, pids and argument lists are open to everybody on Linux: that
is why no key may stand there.
"""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from jupyter_client.session import Session

from sciml_kernel.pool import Pool
from sciml_kernel.pool.files import read_json
from sciml_kernel.pool.processes import marked_pids
from sciml_kernel.testing.machine import open_mpi

pytestmark = pytest.mark.mpi

NOBODY = 65534
LOOPBACK = {"0100007F", "00000000000000000000000001000000"}  # 127.0.0.1 and ::1 as /proc/net writes them
LISTENS = "0A"


@pytest.fixture(scope="module", params=["environment", "openmpi"])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """Two ranks that have talked to each other, in a place whose parents everybody may enter."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        place = Path(folder)
        place.chmod(0o755)
        patch.setenv("XDG_STATE_HOME", folder)
        if request.param == "openmpi":
            patch.setenv("SCIML_MPI", str(open_mpi(place)))
        pool = Pool.start(2, oversubscribe=True)
        pool.execute("from mpi4py import MPI; assert MPI.COMM_WORLD.allreduce(1) == 2")
        yield pool
        pool.stop()


@pytest.fixture
def keys(pool: Pool) -> list[str]:
    """Every secret of the pool: what its connection files hold under a name with `key`."""
    found: set[str] = set()
    for path in pool.path.glob("gen-*/profile/security/*.json"):
        found |= {str(value) for name, value in (read_json(path) or {}).items() if "key" in name and value}
    assert found
    assert all(len(key) >= 32 for key in found)
    return sorted(found)


def _pids(pool: Pool) -> list[int]:
    found = marked_pids(pool._spec().id)
    assert len(found) > 6  # keeper, controller and its schedulers, mpiexec, wrappers, engines
    return found


def _read(path: str) -> str:
    return Path(path).read_bytes().decode("utf-8", "replace")


def _sockets(pids: list[int]) -> dict[str, int]:
    """Inode of each socket that a process has open -> the process."""
    found = {}
    for pid in pids:
        for entry in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{entry}")
            except OSError:
                continue
            if target.startswith("socket:["):
                found[target[8:-1]] = pid
    return found


def _listeners(pool: Pool) -> list[tuple[str, int, int]]:
    """(address, port, pid) of each TCP socket that listens."""
    owners, found = _sockets(_pids(pool)), []
    for table in ("tcp", "tcp6"):
        for line in _read(f"/proc/net/{table}").splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS and fields[9] in owners:
                address, port = fields[1].split(":")
                found.append((address, int(port, 16), owners[fields[9]]))
    return found


def _is_mpiexec_of_open_mpi(pool: Pool, pid: int) -> bool:
    """It listens on every address for daemons of other hosts, with a check of its own, and no setting restricts it."""
    state = read_json(pool.path / "pool.json") or {}
    return pool._spec().mpi_vendor == "openmpi" and pid == state["pids"]["mpiexec"]


def test_only_loopback_is_bound(pool: Pool) -> None:
    listeners = [entry for entry in _listeners(pool) if not _is_mpiexec_of_open_mpi(pool, entry[2])]
    assert len(listeners) > 5
    open_to_others = [
        (address, port, _read(f"/proc/{pid}/cmdline").split("\0")[:3])
        for address, port, pid in listeners
        if address not in LOOPBACK
    ]
    assert open_to_others == []


def test_every_port_speaks_curvezmq_and_nothing_else(pool: Pool) -> None:
    """Loopback is shared with all users of the machine: the greeting of each port must demand CURVE."""
    signature = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00"  # ZMTP 3, https://rfc.zeromq.org/spec/23/
    for _, port, pid in _listeners(pool):
        if _is_mpiexec_of_open_mpi(pool, pid):
            continue
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(signature)
            greeting = b""
            while len(greeting) < 32:
                more = connection.recv(32 - len(greeting))
                assert more, f"port {port} of pid {pid} closed after {greeting!r}"
                greeting += more
        assert greeting[12:32].rstrip(b"\0") == b"CURVE", (port, _read(f"/proc/{pid}/cmdline"))


def test_nothing_accepts_connections_under_an_abstract_name(pool: Pool) -> None:
    """An abstract unix socket has no permissions. (UCX has some for wake-ups, which accept no connections.)"""
    owners, accepts = _sockets(_pids(pool)), 0x10000
    for line in _read("/proc/net/unix").splitlines()[1:]:
        fields = line.split()
        if fields[6] in owners and int(fields[3], 16) & accepts:
            assert fields[7].endswith("/keeper.sock")


def test_the_controller_answers_only_who_has_its_key(pool: Pool) -> None:
    connection = read_json(pool._directory.connection_file(pool.health().generation)) or {}
    address = f"{connection['interface']}:{connection['registration']}"
    right = connection["curve_serverkey"].encode()
    wrong = zmq.curve_keypair()[0]
    assert _answers(address, right, wait_s=10.0)  # so the request is one that is answered
    assert not _answers(address, wrong, wait_s=1.0)
    assert not _answers(address, None, wait_s=1.0)


def _answers(address: str, server_key: bytes | None, *, wait_s: float) -> bool:
    with zmq.Context() as context, context.socket(zmq.DEALER) as query:
        query.linger = 0
        if server_key is not None:
            query.curve_serverkey = server_key
            query.curve_publickey, query.curve_secretkey = zmq.curve_keypair()
        query.connect(address)
        Session(key=b"").send(query, "connection_request")
        return bool(query.poll(1000 * wait_s))


def test_no_key_is_in_arguments_environment_logs_or_what_is_shown(pool: Pool, keys: list[str]) -> None:
    texts = {f"{kind} of {pid}": _read(f"/proc/{pid}/{kind}") for pid in _pids(pool) for kind in ("cmdline", "environ")}
    texts |= {str(path): _read(str(path)) for path in pool.path.rglob("*") if path.is_file() and not _is_secret(path)}
    assert any(name.endswith("keeper.log") for name in texts)
    assert any(name.endswith("spec.json") for name in texts)
    shown = [pool.command(), repr(pool), pool._repr_html_(), str(pool.report().to_dict()), str(Pool.list().to_dict())]
    texts |= {f"shown {number}": text for number, text in enumerate(shown)}
    for name, text in texts.items():
        for key in keys:
            assert key not in text, name
            assert json.dumps(key)[1:-1] not in text, name


def _is_secret(path: Path) -> bool:
    return path.parent.name == "security"


def test_the_environment_that_a_rank_can_print_holds_no_key(pool: Pool, keys: list[str]) -> None:
    for variables in pool.run(lambda: dict(__import__("os").environ)):
        assert not {name for name, value in variables.items() if value in keys}


def test_all_files_are_the_users_own(pool: Pool) -> None:
    assert stat.S_IMODE(pool.path.stat().st_mode) == 0o700
    for path in pool.path.rglob("*"):
        if path.name == "README" or "ipython" in path.parts:  # IPython's own, behind the 0700 of the pool
            continue
        status = path.lstat()
        assert status.st_uid == os.getuid()
        assert stat.S_IMODE(status.st_mode) & 0o077 == 0, (path, oct(status.st_mode))


def test_what_mpi_leaves_elsewhere_is_the_users_own(pool: Pool) -> None:
    """Shared memory and session directories."""
    maps = "".join(_read(f"/proc/{pid}/maps") for pid in _pids(pool))
    shared = set(re.findall(r"^\S+ rw-s .*? (/.+)$", maps, re.MULTILINE))
    assert any(name.startswith("/dev/shm/") for name in shared), shared
    there = [Path(name) for name in sorted(shared) if os.path.exists(name)]  # some are removed once all ranks have them
    for path in there:
        behind = [folder for folder in path.parents if stat.S_IMODE(folder.stat().st_mode) & 0o077 == 0]
        assert behind or stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


# -- as another user --------------------------------------------------------------------------------------------------


def _as_nobody(look: Callable[[], Any]) -> Any:
    """Call `look` in a child that is another user; return its JSON value."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writer, json.dumps(look()).encode())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        text = file.read()
    assert os.waitpid(child, 0)[1] == 0
    return json.loads(text)


def _tries(attempts: dict[str, Callable[[], Any]]) -> dict[str, str]:
    """Name of each attempt -> name of the exception that it ended with, or what it got."""
    got = {}
    for name, attempt in attempts.items():
        try:
            got[name] = f"got {attempt()!r}"[:200]
        except Exception as error:
            got[name] = type(error).__name__
    return got


def _connect(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))


def _attempts(pool: Pool) -> dict[str, Callable[[], Any]]:
    files = [path for path in pool.path.rglob("*") if path.is_file()]
    environs = [Path(f"/proc/{pid}/environ") for pid in _pids(pool)]
    return {
        "list": lambda: os.listdir(pool.path),
        "write": lambda: (pool.path / "new").touch(),
        "socket": lambda: _connect(pool.path / "keeper.sock"),
        **{str(path): path.read_bytes for path in [*files, *environs]},
    }


if os.getuid() == 0:  # only root can become another user

    def test_another_user_can_read_connect_to_and_write_nothing(pool: Pool) -> None:
        attempts = _attempts(pool)
        assert len(attempts) > 20
        # The places around it are open, so it is the pool's own directory that keeps others out.
        assert _as_nobody(lambda: os.listdir(pool.path.parents[2])) != []
        got = _as_nobody(lambda: _tries(attempts))
        assert set(got.values()) == {"PermissionError"}, got

    def test_what_another_user_sees_of_the_processes_holds_no_key(pool: Pool, keys: list[str]) -> None:
        pids = _pids(pool)
        seen = _as_nobody(lambda: [_read(f"/proc/{pid}/cmdline") for pid in pids])
        assert any("ipyparallel.controller" in text for text in seen)  # arguments are seen: that is Linux
        assert not [text for text in seen if any(key in text for key in keys)]

else:

    def test_the_pool_is_behind_a_directory_that_only_its_user_may_enter(pool: Pool) -> None:
        status = pool.path.stat()
        assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (os.getuid(), 0o700)
        assert _tries(_attempts(pool))["list"].startswith("got")  # the user may
