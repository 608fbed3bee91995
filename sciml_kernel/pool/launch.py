"""What a launcher must say, so that another scheduler only adds a driver."""

from __future__ import annotations

import shlex
from typing import Protocol, runtime_checkable

from sciml_kernel.errors import NotFoundError, did_you_mean
from sciml_kernel.pool.processes import MARK
from sciml_kernel.pool.spec import PoolDir, PoolSpec

__all__ = ["Launcher", "controller_command", "describe", "launcher", "rank_variables", "wrapper_command"]

HEARTBEAT_MS = 200  # the hub takes an engine in at its second beat: the default of 3 s is most of a start

# Libraries that would each start a thread a core on every rank.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
)


@runtime_checkable
class Launcher(Protocol):
    """Turns a spec into what is started. The keeper calls it; it starts nothing itself."""

    name: str
    controller_ip: str  # where the controller listens
    options: frozenset[str]  # keyword arguments of Pool.start that only this launcher knows

    def check(self, spec: PoolSpec) -> list[str]:
        """Warnings about this plan. Raises UsageError when it must not be started."""

    def command(self, spec: PoolSpec, wrapper: list[str]) -> list[str]:
        """Argument list that starts `wrapper` on n ranks and ends when they end."""

    def variables(self, spec: PoolSpec) -> dict[str, str]:
        """Environment that this MPI needs, beside `rank_variables`."""


def launcher(name: str) -> Launcher:
    """The driver of that name. Raises NotFoundError listing what there is."""
    from sciml_kernel.pool.launch_local import LocalLauncher

    drivers: dict[str, type[Launcher]] = {"local": LocalLauncher}
    if name not in drivers:
        raise NotFoundError(f"unknown launcher {name!r}; {did_you_mean(name, drivers)}")
    return drivers[name]()


def rank_variables(spec: PoolSpec) -> dict[str, str]:
    """Environment of every rank: the core budget, then what the caller set."""
    budget = dict.fromkeys(THREAD_VARIABLES, str(spec.threads_per_rank))
    return {**budget, "TF_NUM_INTEROP_THREADS": "1", "SCIML_POOL": spec.name, **spec.env}


def controller_command(spec: PoolSpec, directory: PoolDir, generation: int, ip: str) -> list[str]:
    """ipyparallel's controller. Keys are in 0600 files, never among the arguments."""
    place = directory.generation(generation)
    return [
        spec.python, "-m", "ipyparallel.controller",
        f"--profile-dir={place / 'profile'}",
        f"--ipython-dir={place / 'ipython'}",
        f"--ip={ip}",
        f"--location={ip}",
        "--IPController.enable_curve=True",
        f"--HeartMonitor.period={HEARTBEAT_MS}",
        # Broadcast views need no tree of schedulers for one node; results are kept by us, not by the hub.
        "--IPController.broadcast_scheduler_depth=0",
        "--nodb",
    ]  # fmt: skip


def wrapper_command(spec: PoolSpec, directory: PoolDir, generation: int) -> list[str]:
    return [spec.python, "-m", "sciml_kernel.pool.wrapper", str(directory.path), str(generation)]


def describe(spec: PoolSpec, directory: PoolDir, generation: int = 1) -> str:
    """All that would be started, as text: core budget, environment, commands."""
    driver = launcher(spec.launcher)
    variables = {**driver.variables(spec), **rank_variables(spec)}
    return "\n".join(
        [
            f"# pool {spec.name!r}: {spec.n} ranks x {spec.threads_per_rank} threads on {spec.cores} cores "
            f"({spec.launcher}, {spec.mpi_vendor})",
            f"# directory: {directory.path}",
            f"cd {shlex.quote(spec.cwd)}",
            *(f"export {name}={shlex.quote(value)}" for name, value in variables.items()),
            f"export {MARK}={spec.id}.{generation}",
            shlex.join(controller_command(spec, directory, generation, driver.controller_ip)) + " &",
            shlex.join(driver.command(spec, wrapper_command(spec, directory, generation))),
        ]
    )
