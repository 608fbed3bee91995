"""The fault matrix on this machine: a pairwise part in every run, all of it with `-m matrix`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sciml_kernel.testing.fault_files import CASES, Case, killed_for_memory, memory_group, run_case
from sciml_kernel.testing.fault_run import World, run_cell
from sciml_kernel.testing.fault_suite import (
    FAULTS,
    MOMENTS,
    THEN,
    WORLDS,
    Cell,
    cells,
    impossible,
    pairs,
    pairwise,
)

Worlds = Callable[[str], World]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    """World by name; cells of one world follow each other and share its pool as long as it is ready."""
    made: dict[str, World] = {}

    def world(name: str) -> World:
        if name not in made:
            for other in made.values():
                other.close()
            made[name] = World(name, tmp_path_factory.mktemp(f"state-{name}"))
        return made[name]

    yield world
    for one in made.values():
        one.close()


def _params(chosen: list[Cell]) -> list[object]:
    real = {"fake": [], "mpich": [pytest.mark.mpi], "openmpi": [pytest.mark.mpi]}
    horovod = [pytest.mark.horovod, pytest.mark.tf]
    return [
        pytest.param(cell, id=str(cell), marks=real[cell.world] + (horovod if cell.moment == "all-reduce" else []))
        for cell in chosen
    ]


@pytest.mark.parametrize("cell", _params(pairwise()))
def test_a_fault_is_seen_named_and_mended(worlds: Worlds, cell: Cell) -> None:
    run_cell(cell, worlds(cell.world))


@pytest.mark.matrix
@pytest.mark.parametrize("cell", _params(cells()))
def test_every_fault_is_seen_named_and_mended(worlds: Worlds, cell: Cell) -> None:
    run_cell(cell, worlds(cell.world))


@pytest.mark.mpi
@pytest.mark.parametrize("case", [pytest.param(case, id=case.what.replace(" ", "-")) for case in CASES])
def test_damage_beside_the_ranks_is_named_and_mended(worlds: Worlds, case: Case) -> None:
    run_case(case, worlds("mpich"))


@pytest.mark.mpi
def test_a_killed_mpirun_leaves_no_session(worlds: Worlds) -> None:
    by_name = {case.what: case for case in CASES}
    for what in ("mpiexec killed", "pool.json truncated and keeper killed"):
        run_case(by_name[what], worlds("openmpi"))


@pytest.mark.matrix
@pytest.mark.mpi
@pytest.mark.parametrize("case", [pytest.param(case, id=case.what.replace(" ", "-")) for case in CASES])
def test_damage_under_open_mpi_is_named_and_mended(worlds: Worlds, case: Case) -> None:
    run_case(case, worlds("openmpi"))


with memory_group(2**20) as _group:
    can_limit_memory = _group is not None

if can_limit_memory:  # as root, or where control groups are delegated; else there is nothing to collect

    @pytest.mark.mpi
    def test_the_kernel_killed_a_rank_because_memory_ran_out(tmp_path: Path) -> None:
        assert killed_for_memory(tmp_path) is not None


# -- the part that is run is a fair one -------------------------------------------------------------------------------


def test_the_pairwise_part_has_every_pair_that_can_occur() -> None:
    """Counted anew from the plain product, by what `impossible` says of each cell."""
    kinds = [list(FAULTS), list(MOMENTS), list(WORLDS), list(THEN)]
    wanted = {
        pair
        for values in itertools.product(*kinds)
        if not impossible(Cell(*values))
        for pair in itertools.combinations(enumerate(values), 2)
    }
    got = {pair for cell in pairwise() for pair in itertools.combinations(enumerate(cell.values), 2)}
    assert got == wanted
    assert len(pairs(pairwise())) == len(wanted)
    assert len(pairwise()) < len(cells()) / 3


def test_what_can_not_be_has_a_reason_and_the_rest_is_large() -> None:
    """7 faults x 6 moments on mpich, less 3 faults in code while nothing runs; Open MPI also less 7 with Horovod."""
    count = {world: len([cell for cell in cells() if cell.world == world]) / len(THEN) for world in WORLDS}
    assert count == {"mpich": 39, "openmpi": 32, "fake": 6}
    for values in itertools.product(FAULTS, MOMENTS, WORLDS, THEN):
        assert (Cell(*values) in cells()) == (impossible(Cell(*values)) == "")


def test_the_part_is_the_same_in_every_run() -> None:
    assert pairwise() == pairwise()
