"""The fault matrix: what breaks, when, on which MPI; what is then seen, how fast, and what is left.

A cell is (fault, moment, world, then). What can't be is left out by `impossible`, with its reason. `pairwise()` is a
small part in which every pair of values that can occur together does: CI runs it. All cells:

    python -m sciml_kernel.testing.fault_suite --results FILE [--world mpich] [--write sciml_kernel/pool/FAULTS.md]

or `pytest tests/contract/test_fault_matrix.py -m matrix`. `fault_run` runs a cell, `fault_ranks` is the ranks' part,
`fault_files` are damaged files and lost hosts, `fault_table` prints.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

__all__ = ["FAULTS", "LIMITS_S", "MOMENTS", "THEN", "WORLDS", "Cell", "cells", "impossible", "pairs", "pairwise"]

FAULTS = {
    "raises": "a rank raises",
    "exits": "a rank ends itself (os._exit)",
    "SIGKILL": "a rank is killed, as the kernel does when memory ran out",
    "SIGSTOP": "a rank is suspended",
    "memory": "a rank hits its memory limit",
    "controller": "the controller is killed",
    "client": "the process that holds the pool is killed",
}
MOMENTS = {
    "start": "while the ranks start",
    "idle": "while nothing runs",
    "loop": "in Python code",
    "collective": "in a blocking MPI call",
    "all-reduce": "in a Horovod all-reduce inside tf.function",
    "checkpoint": "while rank 0 writes a checkpoint",
}
WORLDS = {"mpich": "this environment's MPI", "openmpi": "Open MPI by SCIML_MPI", "fake": "threads of one process"}
THEN = {"restart": "restart()", "stop": "stop() twice, at once"}

# Seconds from the fault until the user sees it. At start a first loss is mended by one more try, which takes a start.
LIMITS_S = {
    "raises": 2.0,
    "exits": 1.0,
    "SIGKILL": 1.0,
    "SIGSTOP": 4.0,
    "memory": 2.0,
    "controller": 10.0,
    "client": 0.5,
}
START_LIMIT_S = 12.0
RESTART_LIMIT_S = 10.0  # 2.5 s on an idle machine; tests/bench has the figure that is owed
STOP_LIMIT_S = 5.0

_IN_CODE = ("raises", "exits", "memory")


@dataclass(frozen=True, slots=True)
class Cell:
    fault: str
    moment: str
    world: str
    then: str

    @property
    def values(self) -> tuple[str, ...]:
        return (self.fault, self.moment, self.world, self.then)

    def __str__(self) -> str:
        return "-".join(self.values)


def impossible(cell: Cell) -> str:
    """Why there is no such cell; "" when there is."""
    if cell.moment == "idle" and cell.fault in _IN_CODE:
        return "nothing of the user runs that could do it"
    if cell.world == "openmpi" and cell.moment == "all-reduce":
        return "this environment's Horovod is built for its own MPI"
    if cell.world == "fake":
        if cell.fault not in ("raises", "SIGKILL"):
            return "a thread has no process, no memory and no controller of its own"
        if cell.moment in ("all-reduce", "checkpoint"):
            return "threads have no Horovod, and share one checkpoint"
        if cell.moment == "start" and cell.fault == "SIGKILL":
            return "threads are there at once"
    return ""


def cells() -> list[Cell]:
    """All that can be, worlds together, the slow imports of TensorFlow together."""
    every = (Cell(f, m, w, t) for w, m, f, t in itertools.product(WORLDS, MOMENTS, FAULTS, THEN))
    return [cell for cell in every if not impossible(cell)]


def pairs(chosen: list[Cell]) -> set[tuple[Any, ...]]:
    """Each two values of different kinds that occur together in a cell."""
    return {(i, cell.values[i], j, cell.values[j]) for cell in chosen for i, j in itertools.combinations(range(4), 2)}


def pairwise() -> list[Cell]:
    """Cells that hold every pair of all cells: always the one with most new pairs, the first of equals."""
    every, chosen = cells(), list[Cell]()
    missing = pairs(every)
    while missing:
        best = max(every, key=lambda cell: len(pairs([cell]) & missing))
        chosen.append(best)
        missing -= pairs([best])
    return [cell for cell in every if cell in chosen]


if __name__ == "__main__":
    from sciml_kernel.testing.fault_table import main

    main()
