"""Which processors and GPUs each variant of a grid gets."""

from __future__ import annotations

import os
from dataclasses import dataclass

from sciml_kernel.errors import UsageError
from sciml_kernel.pool.spec import available_cores
from sciml_kernel.records.hardware import hardware

__all__ = ["Budget", "Share"]


@dataclass(frozen=True)
class Share:
    """cpus: numbers of processors to run on; empty: any. gpus: values for CUDA_VISIBLE_DEVICES; None: left as it is.
    n_cores: how many cores of the budget are taken."""

    n_cores: int
    cpus: tuple[int, ...]
    gpus: tuple[str, ...] | None


class Budget:
    """Gives out shares and takes them back.

    cores: how many may be busy at once; default: those this process may use. gpus: how many; default: those of
    CUDA_VISIBLE_DEVICES, else of the machine. Processes are tied to their share of the processors, so that each pool
    plans its threads for those. Raises UsageError for less than one core or more GPUs than there are.
    """

    def __init__(self, cores: int | None = None, gpus: int | None = None) -> None:
        allowed = sorted(os.sched_getaffinity(0))
        self.cores = available_cores() if cores is None else cores
        if self.cores < 1:
            raise UsageError(f"a grid needs at least 1 core, got {cores}")
        self._tied = self.cores <= len(allowed)
        self._cpus = allowed[: self.cores]
        self._free = self.cores
        there = _gpus()
        if gpus is not None and gpus > len(there):
            raise UsageError(f"there are {len(there)} GPUs here, {gpus} can't be given out")
        self._gpus = there if gpus is None else there[:gpus]
        self.n_gpus = len(self._gpus)

    def take(self, n_ranks: int) -> Share | None:
        """A share for so many ranks, a core and a GPU each, or all there are where they are fewer. None: not now."""
        cores = min(max(1, n_ranks), self.cores)
        gpus = min(max(1, n_ranks), self.n_gpus)
        if cores > self._free or gpus > len(self._gpus):
            return None
        self._free -= cores
        cpus = tuple(self._cpus[:cores]) if self._tied else ()
        self._cpus = self._cpus[len(cpus) :]
        given = tuple(self._gpus[:gpus]) if self.n_gpus else None
        self._gpus = self._gpus[gpus:]
        return Share(cores, cpus, given)

    def give_back(self, share: Share) -> None:
        self._free += share.n_cores
        self._cpus = sorted([*self._cpus, *share.cpus])
        self._gpus = sorted([*self._gpus, *(share.gpus or ())])


def _gpus() -> list[str]:
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [one.strip() for one in chosen.split(",") if one.strip() and one.strip() != "-1"]
    return [str(i) for i in range(len(hardware()["gpus"]))]
