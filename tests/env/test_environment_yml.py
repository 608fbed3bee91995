"""environment.yml expresses the same environment as pyproject.toml and the lock, for conda users."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from sciml_env.locks import Lock

# Where conda-forge spells a name otherwise than PyPI, beyond what canonical names level out.
CONDA_NAMES: dict[str, str] = {}
# In the file, and not a Python dependency of pyproject.toml.
CONDA_ONLY = {"python", "cxx-compiler", "make"}
# mpich may be older than the wheel's: conda-forge's mpi4py is bound to what conda-forge has.
OWN_RANGE = {"mpich"}


@pytest.fixture(scope="module")
def text() -> str:
    return (Path(__file__).resolve().parents[2] / "environment.yml").read_text()


@pytest.fixture(scope="module")
def specs(text: str) -> dict[str, SpecifierSet]:
    loaded: dict[str, Any] = yaml.safe_load(text)
    flat = [entry for entry in loaded["dependencies"] if isinstance(entry, str)]
    flat += [entry for part in loaded["dependencies"] if isinstance(part, dict) for entry in part["pip"]]
    found = {}
    for entry in flat:
        requirement = Requirement(entry)
        name = canonicalize_name(CONDA_NAMES.get(requirement.name, requirement.name))
        assert name not in found, f"{name} twice"
        found[name] = requirement.specifier
    return found


def wanted(project: Path) -> dict[str, Requirement]:
    meta = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    texts = list(meta["dependencies"])
    for extra in ("cpu", "mpi", "build", "dev"):
        texts += meta["optional-dependencies"][extra]
    return {canonicalize_name(Requirement(text).name): Requirement(text) for text in texts}


def test_it_has_every_direct_dependency_and_nothing_else(project: Path, specs: dict[str, SpecifierSet]) -> None:
    assert set(specs) - CONDA_ONLY == set(wanted(project))


def test_its_ranges_are_those_of_pyproject(project: Path, specs: dict[str, SpecifierSet]) -> None:
    differ = {
        name: (str(specs[name]), str(requirement.specifier))
        for name, requirement in wanted(project).items()
        if name not in OWN_RANGE and specs[name] != requirement.specifier
    }
    assert differ == {}


def test_its_ranges_admit_the_locked_versions(project: Path, specs: dict[str, SpecifierSet]) -> None:
    lock = Lock(project / "env" / "lock" / "cpu.txt")
    refused = {
        name: (str(specs[name]), lock.versions(name))
        for name in wanted(project)
        if not lock.versions(name) or not all(specs[name].contains(version) for version in lock.versions(name))
    }
    assert refused == {}


def test_python_is_what_pyproject_says(project: Path, specs: dict[str, SpecifierSet]) -> None:
    meta = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    assert specs["python"] == SpecifierSet(meta["requires-python"])


def test_every_pin_has_a_reason(text: str) -> None:
    pins = [line for line in text.splitlines() if re.match(r"\s+- [a-z].*[<>=]", line)]
    assert len(pins) > 40
    assert [line for line in pins if not re.search(r"  # \S+ \S+", line)] == []


def test_it_says_the_step_that_builds_horovod(text: str) -> None:
    assert 'env/setup --python "$(which python)"' in text
    assert "Horovod 0.28.1" in text
