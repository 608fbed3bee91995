"""What an MPI job that was killed leaves outside the pool's directory: shared memory and temporary files.

MPICH (5.0, seen) keeps `/dev/shm/mpich_shm_<hex>_<k>` by name until MPI_Finalize, which a killed rank never calls: each
pool would cost 2 MB of memory until the next boot. Open MPI's mpirun cleans up behind its ranks, unless it is killed;
then its session directory stays. A killed Hydra may leave a file of hwloc. Both write where TMPDIR says; that is a
directory of ours, on a local disk, which the pool's own may not be.
"""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["mapped", "orphans", "own_tmp", "remove", "remove_tmp", "unlink_early"]

_SHARED = "/dev/shm/"
_NAMES = ("mpich_", "vader_segment.", "sm_segment.", "ucx_shm_")


def mapped(pids: Iterable[int]) -> set[str]:
    """MPI's files in /dev/shm that these processes have mapped or open."""
    return {path for pid in pids for path in (*_maps(pid), *_descriptors(pid)) if _ours(path)}


def orphans(since: float) -> set[str]:
    """MPI's files in /dev/shm of this user, made since (seconds of the epoch), that no process of this user holds.

    One that is being made is held by its maker from the first moment, so a job that starts just now is safe.
    """
    found: set[str] = set()
    for name in _NAMES:
        for path in glob.glob(f"{_SHARED}{name}*"):
            with suppress(OSError):
                facts = os.stat(path)
                if facts.st_uid == os.getuid() and facts.st_ctime >= since:
                    found.add(path)
    if found:
        found -= mapped(int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())
    return found


def unlink_early(pids: Iterable[int]) -> None:
    """Take MPICH's names away once all ranks have the memory mapped: then it ends with the last of them, however.

    Only after MPI_Init has returned on every rank: until then another rank may open it by its name.
    """
    remove(path for path in mapped(pids) if path.startswith(f"{_SHARED}mpich_"))


def remove(paths: Iterable[str]) -> None:
    for path in paths:
        with suppress(OSError):
            os.unlink(path)


def own_tmp(mark: str) -> Path:
    """Where mpiexec and MPI's daemons put their temporary files: one directory an engine set, named by its mark."""
    return Path(tempfile.gettempdir()) / f"sciml-{mark}"


def remove_tmp(mark: str) -> None:
    """Remove it; with a mark that names no generation, those of all generations."""
    for path in (own_tmp(mark), *own_tmp(mark).parent.glob(f"sciml-{glob.escape(mark)}.*")):
        shutil.rmtree(path, ignore_errors=True)


def _ours(path: str) -> bool:
    return path.startswith(tuple(_SHARED + name for name in _NAMES)) and not path.endswith(" (deleted)")


def _maps(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            return [line.split(maxsplit=5)[-1].rstrip() for line in file if _SHARED in line]
    except OSError:
        return []


def _descriptors(pid: int) -> list[str]:
    found = []
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.append(os.readlink(entry.path))
    return found
