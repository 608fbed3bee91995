"""One suite for every collective: in this process on one rank, and under mpiexec on two."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sciml_kernel.engine import collective as collectives
from sciml_kernel.errors import NotFoundError
from sciml_kernel.testing.collective_suite import CHECKS, CollectiveContract

MPIEXEC = Path(sys.executable).parent / "mpiexec"


@pytest.mark.tf
class TestSingle(CollectiveContract):
    @pytest.fixture
    def collective(self) -> collectives.EngineCollective:
        return collectives.make("single")


@pytest.fixture(
    scope="module",
    params=[pytest.param("horovod", marks=pytest.mark.horovod), pytest.param("mpi4py")],
)
def two_ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Two processes run all checks once; each check is then a test of its own."""
    out = tmp_path_factory.mktemp("ranks")
    command = [MPIEXEC, "-n", "2", sys.executable, "-m", "sciml_kernel.testing.collective_suite"]
    command += ["--collective", request.param, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert [rank["size"] for rank in ranks] == [2, 2]
    return [rank["checks"] for rank in ranks]


@pytest.mark.mpi
@pytest.mark.tf
@pytest.mark.parametrize("check", CHECKS)
def test_collective_over_two_ranks(two_ranks: list[dict[str, str]], check: str) -> None:
    assert [rank[check] for rank in two_ranks] == ["", ""]


def test_unknown_collective_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(NotFoundError, match=r"unknown collective 'horovdo'; did you mean 'horovod'\?"):
        collectives.make("horovdo")
