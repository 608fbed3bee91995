"""Which interpreter the venv is made from, and what it can do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sciml_env.say import USAGE, SetupError

__all__ = ["Python", "choose", "probe"]

FIRST, LAST = (3, 11), (3, 13)
PROBE = """
import importlib.util as u, json, os, platform, sys, sysconfig
print(json.dumps(dict(
    executable=sys.executable, version=list(sys.version_info[:3]), soabi=sysconfig.get_config_var("SOABI") or "",
    prefix=sys.prefix, base_prefix=sys.base_prefix, site=sysconfig.get_paths()["platlib"],
    libc="-".join(platform.libc_ver()), system=platform.system(), machine=platform.machine(),
    has_venv=u.find_spec("venv") is not None, has_ensurepip=u.find_spec("ensurepip") is not None,
    has_pip=u.find_spec("pip") is not None,
    managed=os.path.exists(os.path.join(sysconfig.get_paths()["stdlib"], "EXTERNALLY-MANAGED")))))
"""


@dataclass(frozen=True)
class Python:
    """What an interpreter says of itself. managed: its distribution forbids pip outside a venv (PEP 668)."""

    executable: str
    version: tuple[int, int, int]
    soabi: str
    prefix: str
    base_prefix: str
    site: str
    libc: str
    system: str
    machine: str
    has_venv: bool
    has_ensurepip: bool
    has_pip: bool
    managed: bool

    @property
    def text(self) -> str:
        return ".".join(map(str, self.version))

    @property
    def in_venv(self) -> bool:
        return self.prefix != self.base_prefix

    def unfit(self) -> str:
        """Why it can't carry this project; "" when it can."""
        if not FIRST <= self.version[:2] <= LAST:
            return f"is Python {self.text}; 3.11, 3.12 or 3.13 is needed"
        if self.system != "Linux" or not self.libc.startswith("glibc"):
            return f"runs on {self.system} {self.libc}; Linux with glibc is needed (on Windows: WSL2)"
        if self.machine != "x86_64":
            return f"runs on {self.machine}; x86-64 is needed"
        return ""


def clean_env(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without what would send an installation elsewhere. Proxy and certificate settings stay."""
    drop = (
        "PYTHONPATH",
        "PYTHONHOME",
        "PIP_USER",
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_ROOT",
        "PIP_PYTHON",
        "UV_SYSTEM_PYTHON",
    )
    return {key: value for key, value in (os.environ if environ is None else environ).items() if key not in drop}


def probe(path: str | Path) -> Python | None:
    """None where it doesn't run (a pyenv shim of a version that isn't chosen, a venv whose base is gone)."""
    try:
        done = subprocess.run(
            [str(path), "-E", "-s", "-c", PROBE], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
        )
        said = json.loads(done.stdout)
        return Python(**{**said, "version": tuple(said["version"])})
    except (OSError, ValueError, TypeError, subprocess.SubprocessError):
        return None


def on_path(name: str, path: str) -> Iterator[str]:
    """Every executable of this name on PATH, not only the first: the first may be a shim that doesn't work."""
    for directory in path.split(os.pathsep):
        found = Path(directory or ".") / name
        if found.is_file() and os.access(found, os.X_OK):
            yield str(found)


def _from_uv(version: str, environ: Mapping[str, str]) -> Iterator[str]:
    uv = shutil.which("uv", path=environ.get("PATH", ""))
    if uv:
        done = subprocess.run([uv, "python", "find", version], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode == 0 and done.stdout.strip():
            yield done.stdout.strip()


def choose(version: str | None, environ: Mapping[str, str]) -> Python:
    """The interpreter for a new venv: `version` ("3.12") if given, else $PYTHON, else the first fit one on PATH."""
    path = environ.get("PATH", os.defpath)
    wanted = environ.get("PYTHON")
    if wanted and not version:
        found = probe(shutil.which(wanted, path=path) or wanted)
        if found is None:
            raise SetupError(f"PYTHON={wanted} does not run; unset it or name a Python 3.11 to 3.13", USAGE)
        if found.unfit():
            raise SetupError(f"PYTHON={wanted} {found.unfit()}")
        return found
    names = [f"python{version}"] if version else ["python3.11", "python3.12", "python3.13", "python3", "python"]
    refused: dict[str, str] = {}
    for name in names:
        for candidate in on_path(name, path):
            found = probe(candidate)
            why = "does not run" if found is None else found.unfit()
            if found is not None and not why:
                return found
            refused[candidate] = why
    for candidate in _from_uv(version or ">=3.11,<3.14", environ):
        found = probe(candidate)
        if found is not None and not found.unfit():
            return found
    looked = "".join(f"\n  {candidate} {why}" for candidate, why in refused.items())
    raise SetupError(
        f"no fit Python{' ' + version if version else ''} on PATH.{looked}\n"
        "Debian, Ubuntu: sudo apt-get install python3 python3-venv; a cluster: module load python; "
        "elsewhere: PYTHON=/path/to/python3.11 env/setup"
    )
