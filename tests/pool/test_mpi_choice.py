"""Another MPI by `SCIML_MPI`: named with its library, or refused; never found on PATH."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from sciml_kernel.errors import EnvironmentNotFitError
from sciml_kernel.pool import Pool
from sciml_kernel.pool.mpi import find_mpi


def _program(path: Path, says: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site's Open MPI, chosen by a file."""
    _program(tmp_path / "site" / "mpiexec", "mpirun (Open MPI) 4.1.4")
    (tmp_path / "site" / "libmpi.so.40").touch()
    _choose(tmp_path, mpiexec=str(tmp_path / "site" / "mpiexec"), libmpi=str(tmp_path / "site" / "libmpi.so.40"))
    monkeypatch.setenv("SCIML_MPI", str(tmp_path / "choice.json"))
    return tmp_path


def _choose(folder: Path, **mpi: str) -> None:
    (folder / "choice.json").write_text(json.dumps({"mpi": mpi}))


def test_the_chosen_mpi_is_used_with_its_library_on_the_ranks(site: Path) -> None:
    found = find_mpi()
    assert (found.mpiexec, found.vendor) == (str(site / "site" / "mpiexec"), "openmpi")
    text = Pool.plan(1)
    assert f"export MPI4PY_LIBMPI={site / 'site' / 'libmpi.so.40'}" in text
    assert f"{site / 'site' / 'mpiexec'} --oversubscribe" in text


def test_what_the_caller_sets_for_the_ranks_wins(site: Path) -> None:
    assert "export MPI4PY_LIBMPI=/own/libmpi.so" in Pool.plan(1, env={"MPI4PY_LIBMPI": "/own/libmpi.so"})


def test_without_a_choice_the_environment_of_this_python_counts_and_path_does_not(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SCIML_MPI")
    monkeypatch.setenv("PATH", str(site / "site"))
    assert Path(find_mpi().mpiexec).is_relative_to(sys.prefix) or "environment.json" in find_mpi().source
    assert find_mpi().variables == {}


def test_another_environment_is_asked_for_its_own_mpi(site: Path) -> None:
    with pytest.raises(EnvironmentNotFitError, match="no mpiexec"):
        find_mpi(str(site / "elsewhere"))


@pytest.mark.parametrize(
    ("mpi", "words"),
    [
        ({"mpiexec": "mpiexec", "libmpi": "LIB"}, r"mpi.mpiexec of .*choice.json.*'mpiexec' is no program"),
        ({"mpiexec": "/none/mpiexec", "libmpi": "LIB"}, r"'/none/mpiexec' is no program"),
        ({"mpiexec": "PROGRAM"}, r"mpi.libmpi of .*'\.' is no library"),
        ({"mpiexec": "PROGRAM", "libmpi": "libmpi.so.40"}, r"'libmpi.so.40' is no library with its path; .*unset"),
        ({}, r"correct it, or unset SCIML_MPI"),
    ],
)
def test_an_incomplete_choice_is_refused_with_what_to_do(site: Path, mpi: dict[str, str], words: str) -> None:
    there = {"PROGRAM": str(site / "site" / "mpiexec"), "LIB": str(site / "site" / "libmpi.so.40")}
    _choose(site, **{key: there.get(value, value) for key, value in mpi.items()})
    with pytest.raises(EnvironmentNotFitError, match=words):
        find_mpi()


def test_a_missing_file_is_refused(site: Path) -> None:
    (site / "choice.json").unlink()
    with pytest.raises(EnvironmentNotFitError, match="SCIML_MPI"):
        Pool.plan(1)
