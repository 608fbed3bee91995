"""The locks pin what pyproject.toml asks for, and name no host."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from sciml_env.locks import Lock

EXTRAS = {
    "cpu.txt": ["cpu", "mpi", "build", "dev"],
    "gpu.txt": ["gpu", "mpi", "build", "dev"],
    "hub.txt": ["cpu", "mpi", "build", "dev", "hub"],
}


def direct(project: Path, extras: list[str]) -> list[Requirement]:
    meta = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    texts = [*meta["dependencies"], *(text for name in extras for text in meta["optional-dependencies"][name])]
    return [Requirement(text) for text in texts]


@pytest.mark.parametrize("name", sorted(EXTRAS))
def test_every_direct_dependency_is_pinned_within_its_range(project: Path, name: str) -> None:
    lock = Lock(project / "env" / "lock" / name)
    wrong = []
    for requirement in direct(project, EXTRAS[name]):
        versions = lock.versions(requirement.name)
        if not versions or not all(requirement.specifier.contains(version) for version in versions):
            wrong.append(f"{requirement}: pinned at {versions}")
    assert not wrong, "run env/lock/update: " + "; ".join(wrong)


@pytest.mark.parametrize("name", [*sorted(EXTRAS), "horovod.txt"])
def test_no_lock_names_a_host_or_a_path(project: Path, name: str) -> None:
    text = (project / "env" / "lock" / name).read_text()
    found = [line for line in text.splitlines() if re.search(r"://|--(extra-)?index-url|--find-links| @ ", line)]
    assert found == []


@pytest.mark.parametrize("name", [*sorted(EXTRAS), "horovod.txt"])
def test_every_pin_has_a_hash(project: Path, name: str) -> None:
    lock = Lock(project / "env" / "lock" / name)
    assert lock.blocks
    assert [block[0] for block in lock.blocks if "--hash=sha256:" not in block[2]] == []


@pytest.mark.parametrize("name", ["gpu.txt", "hub.txt"])
def test_the_other_locks_keep_the_versions_of_cpu(project: Path, name: str) -> None:
    cpu, other = Lock(project / "env" / "lock" / "cpu.txt"), Lock(project / "env" / "lock" / name)
    shared = {pinned for pinned, _, _ in cpu.blocks} & {pinned for pinned, _, _ in other.blocks}
    assert shared
    assert {name: other.versions(name) for name in shared} == {name: cpu.versions(name) for name in shared}


def test_exactly_one_tensorflow_is_locked(project: Path) -> None:
    # Two wheels of the module `tensorflow` would overwrite each other.
    for name, wanted in (("cpu.txt", "tensorflow-cpu"), ("hub.txt", "tensorflow-cpu"), ("gpu.txt", "tensorflow")):
        lock = Lock(project / "env" / "lock" / name)
        assert [pinned for pinned, _, _ in lock.blocks if pinned in ("tensorflow", "tensorflow-cpu")] == [wanted]


def test_horovod_is_in_no_package_lock(project: Path) -> None:
    # It must be built with the patch; an installer that met it in a lock would build it without.
    for name in EXTRAS:
        assert Lock(project / "env" / "lock" / name).versions("horovod") == []
    assert Lock(project / "env" / "lock" / "horovod.txt").version("horovod") == "0.28.1"


def test_a_block_can_be_taken_out_and_taken_alone(tmp_path: Path) -> None:
    file = tmp_path / "lock.txt"
    file.write_text(
        "a-b==1 \\\n    --hash=sha256:11\n    # via c\n"
        "mpich==5.0.2 ; sys_platform == 'linux' \\\n    --hash=sha256:22\n"
        "numpy==2.4 ; python_full_version < '3.12' \\\n    --hash=sha256:33\n"
        "numpy==2.5 ; python_full_version >= '3.12' \\\n    --hash=sha256:44\n"
    )
    lock = Lock(file)
    assert lock.version("A_B") == "1"
    assert lock.versions("numpy") == ["2.4", "2.5"]
    with pytest.raises(KeyError, match=r"numpy at \['2.4', '2.5'\]"):
        lock.version("numpy")
    assert "mpich" not in lock.without("mpich")
    assert "22" not in lock.without("mpich")
    assert lock.without("mpich").count("--hash") == 3
    assert lock.only("mpich") == "mpich==5.0.2 ; sys_platform == 'linux' \\\n    --hash=sha256:22\n"


def test_canonical_names_agree_with_packaging() -> None:
    from sciml_env.locks import normal

    for name in ("Scikit_Learn", "ruamel.yaml", "zope--interface", "numpy"):
        assert normal(name) == canonicalize_name(name)
