"""From the arguments of `Pool.start` to a spec and a directory; nothing is started here."""

from __future__ import annotations

import dataclasses
import os
import secrets
import sys
from collections.abc import Mapping
from typing import Any

from sciml_kernel.contracts import PARENT_VARIABLE
from sciml_kernel.errors import UsageError, did_you_mean
from sciml_kernel.pool import launch
from sciml_kernel.pool.files import now_utc
from sciml_kernel.pool.health import measure
from sciml_kernel.pool.mpi import find_mpi
from sciml_kernel.pool.processes import ProcessId
from sciml_kernel.pool.spec import LIVE, PoolDir, PoolSpec, available_cores, check_name, pools_root

__all__ = ["create_directory", "free_name", "known_pools", "make_spec"]

BATCH_TTL_S = 20.0


def make_spec(
    n: int,
    launcher: str,
    name: str | None,
    keep: bool,
    ttl_s: float | None,
    oversubscribe: bool,
    timeout: float,
    env: Mapping[str, str] | None,
    options: dict[str, Any],
    replace: bool = True,
) -> PoolSpec:
    driver = launch.launcher(launcher)
    unknown = sorted(set(options) - driver.options)
    if unknown:
        known = [*driver.options, "n", "name", "keep", "ttl_s", "oversubscribe", "timeout", "env"]
        raise UsageError(f"launcher {launcher!r} has no option {unknown[0]!r}; {did_you_mean(unknown[0], known)}")
    if isinstance(n, bool) or not isinstance(n, int):
        raise UsageError(f"n must be a whole number of ranks, got {n!r}")
    if ttl_s is not None and ttl_s <= 0:
        raise UsageError(f"ttl_s must be more than 0 seconds, or None for no limit; got {ttl_s!r}")
    if timeout <= 0:
        raise UsageError(f"timeout must be more than 0 seconds, got {timeout!r}")
    if os.environ.get(PARENT_VARIABLE) and not keep:
        ttl_s = min(ttl_s or BATCH_TTL_S, BATCH_TTL_S)  # nobody comes back to the pool of a batch run that was killed
    cores = available_cores()
    umask = os.umask(0)
    os.umask(umask)
    mpi = find_mpi()
    return PoolSpec(
        name=check_name(free_name() if name is None else name),
        n=n,
        launcher=launcher,
        cores=cores,
        id=secrets.token_hex(8),
        keep=keep,
        ttl_s=ttl_s,
        oversubscribe=oversubscribe,
        timeout_s=float(timeout),
        threads_per_rank=max(1, cores // max(1, n)),
        cwd=os.getcwd(),
        umask=umask,
        python=sys.executable,
        mpiexec=mpi.mpiexec,
        mpi_vendor=mpi.vendor,
        created_utc=now_utc(),
        env={**mpi.variables, **(env or {})},
        options=options,
        owner=ProcessId.of(os.getpid()).to_json(),
        replace=replace,
    )


def create_directory(spec: PoolSpec, *, chosen: bool) -> tuple[PoolSpec, PoolDir]:
    """Make the directory. A name of our own choice that was taken meanwhile gives way to the next."""
    for _ in range(100):
        directory = PoolDir.named(spec.name)
        try:
            directory.create()
        except FileExistsError:
            if chosen:
                state = measure(directory).state
                mend = "attach to it or choose another name" if state in LIVE else "stop() removes it"
                raise UsageError(f"there is a pool {spec.name!r} already ({state}); {mend}") from None
            spec = dataclasses.replace(spec, name=free_name())
            continue
        directory.write_spec(spec)
        return spec, directory
    raise UsageError(f"no free pool name under {pools_root()}; give a name")


def free_name() -> str:
    root, number = pools_root(), 1
    while (root / f"pool-{number}").exists():
        number += 1
    return f"pool-{number}"


def known_pools() -> list[tuple[PoolDir, PoolSpec | None]]:
    root = pools_root()
    found = [PoolDir(path) for path in root.iterdir() if path.is_dir()] if root.is_dir() else []
    pairs = [(directory, directory.read_spec()) for directory in found]
    return sorted(pairs, key=lambda pair: pair[1].created_utc if pair[1] else "", reverse=True)
