"""Which mpiexec starts the ranks: the one of the environment that built Horovod, never the one on PATH."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from sciml_kernel.errors import EnvironmentNotFitError
from sciml_kernel.pool.files import read_json

__all__ = ["Mpi", "find_mpi"]

_MEND = "run env/setup (it brings the mpich wheel), or env/setup --mpi system for the site's own MPI"


@dataclass(frozen=True, slots=True)
class Mpi:
    """mpiexec: path. vendor: "mpich" (Hydra, Intel MPI too), "openmpi" or "unknown". source: where it was named."""

    mpiexec: str
    vendor: str
    source: str


def find_mpi(prefix: str | None = None) -> Mpi:
    """The mpiexec of an environment (default: of this Python).

    `PREFIX/etc/sciml/environment.json`, key mpi.mpiexec, is written by env/setup; without that file
    `PREFIX/bin/mpiexec` counts. PATH is not looked at: an mpiexec of another MPI starts n worlds of size 1.

    Raises EnvironmentNotFitError, saying what to do.
    """
    root = Path(prefix or sys.prefix)
    noted = root / "etc" / "sciml" / "environment.json"
    mpi = (read_json(noted) or {}).get("mpi") or {}
    if noted.exists() and not mpi.get("mpiexec"):
        raise EnvironmentNotFitError(f"{noted} names no mpi.mpiexec; {_MEND}")
    path = Path(mpi["mpiexec"]) if mpi else root / "bin" / "mpiexec"
    source = str(noted) if mpi else f"bin of {root}"
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise EnvironmentNotFitError(f"no mpiexec at {path} (named by {source}); {_MEND}")
    return Mpi(str(path), str(mpi.get("vendor") or _vendor(path)), source)


def _vendor(path: Path) -> str:
    try:
        answer = subprocess.run([str(path), "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentNotFitError(f"{path} --version failed: {error}; {_MEND}") from error
    text = (answer.stdout + answer.stderr).lower()
    if "hydra" in text or "intel(r) mpi" in text:
        return "mpich"
    if "open mpi" in text or "open-mpi" in text or "openrte" in text:
        return "openmpi"
    return "unknown"
