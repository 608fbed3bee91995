"""Checks of the machine: cores, memory, GPU, disk, kernelspec, files, ports."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from sciml_kernel import records
from sciml_kernel.pool.doctor_base import Check, Seen, existing, fail, ok, run, warn
from sciml_kernel.pool.files import read_json
from sciml_kernel.pool.spec import available_cores, pools_root

__all__ = ["kernelspec", "locking", "machine", "ports", "state_folder"]

_GIB = 2**30


def machine(seen: Seen) -> Iterator[Check]:
    import psutil

    cores = available_cores()
    yield (
        ok("cores", f"{cores}")
        if cores > 1
        else warn("cores", f"{cores}", "two ranks share it: it works, slowly; ask for more cores")
    )
    memory = psutil.virtual_memory()
    text = f"{memory.available / _GIB:.1f} GiB free of {memory.total / _GIB:.1f}"
    few = memory.available < 2 * _GIB
    yield warn("memory", text, "two ranks need about 2 GiB; end other programs") if few else ok("memory", text)
    yield _gpu(seen)
    place = existing(records.runs_root())
    free = shutil.disk_usage(place).free / _GIB
    if free < 0.5:
        yield fail("disk", f"{free:.2f} GiB free in {place}", "make room, or set SCIML_RUNS to another place")
    elif free < 5:
        yield warn("disk", f"{free:.1f} GiB free in {place}", "checkpoints need room; set SCIML_RUNS to another place")
    else:
        yield ok("disk", f"{free:.0f} GiB free in {place}")


def _gpu(seen: Seen) -> Check:
    tool = shutil.which("nvidia-smi")
    listed = run([tool, "-L"], timeout_s=20).stdout.strip().splitlines() if tool else []
    names = [line.split("(")[0].strip() for line in listed if line.startswith("GPU ")]
    if not names:
        return warn("gpu", "none: ranks train on the CPU", "nothing to mend, unless this machine should have one")
    if not seen.tensorflow.get("cuda", False):
        return warn("gpu", f"{', '.join(names)}; this TensorFlow is built without CUDA", "env/setup --gpu")
    return ok("gpu", ", ".join(names))


def kernelspec(seen: Seen) -> Iterator[Check]:
    from jupyter_core.paths import jupyter_path

    mend = "run: sciml kernel install --sys-prefix"
    places = [Path(path) / "sciml" / "kernel.json" for path in jupyter_path("kernels")]
    found = next((path for path in places if path.exists()), None)
    if found is None:
        yield fail("kernelspec", f"no kernel 'sciml' in {', '.join(jupyter_path('kernels'))}", mend)
        return
    argv = (read_json(found) or {}).get("argv") or [""]
    if not os.access(argv[0], os.X_OK):
        yield fail("kernelspec", f"{found} names {argv[0] or 'no interpreter'}, which can't be run", mend)
    elif Path(argv[0]).parent.resolve() != Path(sys.executable).parent.resolve():
        yield fail("kernelspec", f"{found} is of another environment: {argv[0]}", f"{mend}, or remove that folder")
    else:
        yield ok("kernelspec", f"{found.parent} runs {argv[0]}")


def locking(seen: Seen) -> Iterator[Check]:
    """HDF5 locks the files that it opens; some shared file systems can't."""
    import h5py

    places = {"runs folder": existing(records.runs_root()), "temporary folder": Path(tempfile.gettempdir())}
    for name, place in places.items():
        try:
            with tempfile.TemporaryDirectory(prefix=".sciml-doctor-", dir=place) as folder:
                with h5py.File(Path(folder) / "lock.h5", "w", locking=True) as file:
                    file["x"] = 1
                with h5py.File(Path(folder) / "lock.h5", "r", locking=True) as file:
                    _ = file["x"][()]
        except OSError as error:
            if not os.access(place, os.W_OK) or not place.is_dir():
                yield fail(f"files in {name}", f"{place} can't be written", "set SCIML_RUNS or TMPDIR to another place")
            else:
                first = str(error).splitlines()[0]
                mend = "set HDF5_USE_FILE_LOCKING=FALSE before Python starts, or use another file system"
                yield warn(f"files in {name}", f"HDF5 can't lock files in {place}: {first}", mend)
            continue
        yield ok(f"files in {name}", f"{place} can be written, HDF5 can lock")


def ports(seen: Seen) -> Iterator[Check]:
    """A pool's controller listens on about ten ports of the loopback interface."""
    try:
        with ExitStack() as stack:
            listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(12)]
            stack.enter_context(socket.create_connection(listeners[0].getsockname(), timeout=5))
            free = [listener.getsockname()[1] for listener in listeners]
    except OSError as error:
        yield fail("ports", f"127.0.0.1: {error}", "open the loopback interface (a firewall or a sandbox closes it)")
        return
    yield ok("ports", f"12 free on 127.0.0.1 ({min(free)}-{max(free)})")


def state_folder(seen: Seen) -> Iterator[Check]:
    """Where pools keep their keys: ours alone."""
    folder = pools_root()
    place = existing(folder)
    mend = "set XDG_STATE_HOME to a folder that you may write"
    try:
        if not place.is_dir():
            raise NotADirectoryError(f"{place} is no folder")
        with tempfile.TemporaryDirectory(prefix=".sciml-doctor-", dir=place) as trial:
            mode = os.stat(trial).st_mode & 0o777
            # A pool's socket lies there; some network file systems have none.
            with socket.socket(socket.AF_UNIX) as listener, suppress(OverflowError):
                descriptor = os.open(trial, os.O_RDONLY)
                try:
                    listener.bind(f"/proc/self/fd/{descriptor}/s")
                finally:
                    os.close(descriptor)
    except OSError as error:
        yield fail("state folder", f"{folder} can't be used: {error.strerror or error}", mend)
        return
    open_to = os.stat(folder).st_mode & 0o077 if folder.exists() else 0
    if mode != 0o700:
        yield fail("state folder", f"{place}: a private folder comes out as {mode:o}, not 700", mend)
    elif open_to:
        yield warn("state folder", f"{folder} is open to others", f"chmod 700 {folder}")
    else:
        yield ok("state folder", str(folder))
