"""Which mpiexec starts the ranks: the one of the environment that built Horovod, never the one on PATH.

Another MPI can be chosen on purpose, by the variable `SCIML_MPI`: a JSON file like the environment's own,
`{"mpi": {"mpiexec": "/usr/bin/mpiexec.openmpi", "libmpi": "/usr/lib/x86_64-linux-gnu/libmpi.so.40"}}`. It names the
library too, and mpi4py on the ranks loads that one. Horovod does not change with it: it stays with the MPI that it was
built for, so such a pool is for mpi4py, unless the environment was built so (`env/setup --mpi system`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from sciml_kernel.errors import EnvironmentNotFitError
from sciml_kernel.pool.files import read_json

__all__ = ["CHOICE", "Mpi", "find_mpi"]

CHOICE = "SCIML_MPI"

_MEND = "run env/setup (it brings the mpich wheel), or env/setup --mpi system for the site's own MPI"


@dataclass(frozen=True, slots=True)
class Mpi:
    """mpiexec: path. vendor: "mpich" (Hydra, Intel MPI too), "openmpi" or "unknown". source: where it was named.
    variables: what the ranks need in their environment to use this MPI's library.
    """

    mpiexec: str
    vendor: str
    source: str
    variables: dict[str, str] = field(default_factory=dict)


def find_mpi(prefix: str | None = None) -> Mpi:
    """The mpiexec of an environment (default: of this Python), or of the file that `$SCIML_MPI` names.

    `PREFIX/etc/sciml/environment.json`, key mpi.mpiexec, is written by env/setup; without that file
    `PREFIX/bin/mpiexec` counts. PATH is not looked at: an mpiexec of another MPI starts n worlds of size 1.

    Raises EnvironmentNotFitError, saying what to do.
    """
    if os.environ.get(CHOICE) and prefix in (None, sys.prefix):
        return _chosen(Path(os.environ[CHOICE]))
    root = Path(prefix or sys.prefix)
    noted = root / "etc" / "sciml" / "environment.json"
    mpi = (read_json(noted) or {}).get("mpi") or {}
    if noted.exists() and not mpi.get("mpiexec"):
        raise EnvironmentNotFitError(f"{noted} names no mpi.mpiexec; {_MEND}")
    path = Path(mpi["mpiexec"]) if mpi else root / "bin" / "mpiexec"
    source = str(noted) if mpi else f"bin of {root}"
    if not _executable(path):
        raise EnvironmentNotFitError(f"no mpiexec at {path} (named by {source}); {_MEND}")
    return Mpi(str(path), str(mpi.get("vendor") or _vendor(path)), source)


def _chosen(file: Path) -> Mpi:
    mpi = (read_json(file) or {}).get("mpi") or {}
    path, library = Path(str(mpi.get("mpiexec", ""))), Path(str(mpi.get("libmpi", "")))
    source, mend = f"{file}, named by ${CHOICE}", f"correct it, or unset {CHOICE} to use the environment's own MPI"
    if not (path.is_absolute() and _executable(path)):
        raise EnvironmentNotFitError(f"mpi.mpiexec of {source}: {str(path)!r} is no program with its path; {mend}")
    if not (library.is_absolute() and library.is_file()):
        raise EnvironmentNotFitError(f"mpi.libmpi of {source}: {str(library)!r} is no library with its path; {mend}")
    return Mpi(str(path), str(mpi.get("vendor") or _vendor(path)), source, {"MPI4PY_LIBMPI": str(library)})


def _executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


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
