"""What this machine has and what is left on it: Open MPI of the system, shared memory, session directories."""

from __future__ import annotations

import glob
import json
import os
import tempfile
from pathlib import Path

__all__ = ["open_mpi", "remains"]

_SHARED_MEMORY = ("mpich_*", "vader_segment.*", "ucx_shm_*", "sm_segment.*")


def open_mpi(directory: Path) -> Path:
    """Write the choice of the system's Open MPI (Debian's openmpi-bin) for `$SCIML_MPI`; return its path.

    Raises AssertionError where it is not installed: .ci/run installs it.
    """
    libraries = sorted(glob.glob("/usr/lib/*/openmpi/lib/libmpi.so.40") + glob.glob("/usr/lib/*/libmpi.so.40"))
    program = Path("/usr/bin/mpiexec.openmpi")
    mend = "Open MPI is missing: apt-get install -y --no-install-recommends openmpi-bin"
    assert program.exists(), mend
    assert libraries, mend
    path = directory / "open-mpi.json"
    path.write_text(json.dumps({"mpi": {"mpiexec": str(program), "libmpi": libraries[-1]}}))
    return path


def remains() -> set[str]:
    """Files of this user that an MPI job made outside its own directory and that no process has open or mapped."""
    found = {path for pattern in _SHARED_MEMORY for path in glob.glob(f"/dev/shm/{pattern}")}
    sessions = [*glob.glob(f"{tempfile.gettempdir()}/ompi.*.{os.getuid()}/pid.*")]
    found |= {path for path in sessions if not os.path.exists(f"/proc/{path.rpartition('.')[2]}")}
    return {path for path in found if os.path.exists(path) and os.stat(path).st_uid == os.getuid()} - _in_use()


def _in_use() -> set[str]:
    used: set[str] = set()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            used |= _opened(entry.name)
    return used


def _opened(pid: str) -> set[str]:
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            return {line.split(maxsplit=5)[-1].strip() for line in file if "/dev/shm/" in line}
    except OSError:
        return set()
