"""What a rank says of itself when its engine has registered. Runs on the rank, before its first call.

The one place outside `engine.collective` that touches mpi4py: rank and size must be asked of MPI itself, because an
engine started under the wrong mpiexec is a world of its own and does not know.
"""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import sys
import threading
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

from sciml_kernel.contracts import RankReport
from sciml_kernel.pool import rank as rank_side
from sciml_kernel.pool import setups
from sciml_kernel.pool.files import now_utc, write_json
from sciml_kernel.pool.processes import ProcessId
from sciml_kernel.pool.spec import PoolDir

__all__ = ["describe_rank", "report"]

_PACKAGES = ("sciml-kernel", "ipyparallel", "mpi4py", "numpy", "tensorflow", "tensorflow-cpu", "keras", "horovod")


def report() -> None:
    """Write `ranks/<host>-<pid>.json`, set up `pool.rank` and run the pool's set-up cells. Called by the engine's
    startup command.

    Named by process, not by rank: n worlds of size 1 would all be rank 0.
    """
    from ipyparallel.engine.app import IPEngine

    app = IPEngine.instance()
    place = Path(app.url_file).parents[2]  # gen-<k>/profile/security/ipcontroller-engine.json
    facts = describe_rank()
    rank_side.set_up(rank=facts.rank, size=facts.world_size, host=facts.host, place=place)
    process = ProcessId.of(os.getpid())
    value = {"engine_id": app.id, "process": process.to_json(), "report": facts.to_json()}
    mine, cells = place / "ranks" / f"{facts.host}-{facts.pid}.json", setups.read(PoolDir(place.parent))
    if cells:
        write_json(mine, {**value, "ready": False})
        value["set_up_error"] = setups.run_all(cells, rank_side.execute)
    write_json(mine, {**value, "ready": True})
    # The engine redirects its output right after this; from then on, what is published goes to the log as well.
    asyncio.get_running_loop().call_soon(_copy_output_to_log)


def describe_rank() -> RankReport:
    """This process as a rank. Imports no TensorFlow: versions are read from the installed metadata."""
    from mpi4py import MPI

    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return RankReport(
        rank=MPI.COMM_WORLD.Get_rank(),
        world_size=MPI.COMM_WORLD.Get_size(),
        host=socket.gethostname(),
        pid=os.getpid(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=_memory_gib(),
        gpu=_gpu(),
        versions=versions,
        mpi_library=" ".join(MPI.Get_library_version().partition("\n")[0].strip("\0").split()),
        last_seen_utc=now_utc(),
    )


def _memory_gib() -> float:
    """Memory of the host in GiB, cut by the control group's limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        limit = "max"
    return round(min(total, int(limit)) / 2**30 if limit.isdigit() else total / 2**30, 2)


def _gpu() -> str:
    """Model of each GPU that the driver shows, joined by ", "; "" without one. No library is loaded for it."""
    models = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        for line in path.read_text(errors="replace").splitlines():
            if line.startswith("Model:"):
                models.append(line.partition(":")[2].strip())
    return ", ".join(models)


class _LogCopy:
    """Writes what a rank prints into its log too. What C code writes is copied there by the stream's own thread."""

    def __init__(self, stream: Any, file: TextIO) -> None:
        self._stream, self._file = stream, file

    def read(self) -> str:  # the stream asks for a file that can be read
        return ""

    def write(self, text: str) -> None:
        if threading.current_thread() is not getattr(self._stream, "watch_fd_thread", None):
            self._file.write(text)

    def flush(self) -> None:
        self._file.flush()


def _copy_output_to_log() -> None:
    streams: list[tuple[Any, int]] = [(sys.stdout, 1), (sys.stderr, 2)]
    for stream, number in streams:
        # Where the stream watches the descriptor itself, the log is at its copy of the old one.
        log = getattr(stream, "_original_stdstream_copy", None) or number
        file = os.fdopen(os.dup(log), "w", encoding="utf-8", errors="replace", buffering=1)
        stream.echo = _LogCopy(stream, file)
