"""`Pool`: ranks that live on their own, started, found again, used and stopped from a notebook or a script."""

from __future__ import annotations

import atexit
import builtins
import dataclasses
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sciml_kernel.errors import NotFoundError, PoolBusyError, PoolDeadError, PoolError, PoolStartError, did_you_mean
from sciml_kernel.pool import control, launch, owner, plan, setups, tables
from sciml_kernel.pool.base import HELP, BasePool
from sciml_kernel.pool.files import claim, tail
from sciml_kernel.pool.health import Health, measure
from sciml_kernel.pool.processes import ProcessId
from sciml_kernel.pool.setups import SetUp
from sciml_kernel.pool.spec import LIVE, PoolDir, PoolSpec

if TYPE_CHECKING:
    import pandas as pd

    from sciml_kernel.pool.connection import Connection

__all__ = ["Pool"]

CLAIM_WAIT_S = 2.0  # another process that sends a call at the same moment has its ranks busy by then


class Pool(BasePool):
    """n MPI ranks; engine id == MPI rank. Made by `Pool.start` or `Pool.attach`.

    Every question about its state is answered by looking: at the keeper's process, at what the keeper sees of
    controller and ranks, and at the ranks' own marks of a running call.
    """

    def __init__(self, directory: PoolDir) -> None:
        super().__init__()
        self._directory = directory

    # -- start, find, list --------------------------------------------------------------------------------------------

    @classmethod
    def start(
        cls,
        n: int = 4,
        launcher: str = "local",
        name: str | None = None,
        keep: bool = False,
        ttl_s: float | None = 3600.0,
        oversubscribe: bool = False,
        timeout: float = 60.0,
        *,
        env: Mapping[str, str] | None = None,
        replace: bool = True,
        **options: Any,
    ) -> Pool:
        """Start n ranks and return when all of them are one MPI world.

        n: ranks, 1 to 8 a core. launcher: "local". name: by default pool-<k>. keep: it outlives the normal end of this
        process. ttl_s: seconds after which a pool that no process uses ends itself; None: never; at most 20 in a batch
        run, unless keep. oversubscribe: more ranks than cores are meant. timeout: seconds for all ranks to arrive. env:
        variables for the ranks. replace: after a rank failed while others hung in a collective, new ranks come by
        themselves; False: the pool stays "tainted" (a debugger may look at the ranks) until `restart`. options: of
        other launchers.

        Raises UsageError (n, name, options), EnvironmentNotFitError (no mpiexec), PoolStartError naming the ranks
        that are missing, or what does not fit.
        """
        spec = plan.make_spec(n, launcher, name, keep, ttl_s, oversubscribe, timeout, env, options, replace)
        for text in launch.launcher(spec.launcher).check(spec):
            warnings.warn(text, UserWarning, stacklevel=2)
        spec, directory = plan.create_directory(spec, chosen=name is not None)
        pool = cls(directory)
        try:
            keeper = control.spawn_keeper(directory, spec)
            health = control.wait_settled(directory, generation=1, timeout_s=timeout + 10.0, keeper=keeper)
            if health.state != "ready":
                reason = health.reason or tail(directory.log("keeper")) or f"it is {health.state} after {timeout:g} s"
                raise PoolStartError(f"pool {spec.name!r}: {reason}")
            pool._connect()  # ready is what the ranks say; it is true when they are reached
        except BaseException as error:
            control.end(directory)
            if isinstance(error, PoolDeadError):
                raise PoolStartError(str(error)) from error
            raise
        return pool if keep else pool.adopt()

    @classmethod
    def plan(
        cls,
        n: int = 4,
        launcher: str = "local",
        name: str | None = None,
        keep: bool = False,
        ttl_s: float | None = 3600.0,
        oversubscribe: bool = False,
        timeout: float = 60.0,
        *,
        env: Mapping[str, str] | None = None,
        replace: bool = True,
        **options: Any,
    ) -> str:
        """What `start` would start, as text; starts and writes nothing. Raises as `start` does."""
        spec = plan.make_spec(n, launcher, name, keep, ttl_s, oversubscribe, timeout, env, options, replace)
        notes = [f"# warning: {text}" for text in launch.launcher(spec.launcher).check(spec)]
        return "\n".join([*notes, launch.describe(spec, PoolDir.named(spec.name))])

    @classmethod
    def attach(cls, name: str | None = None) -> Pool:
        """The newest live pool, or the one of that name (which may be dead: `restart` it). Raises NotFoundError."""
        pool = cls.find(name)
        pool._greet()
        return pool

    @classmethod
    def find(cls, name: str | None = None) -> Pool:
        """The same to look at only: this process does not count as one that uses it. Raises NotFoundError."""
        found = plan.known_pools()
        if name is None:
            live = [(directory, spec) for directory, spec in found if measure(directory).state in LIVE]
            if not live:
                there = ", ".join(f"{d.name} ({measure(d).state})" for d, _ in found) or "none"
                raise NotFoundError(f"there is no live pool (known: {there}); {HELP}")
            directory = max(live, key=lambda pair: pair[1].created_utc if pair[1] else "")[0]
        else:
            names = {directory.name: directory for directory, _ in found}
            if name not in names:
                raise NotFoundError(f"there is no pool {name!r}; {did_you_mean(name, names)}; {HELP}")
            directory = names[name]
        return cls(directory)

    @classmethod
    def list(cls) -> pd.DataFrame:
        """Every pool of this user, newest first, with the state that it has now: one row each."""
        return tables.pools_table([(directory, spec, measure(directory)) for directory, spec in plan.known_pools()])

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self._directory.name

    @property
    def path(self) -> Path:
        """Directory of its files."""
        return self._directory.path

    @property
    def id(self) -> str:
        spec = self._directory.read_spec()
        return spec.id if spec else ""

    @property
    def n(self) -> int:
        """Ranks; 0 once it is stopped."""
        spec = self._directory.read_spec()
        return spec.n if spec else 0

    def measure(self) -> Health:
        return measure(self._directory)

    def logs(self, rank: int | str, *, lines: int | None = None) -> str:
        """All that a rank printed, in notebook cells too; `rank` may be "keeper", "controller" or "mpiexec"."""
        name = f"rank-{rank}" if isinstance(rank, int) else rank
        path = self._directory.log(name)
        if not path.exists():
            known = [file.stem for file in self._directory.logs.glob("*.log")]
            raise NotFoundError(f"pool {self.name!r} has no log {name!r}; {did_you_mean(name, known)}")
        text = path.read_text(encoding="utf-8", errors="replace")
        return text if lines is None else "\n".join(text.splitlines()[-lines:])

    def command(self) -> str:
        """What was launched, as text: core budget, environment, commands. Holds no key."""
        spec = self._spec()
        return launch.describe(spec, self._directory, max(1, measure(self._directory).generation))

    @property
    def client(self) -> Any:
        """The ipyparallel client of the present engine set, for what this class does not offer."""
        link: Any = self._connect()
        return link.client

    # -- change -------------------------------------------------------------------------------------------------------

    def restart(self, *, n: int | None = None) -> Pool:
        """A new engine set of n ranks (default: as many as before), rank == id. Joins one that is under way.

        It also starts a lost keeper again. Raises PoolStartError, PoolDeadError when the pool was stopped.
        """
        spec = self._spec()
        self._disconnect()
        health = measure(self._directory)
        if health.keeper is None or not (health.keeper.here and health.keeper.alive()):
            spec = self._revive(spec, n)
        else:
            generation = int(control.request(self._directory, "restart", n=n)["generation"])
            health = control.wait_settled(self._directory, generation=generation, timeout_s=self._patience_s(spec))
            if health.state not in ("ready", "busy"):
                raise PoolStartError(f"pool {self.name!r}: {health.reason or f'it is {health.state}'}")
        self._greet()
        return self

    def resize(self, n: int) -> Pool:
        """Restart with n ranks. Raises UsageError for an n that does not fit."""
        spec = dataclasses.replace(self._spec(), n=n)
        for text in launch.launcher(spec.launcher).check(spec):
            warnings.warn(text, UserWarning, stacklevel=2)
        return self.restart(n=n)

    def stop(self) -> None:
        """End it, whatever is left of it: no process, socket or file remains. Idempotent."""
        owner.release(self._directory.path)
        control.end(self._directory)
        self._disconnect()

    def keep(self) -> None:
        """From now on it outlives the normal end of this process."""
        owner.release(self._directory.path)

    def adopt(self) -> Pool:
        """From now on the normal end of this process stops it, as if it had been started here."""
        owner.own(self._directory.path, self)
        return self

    @classmethod
    def owned(cls) -> builtins.list[Pool]:
        """Pools that the normal end of this process will stop: started or adopted here, and not kept."""
        return owner.owned()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    # -- inside -------------------------------------------------------------------------------------------------------

    def _spec(self) -> PoolSpec:
        spec = self._directory.read_spec()
        if spec is None:
            state = measure(self._directory).state
            if state != "stopped":
                file = self._directory.spec_path
                mend = "its keeper writes it again" if state in LIVE else "stop() removes the pool"
                raise PoolDeadError(f"pool {self.name!r}: {file} is missing or truncated; {mend}")
            raise PoolDeadError(f"pool {self.name!r} is {state}; {HELP}")
        return spec

    def taint(self, generation: int, reason: str) -> None:
        try:
            control.request(self._directory, "taint", generation=generation, reason=reason)
        except PoolError:
            return  # its keeper is gone: then the pool is dead, which the next look says

    def _settle(self, generation: int) -> Health:
        return control.wait_settled(self._directory, generation=generation, timeout_s=self._patience_s(self._spec()))

    def _replaces(self) -> bool:
        return self._spec().replace

    def _read_set_ups(self) -> builtins.list[SetUp]:
        return setups.read(self._directory)

    def _write_set_ups(self, cells: builtins.list[SetUp]) -> None:
        setups.write(self._directory, cells)

    def _claim(self, health: Health) -> Callable[[], None]:
        release = claim(self._directory.generation(health.generation), CLAIM_WAIT_S)
        now = self.measure()
        if release is None or now.state == "busy":
            if release is not None:
                release()
            what = now.call["name"] if now.call else "the call of another process"
            raise PoolBusyError(f"pool {self.name!r} is running {what}; wait for it, or interrupt() it")
        return release

    def _patience_s(self, spec: PoolSpec) -> float:
        return setups.start_limit_s(self._directory, spec) + 10.0

    def _open_link(self, health: Health) -> Connection:
        """Raises PoolDeadError. Ranks that the controller gave up while they registered (on a very busy machine) can't
        come back by themselves: the engine set is replaced, once."""
        from sciml_kernel.pool.connection import Connection, RanksMissingError

        try:
            return Connection(self._directory, health.generation, health.n)
        except RanksMissingError as error:
            if health.state == "busy":  # another process has its way to the ranks, and a call on them
                raise
            self.taint(health.generation, str(error))
        health = self._wait_ready()
        return Connection(self._directory, health.generation, health.n)

    def _greet(self) -> None:
        """Tell the keeper that this process uses the pool: its time to live does not run meanwhile."""
        try:
            control.request(self._directory, "hello", process=ProcessId.of(os.getpid()).to_json())
        except PoolError:
            return  # a dead pool may be attached to; every use of it says so

    def _revive(self, spec: PoolSpec, n: int | None) -> PoolSpec:
        """The keeper is gone: end what it left and start a new one on the same spec."""
        n = n or spec.n
        spec = dataclasses.replace(
            spec, n=n, threads_per_rank=max(1, spec.cores // n), owner=ProcessId.of(os.getpid()).to_json()
        )
        control.clear(spec)
        if not self._directory.path.is_dir():
            raise PoolDeadError(f"pool {self.name!r} was stopped; {HELP}")
        for path in self._directory.path.glob("gen-*"):
            shutil.rmtree(path, ignore_errors=True)
        self._directory.state_path.unlink(missing_ok=True)
        self._directory.write_spec(spec)
        keeper = control.spawn_keeper(self._directory, spec)
        health = control.wait_settled(self._directory, generation=1, timeout_s=self._patience_s(spec), keeper=keeper)
        if health.state != "ready":
            raise PoolStartError(f"pool {self.name!r}: {health.reason or f'it is {health.state}'}")
        return spec


def _stop_owned() -> None:
    """A normal end of the process that started pools stops them, unless they are kept."""
    for pool in Pool.owned():
        pool.stop()


atexit.register(_stop_owned)
