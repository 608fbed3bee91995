"""Fixtures for the tests of `env/`: its code on the path, and directories of fake tools to put on PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
for place in (PROJECT / "env" / "lib", PROJECT / "tests" / "env"):
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))

# What a shell script of ours may call; taken from this machine, so that PATH holds these and nothing else.
COMMON = ("bash", "sh", "env", "dirname", "date", "mktemp", "rm", "mkdir", "cat", "touch", "ls", "uname", "ldd")


@pytest.fixture
def project() -> Path:
    return PROJECT


@pytest.fixture
def tools(tmp_path: Path) -> Callable[[str, str], Path]:
    """Make an executable shell script in tmp_path/bin: `tools("uv", 'echo "uv 0.9.1"')`."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in COMMON:
        found = shutil.which(name)
        if found:
            (directory / name).symlink_to(found)

    def make(name: str, body: str) -> Path:
        file = directory / name
        file.write_text(f"#!/bin/sh\n{body}\n")
        file.chmod(0o755)
        return file

    return make


@pytest.fixture
def real_python(tools: Callable[[str, str], Path]) -> Path:
    """python3.11 on the fake PATH that is the interpreter of these tests' own base."""
    base = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info[1]}"
    return tools(f"python3.{sys.version_info[1]}", f'exec "{base}" "$@"')


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A small copy of the project: env/, metadata and a package of two files, in a directory with a space."""
    target = tmp_path / "a clone"
    shutil.copytree(PROJECT / "env", target / "env", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(PROJECT / name, target / name)
    (target / "sciml_kernel" / "jupyter").mkdir(parents=True)
    (target / "sciml_kernel" / "__init__.py").write_text("")
    (target / "notebooks").mkdir()
    return target


@pytest.fixture
def bare_env(tmp_path: Path) -> dict[str, str]:
    """The environment of a newcomer: an empty home, the fake PATH, nothing else."""
    home = tmp_path / "home"
    home.mkdir()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return {"HOME": str(home), "PATH": str(tmp_path / "bin"), "LANG": "C.UTF-8", "TMPDIR": str(scratch)}


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(bare_env: dict[str, str]) -> Iterator[Run]:
    """Run a command in the bare environment; `extra` adds variables."""

    def go(*command: str | Path, extra: Mapping[str, str] | None = None, cwd: Path | None = None, timeout: float = 60):
        return subprocess.run(
            [str(part) for part in command],
            env={**bare_env, **(extra or {})},
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )

    yield go
    assert os.getcwd()  # a test that removes its own directory would break the next


from site_of_tests import site  # noqa: E402, F401 - a fixture
