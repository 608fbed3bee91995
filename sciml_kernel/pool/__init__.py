"""Pools of MPI ranks that live on their own: state is measured, one failing rank ends the call for all.

    `pool`        `Pool`: start, attach, list, run, stop. Read first
    `spec`        what a pool is asked to be, and where its files lie
    `launch`      what a launcher must say; `launch_local` says it for this machine's MPI
    `mpi`         which mpiexec
    `owner`       which pools end with this process, and with which Jupyter kernel
    `keeper`      one small process a pool: owns controller and mpiexec; `generation` is one engine set of it
    `wrapper`     parent of each rank's engine: knows how it ended; `oom` whether memory ran out
    `engine_process`  what it forks: ipyparallel's engine and its nanny
    `setups`      cells that each engine set runs before it counts as ready
    `leftovers`   what MPI leaves outside of the pool's directory when it is killed
    `probe`       what a rank says of itself at start; `rank` runs a call on a rank
    `health`      the measured state; `control` talks to the keeper
    `card`        a pool as one sees it, in text and HTML; `tables` and `frames`: pools and ranks as tables
    `connection`  ipyparallel's client; `base`: what every pool does with a call
    `calls`       one call on all ranks, seen from the notebook
    `fake`        `FakePool`: the same in one process, for tests

Importing this package loads neither ipyparallel nor pandas: the keeper and the wrappers stay small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sciml_kernel.pool.calls import Call
    from sciml_kernel.pool.fake import FakePool
    from sciml_kernel.pool.pool import Pool

__all__ = ["Call", "FakePool", "Pool"]

_WHERE = {"Call": "calls", "FakePool": "fake", "Pool": "pool"}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        import importlib

        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
