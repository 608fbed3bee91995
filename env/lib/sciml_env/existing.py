"""`--python PATH`: build the patched Horovod for a conda or module environment, and leave the rest of it alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path

from sciml_env.installer import Installer, find_uv
from sciml_env.mpi import find_site_mpicxx
from sciml_env.pythons import Python, probe
from sciml_env.say import USAGE, SetupError
from sciml_env.tools import writable

__all__ = ["check", "installer", "mpi_prefix", "requirements"]

# Every distribution that installs the module `tensorflow`.
TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-base", "tensorflow-gpu", "intel-tensorflow")
LOOK = """
import importlib.metadata as m, json, re, sys
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
asked = json.loads(sys.argv[1])
lacking = []
try: from packaging.requirements import Requirement
except ImportError: Requirement = None
for text in asked["requirements"]:
    name = re.match(r"[A-Za-z0-9._-]+", text)[0]
    have = version(name)
    if have is None: lacking.append([text, "missing"])
    elif Requirement and not Requirement(text).specifier.contains(have, prereleases=True):
        lacking.append([text, "is " + have])
print(json.dumps({"lacking": lacking, "tensorflow": [[n, version(n)] for n in asked["tensorflows"] if version(n)]}))
"""


def requirements(project: Path) -> list[str]:
    """What the package needs at run time and Horovod for its build, without TensorFlow, MPI and uv."""
    meta = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = [*meta["dependencies"], *meta["optional-dependencies"]["build"]]
    return [text for text in found if not re.match(r"(uv|cmake)\b", text)]


def _look(python: Path, project: Path) -> dict[str, list[list[str]]]:
    asked = json.dumps({"requirements": requirements(project), "tensorflows": TENSORFLOWS})
    done = subprocess.run(
        [str(python), "-P", "-c", LOOK, asked], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        raise SetupError(f"{python} can't list its packages:\n{done.stderr.strip()[-600:]}")
    found: dict[str, list[list[str]]] = json.loads(done.stdout)
    return found


def _cmake_problem(prefix: Path, environ: Mapping[str, str]) -> str:
    path = f"{prefix / 'bin'}{os.pathsep}{environ.get('PATH', os.defpath)}"
    try:
        done = subprocess.run(["cmake", "--version"], capture_output=True, text=True, env={**environ, "PATH": path})
    except OSError:
        return "missing"
    found = re.search(r"(\d+)\.(\d+)", done.stdout)
    if done.returncode != 0 or not found:
        return "does not run"
    # 3.21 reads CMAKE_TOOLCHAIN_FILE from the environment; 4 refuses Horovod's old policies.
    return "" if (3, 21) <= (int(found[1]), int(found[2])) < (4, 0) else f"is {found[0]}"


def check(path: Path, project: Path, environ: Mapping[str, str]) -> tuple[Python, str]:
    """Whether this interpreter can carry the project. Returns it and its TensorFlow ("tensorflow 2.21.0").

    Raises SetupError listing everything that is missing, with the command that installs it.
    """
    python = probe(path)
    if python is None:
        raise SetupError(f"--python {path}: it does not run; give the path of a Python interpreter", USAGE)
    if python.unfit():
        raise SetupError(f"--python {path} {python.unfit()}")
    if python.managed and not python.in_venv:
        raise SetupError(
            f"--python {path} belongs to the operating system, which forbids installing into it (PEP 668).\n"
            "Run env/setup without --python: it makes a venv from this interpreter and leaves it alone."
        )
    if not writable(Path(python.site)):
        raise SetupError(
            f"--python {path}: {python.site} can't be written by you.\n"
            "Make an environment of your own: run env/setup without --python, or clone the conda environment."
        )
    found = _look(path, project)
    lacking = [(text, why) for text, why in found["lacking"]]
    if not found["tensorflow"]:
        lacking.insert(0, ("tensorflow>=2.21,<2.22", "missing"))
    elif tuple(map(int, found["tensorflow"][0][1].split(".")[:2])) < (2, 16):
        lacking.insert(0, ("tensorflow>=2.21,<2.22", f"is {found['tensorflow'][0][1]}"))
    cmake = _cmake_problem(Path(python.prefix), environ)
    if cmake:
        lacking.append(("cmake>=3.21,<4", cmake))
    if lacking:
        listed = "".join(f"\n  {text:<40} {why}" for text, why in lacking)
        asked = " ".join(f"'{text}'" for text, _ in lacking)
        if len(lacking) > 5:  # an environment without most of it: better the versions that were tested together
            asked = f"--require-hashes -r '{project / 'env' / 'lock' / 'cpu.txt'}'"
        raise SetupError(
            f"{path} lacks what this project needs:{listed}\n"
            f"Install it (environment.yml has the conda names), for instance:\n  {path} -m pip install {asked}\n"
            "then run this again. Nothing was changed."
        )
    return python, " ".join(found["tensorflow"][0])


def mpi_prefix(python: Python, asked: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Where to look for mpicxx: as asked, else the environment itself if it has one, else None (PATH)."""
    if asked is None:
        try:
            find_site_mpicxx(Path(python.prefix), environ)
        except SetupError:
            return None
        return Path(python.prefix)
    return asked


def installer(python: Python, log: object, env: Mapping[str, str], *, offline: bool) -> Installer:
    return Installer(Path(python.executable), log=log, env=env, uv=find_uv(env), offline=offline)  # type: ignore[arg-type]
