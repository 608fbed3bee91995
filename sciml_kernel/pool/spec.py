"""What a pool is asked to be (`PoolSpec`) and where its files lie (`PoolDir`)."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sciml_kernel.errors import UsageError
from sciml_kernel.pool.files import read_json, write_json

__all__ = ["LIVE", "STATES", "PoolDir", "PoolSpec", "available_cores", "check_name", "pools_root"]

STATES = ("queued", "starting", "ready", "busy", "tainted", "dead", "expired", "stopped")
LIVE = ("queued", "starting", "ready", "busy", "tainted")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """A pool as it was asked for. Survives JSON: `from_json(to_json(x)) == x`.

    name: directory under the pools root. id: random mark of all its processes. n: ranks. launcher: "local".
    keep: it outlives its starter's normal end. ttl_s: seconds that it lives while no process uses it and no call runs;
    None: for ever. oversubscribe: more ranks than cores are meant. timeout_s: seconds until all ranks must have
    arrived. cores: cores that this machine gives us. threads_per_rank: compute threads of each rank.
    cwd, umask, python: those of the starter. mpiexec, mpi_vendor: see `mpi.find_mpi`. env: variables set on the ranks.
    options: what only this launcher understands. created_utc, owner: when and by which process (`ProcessId`).
    replace: a tainted engine set is replaced by itself.
    """

    name: str
    id: str
    n: int
    launcher: str
    keep: bool
    ttl_s: float | None
    oversubscribe: bool
    timeout_s: float
    cores: int
    threads_per_rank: int
    cwd: str
    umask: int
    python: str
    mpiexec: str
    mpi_vendor: str
    created_utc: str
    env: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    owner: dict[str, Any] = field(default_factory=dict)
    replace: bool = True

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PoolSpec:
        return cls(**data)


def pools_root() -> Path:
    """`$XDG_STATE_HOME/sciml/pools`, by default under ~/.local/state."""
    base = os.environ.get("XDG_STATE_HOME")
    state = Path(base) if base and os.path.isabs(base) else Path.home() / ".local" / "state"
    return state / "sciml" / "pools"


def check_name(name: str) -> str:
    """Raises UsageError for a name that can't be a directory's."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"pool name {name!r} can't be used; write letters, digits, '.', '_', '-' (at most 64)")
    return name


def available_cores() -> int:
    """Cores that this process may use: affinity, cut by the control group's CPU quota."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


class PoolDir:
    """The files of one pool: 0700, all inside 0600.

    ::

        spec.json       PoolSpec
        setup.json      cells that every engine set runs before it counts as ready
        owner.json      whose normal end stops it: `owner`
        pool.json       what the keeper saw last: state, reason, generation, pids, ranks, exits
        keeper.sock     where the keeper takes commands
        logs/           keeper.log, controller.log, mpiexec.log, rank-<r>.log
        gen-<k>/        one engine set: connection files, ranks/, exits/, calls/
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def named(cls, name: str) -> PoolDir:
        return cls(pools_root() / check_name(name))

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def spec_path(self) -> Path:
        return self.path / "spec.json"

    @property
    def setup_path(self) -> Path:
        return self.path / "setup.json"

    @property
    def state_path(self) -> Path:
        return self.path / "pool.json"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def generation(self, number: int) -> Path:
        return self.path / f"gen-{number}"

    def connection_file(self, number: int) -> Path:
        """What a client of this engine set connects with; holds the key."""
        return self.generation(number) / "profile" / "security" / "ipcontroller-client.json"

    def engine_file(self, number: int) -> Path:
        return self.generation(number) / "profile" / "security" / "ipcontroller-engine.json"

    def create(self) -> None:
        """Make the directory. Raises FileExistsError when there is one, UsageError where none can be made."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.mkdir(mode=0o700)
        except FileExistsError:
            raise
        except OSError as error:
            raise UsageError(
                f"can't write {self.path}: {error.strerror}; set XDG_STATE_HOME to a directory that you may write"
            ) from error
        self.path.chmod(0o700)  # whatever the umask
        self.logs.mkdir(mode=0o700)

    def write_spec(self, spec: PoolSpec) -> None:
        write_json(self.spec_path, spec.to_json())

    def read_spec(self) -> PoolSpec | None:
        """None when the file is missing, truncated or of another version."""
        data = read_json(self.spec_path)
        try:
            return PoolSpec.from_json(data) if data else None
        except TypeError:
            return None

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
