"""The checks behind `sciml doctor`: do the pieces fit together, and how is what does not mended?

Everything that may crash or hang (MPI, Horovod, TensorFlow) is asked in a process of its own with a time limit.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from sciml_kernel import records
from sciml_kernel.errors import SciMLError
from sciml_kernel.pool.files import read_json
from sciml_kernel.pool.launch_local import LocalLauncher
from sciml_kernel.pool.mpi import Mpi, find_mpi
from sciml_kernel.pool.spec import PoolSpec, available_cores, pools_root

__all__ = ["Check", "examine"]

_SETUP = "run env/setup again"
_GIB = 2**30
ASK_TIMEOUT_S = 120.0  # TensorFlow's first import on a busy machine
MPI_TIMEOUT_S = 60.0
PYTHONS = ((3, 11), (3, 14))  # from, below


@dataclass(frozen=True, slots=True)
class Check:
    """result: "ok", "warn" or "fail". found: what was seen. mend: what to do; "" when nothing is wrong."""

    name: str
    result: str
    found: str
    mend: str = ""

    def to_json(self) -> dict[str, str]:
        return asdict(self)


@dataclass
class _Seen:
    """What earlier checks found and later ones need."""

    prefix: Path
    noted: dict[str, Any] = field(default_factory=dict)
    mpi: Mpi | None = None
    mpiexec_version: str = ""
    mpi4py: dict[str, Any] = field(default_factory=dict)
    tensorflow: dict[str, Any] = field(default_factory=dict)


def examine(show: Callable[[Check], None] | None = None, *, prefix: str | Path | None = None) -> list[Check]:
    """All checks in order; `show` gets each as soon as it is known. prefix: environment; default: this Python's."""
    seen = _Seen(Path(prefix or sys.prefix))
    found: list[Check] = []
    for check in _CHECKS:
        try:
            results = list(check(seen))
        except Exception as error:  # a check that breaks says so, and the others go on
            results = [_fail(check.__name__.strip("_"), f"{type(error).__name__}: {error}", "report this")]
        for result in results:
            found.append(result)
            if show is not None:
                show(result)
    return found


def _ok(name: str, found: str) -> Check:
    return Check(name, "ok", found)


def _warn(name: str, found: str, mend: str) -> Check:
    return Check(name, "warn", found, mend)


def _fail(name: str, found: str, mend: str) -> Check:
    return Check(name, "fail", found, mend)


# -- Python and what the set-up noted ---------------------------------------------------------------------------------


def _python(seen: _Seen) -> Iterator[Check]:
    found = f"{sys.version.split()[0]} in {sys.prefix}"
    low, high = PYTHONS
    if low <= sys.version_info[:2] < high:
        yield _ok("python", found)
    else:
        yield _fail("python", found, "use Python 3.11, 3.12 or 3.13: env/setup --python PATH")


def _set_up(seen: _Seen) -> Iterator[Check]:
    path = seen.prefix / "etc" / "sciml" / "environment.json"
    if not path.exists():
        yield _warn(
            "set-up", f"{path} is missing: not installed by env/setup", "run env/setup, if MPI is to be trusted"
        )
        return
    noted = read_json(path)
    if noted is None:
        yield _fail("set-up", f"{path} is no JSON object", _SETUP)
        return
    seen.noted = noted
    horovod, mpi = noted.get("horovod") or {}, noted.get("mpi") or {}
    words = f"Horovod {horovod.get('version')} built with {horovod.get('built_with')}, {mpi.get('library_version')}"
    yield _ok("set-up", words)


# -- MPI --------------------------------------------------------------------------------------------------------------


def _mpiexec(seen: _Seen) -> Iterator[Check]:
    try:
        seen.mpi = find_mpi(str(seen.prefix))
        answer = _run([seen.mpi.mpiexec, "--version"], timeout_s=20)
    except (SciMLError, OSError) as error:
        yield _fail("mpiexec", str(error), _SETUP)
        return
    seen.mpiexec_version = _version(answer.stdout + answer.stderr)
    found = f"{seen.mpi.mpiexec} ({seen.mpi.vendor} {seen.mpiexec_version}, named by {seen.mpi.source})"
    if answer.returncode != 0:
        yield _fail("mpiexec", f"{found}: --version ended with {answer.returncode}", _SETUP)
    elif seen.mpi.vendor == "unknown":
        yield _warn("mpiexec", f"{found}: whose it is can't be told", "see what the check 'mpi ranks' says")
    else:
        yield _ok("mpiexec", found)


_MPI4PY = """
import json, mpi4py
from mpi4py import MPI
lines = open("/proc/self/maps").read().split("\\n")
libs = sorted({line.split()[-1] for line in lines if "/libmpi.so" in line or "/libmpi_" in line})
print(json.dumps({"mpi4py": mpi4py.__version__, "library": MPI.Get_library_version(), "libs": libs}))
"""


def _mpi_library(seen: _Seen) -> Iterator[Check]:
    seen.mpi4py = answer = _ask(_MPI4PY, timeout_s=MPI_TIMEOUT_S)
    if "error" in answer:
        yield _fail("mpi library", f"mpi4py: {answer['error']}", _SETUP)
        return
    first = answer["library"].splitlines()[0].strip().rstrip(",")
    found = f"mpi4py {answer['mpi4py']} uses {' '.join(first.split())}"
    vendor, version = _library(answer["library"])
    if seen.mpi is None:
        yield _warn("mpi library", f"{found}; there is no mpiexec to compare it with", _SETUP)
    elif seen.mpi.vendor not in (vendor, "unknown"):
        yield _fail(
            "mpi library",
            f"{found}, but {seen.mpi.mpiexec} is of {seen.mpi.vendor} {seen.mpiexec_version}: every rank would be "
            "a world of size 1",
            "use the mpiexec of the MPI that Horovod was built with: " + _SETUP,
        )
    elif version and seen.mpiexec_version and version != seen.mpiexec_version:
        yield _warn("mpi library", f"{found}, mpiexec is {seen.mpiexec_version}", f"two versions of one MPI: {_SETUP}")
    else:
        yield _ok("mpi library", found)


_HELLO = """
from mpi4py import MPI
world = MPI.COMM_WORLD
print("SCIML", world.rank, world.size, world.allreduce(1), flush=True)
"""


def _mpi_ranks(seen: _Seen) -> Iterator[Check]:
    """Two ranks through the mpiexec that pools use."""
    if seen.mpi is None:
        yield _fail("mpi ranks", "not tried: there is no mpiexec", _SETUP)
        return
    spec = cast(PoolSpec, SimpleNamespace(mpiexec=seen.mpi.mpiexec, mpi_vendor=seen.mpi.vendor, n=2))
    launcher = LocalLauncher()
    command = launcher.command(spec, [sys.executable, "-c", _HELLO])
    try:
        answer = _run(command, timeout_s=MPI_TIMEOUT_S, env=launcher.variables(spec))
    except (OSError, subprocess.TimeoutExpired) as error:
        yield _fail("mpi ranks", f"two ranks did not come up: {error}", _SETUP)
        return
    ranks = sorted(tuple(map(int, found)) for found in re.findall(r"SCIML (\d+) (\d+) (\d+)", answer.stdout))
    if ranks == [(0, 2, 2), (1, 2, 2)]:
        yield _ok("mpi ranks", "two ranks are one world of size 2")
    elif len(ranks) == 2 and all(size == 1 for _, size, _ in ranks):
        yield _fail("mpi ranks", "two ranks are 2 worlds of size 1: mpiexec is of another MPI than mpi4py", _SETUP)
    else:
        words = (answer.stderr or answer.stdout).strip().splitlines()[-1:] or ["no output"]
        yield _fail("mpi ranks", f"exit code {answer.returncode}, {len(ranks)} of 2 ranks answered: {words[0]}", _SETUP)


def _other_mpi(seen: _Seen) -> Iterator[Check]:
    on_path = shutil.which("mpiexec")
    used = os.path.realpath(seen.mpi.mpiexec) if seen.mpi else ""
    if on_path is None or os.path.realpath(on_path) == used:
        yield _ok("mpi on PATH", f"{on_path or 'none'}; PATH is not looked at")
    else:
        yield _warn(
            "mpi on PATH",
            f"{on_path} comes first on PATH; pools don't use it",
            f"never start ranks by hand with it; write {seen.mpi.mpiexec if seen.mpi else 'the one of env/setup'}",
        )


# -- TensorFlow, Horovod, ipyparallel -----------------------------------------------------------------------------------

_TENSORFLOW = """
import json
found = {}
for name in ("numpy", "keras", "tensorflow", "horovod"):
    try:
        found[name] = __import__(name).__version__
    except Exception as error:
        found[name + "_error"] = f"{type(error).__name__}: {error}"
if "horovod" in found and "tensorflow" in found:
    try:
        import horovod.tensorflow as hvd
        found["built"] = {name: bool(getattr(hvd, name + "_built")()) for name in ("mpi", "gloo", "nccl")}
        lines = open("/proc/self/maps").read().split("\\n")
        found["libs"] = sorted({line.split()[-1] for line in lines if "/libmpi.so" in line})
    except Exception as error:
        found["horovod_error"] = f"{type(error).__name__}: {error}"
if "tensorflow" in found:
    import tensorflow
    found["cuda"] = bool(tensorflow.test.is_built_with_cuda())
print(json.dumps(found))
"""


def _tensorflow(seen: _Seen) -> Iterator[Check]:
    seen.tensorflow = answer = _ask(_TENSORFLOW, timeout_s=ASK_TIMEOUT_S)
    if "error" in answer:
        yield _fail("tensorflow", answer["error"], _SETUP)
        return
    missing = [answer[f"{name}_error"] for name in ("numpy", "keras", "tensorflow") if f"{name}_error" in answer]
    if missing:
        yield _fail("tensorflow", "; ".join(missing), _SETUP)
        return
    found = ", ".join(f"{name} {answer[name]}" for name in ("tensorflow", "keras", "numpy"))
    if int(answer["keras"].split(".")[0]) < 3:
        yield _fail("tensorflow", found, "Keras 3 is needed: " + _SETUP)
    else:
        yield _ok("tensorflow", found)


def _horovod(seen: _Seen) -> Iterator[Check]:
    answer = seen.tensorflow
    if "horovod_error" in answer or "horovod" not in answer:
        why = answer.get("horovod_error") or answer.get("error") or "it can't be imported without TensorFlow"
        yield _fail("horovod", why, "env/setup builds it against this TensorFlow and MPI")
        return
    built = answer.get("built", {})
    with_ = [name for name, there in built.items() if there]
    found = f"{answer['horovod']} with {', '.join(with_) or 'nothing'}"
    wanted = ((seen.noted.get("horovod") or {}).get("built_with") or {}).get("tf")
    theirs, ours = answer.get("libs", []), seen.mpi4py.get("libs", [])
    if not built.get("mpi"):
        yield _fail("horovod", f"{found}: built without MPI", "env/setup builds it with MPI")
    elif wanted and wanted != answer.get("tensorflow"):
        yield _fail("horovod", f"{found}, built against TensorFlow {wanted}, here is {answer['tensorflow']}", _SETUP)
    elif theirs and ours and not {os.path.realpath(p) for p in theirs} & {os.path.realpath(p) for p in ours}:
        yield _fail("horovod", f"{found}: it uses {theirs[0]}, mpi4py uses {ours[0]}", f"one MPI for both: {_SETUP}")
    else:
        yield _ok("horovod", f"{found}, {theirs[0] if theirs else 'MPI library not seen'}")


def _ipyparallel(seen: _Seen) -> Iterator[Check]:
    try:
        version = metadata.version("ipyparallel")
    except metadata.PackageNotFoundError:
        yield _fail("ipyparallel", "not installed", _SETUP)
        return
    if int(version.split(".")[0]) < 9:
        yield _fail("ipyparallel", version, f"version 9 is needed: {_SETUP}")
    else:
        yield _ok("ipyparallel", version)


# -- the machine --------------------------------------------------------------------------------------------------------


def _machine(seen: _Seen) -> Iterator[Check]:
    import psutil

    cores = available_cores()
    yield (
        _ok("cores", f"{cores}")
        if cores > 1
        else _warn("cores", f"{cores}", "two ranks share it: it works, slowly; ask for more cores")
    )
    memory = psutil.virtual_memory()
    text = f"{memory.available / _GIB:.1f} GiB free of {memory.total / _GIB:.1f}"
    few = memory.available < 2 * _GIB
    yield _warn("memory", text, "two ranks need about 2 GiB; end other programs") if few else _ok("memory", text)
    yield _gpu(seen)
    place = _existing(records.runs_root())
    free = shutil.disk_usage(place).free / _GIB
    if free < 0.5:
        yield _fail("disk", f"{free:.2f} GiB free in {place}", "make room, or set SCIML_RUNS to another place")
    elif free < 5:
        yield _warn("disk", f"{free:.1f} GiB free in {place}", "checkpoints need room; set SCIML_RUNS to another place")
    else:
        yield _ok("disk", f"{free:.0f} GiB free in {place}")


def _gpu(seen: _Seen) -> Check:
    tool = shutil.which("nvidia-smi")
    listed = _run([tool, "-L"], timeout_s=20).stdout.strip().splitlines() if tool else []
    names = [line.split("(")[0].strip() for line in listed if line.startswith("GPU ")]
    if not names:
        return _warn("gpu", "none: ranks train on the CPU", "nothing to mend, unless this machine should have one")
    if not seen.tensorflow.get("cuda", False):
        return _warn("gpu", f"{', '.join(names)}; this TensorFlow is built without CUDA", "env/setup --gpu")
    return _ok("gpu", ", ".join(names))


def _kernelspec(seen: _Seen) -> Iterator[Check]:
    from jupyter_core.paths import jupyter_path

    mend = "run: sciml kernel install --sys-prefix"
    places = [Path(path) / "sciml" / "kernel.json" for path in jupyter_path("kernels")]
    found = next((path for path in places if path.exists()), None)
    if found is None:
        yield _fail("kernelspec", f"no kernel 'sciml' in {', '.join(jupyter_path('kernels'))}", mend)
        return
    argv = (read_json(found) or {}).get("argv") or [""]
    if not os.access(argv[0], os.X_OK):
        yield _fail("kernelspec", f"{found} names {argv[0] or 'no interpreter'}, which can't be run", mend)
    elif Path(argv[0]).parent.resolve() != Path(sys.executable).parent.resolve():
        yield _fail("kernelspec", f"{found} is of another environment: {argv[0]}", f"{mend}, or remove that folder")
    else:
        yield _ok("kernelspec", f"{found.parent} runs {argv[0]}")


# -- files and ports ------------------------------------------------------------------------------------------------------


def _locking(seen: _Seen) -> Iterator[Check]:
    """HDF5 locks the files that it opens; some shared file systems can't."""
    import h5py

    places = {"runs folder": _existing(records.runs_root()), "temporary folder": Path(tempfile.gettempdir())}
    for name, place in places.items():
        try:
            with tempfile.TemporaryDirectory(prefix=".sciml-doctor-", dir=place) as folder:
                with h5py.File(Path(folder) / "lock.h5", "w", locking=True) as file:
                    file["x"] = 1
                with h5py.File(Path(folder) / "lock.h5", "r", locking=True) as file:
                    _ = file["x"][()]
        except OSError as error:
            if not os.access(place, os.W_OK) or not place.is_dir():
                yield _fail(
                    f"files in {name}", f"{place} can't be written", "set SCIML_RUNS or TMPDIR to another place"
                )
            else:
                first = str(error).splitlines()[0]
                mend = "set HDF5_USE_FILE_LOCKING=FALSE before Python starts, or use another file system"
                yield _warn(f"files in {name}", f"HDF5 can't lock files in {place}: {first}", mend)
            continue
        yield _ok(f"files in {name}", f"{place} can be written, HDF5 can lock")


def _ports(seen: _Seen) -> Iterator[Check]:
    """A pool's controller listens on about ten ports of the loopback interface."""
    try:
        with ExitStack() as stack:
            listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(12)]
            stack.enter_context(socket.create_connection(listeners[0].getsockname(), timeout=5))
            free = [listener.getsockname()[1] for listener in listeners]
    except OSError as error:
        yield _fail("ports", f"127.0.0.1: {error}", "open the loopback interface (a firewall or a sandbox closes it)")
        return
    yield _ok("ports", f"12 free on 127.0.0.1 ({min(free)}-{max(free)})")


def _state_folder(seen: _Seen) -> Iterator[Check]:
    """Where pools keep their keys: ours alone."""
    folder = pools_root()
    existing = _existing(folder)
    mend = "set XDG_STATE_HOME to a folder that you may write"
    try:
        if not existing.is_dir():
            raise NotADirectoryError(f"{existing} is no folder")
        with tempfile.TemporaryDirectory(prefix=".sciml-doctor-", dir=existing) as place:
            mode = os.stat(place).st_mode & 0o777
            # A pool's socket lies there; some network file systems have none.
            with socket.socket(socket.AF_UNIX) as listener, suppress(OverflowError):
                descriptor = os.open(place, os.O_RDONLY)
                try:
                    listener.bind(f"/proc/self/fd/{descriptor}/s")
                finally:
                    os.close(descriptor)
    except OSError as error:
        yield _fail("state folder", f"{folder} can't be used: {error.strerror or error}", mend)
        return
    open_to = os.stat(folder).st_mode & 0o077 if folder.exists() else 0
    if mode != 0o700:
        yield _fail("state folder", f"{existing}: a private folder comes out as {mode:o}, not 700", mend)
    elif open_to:
        yield _warn("state folder", f"{folder} is open to others", f"chmod 700 {folder}")
    else:
        yield _ok("state folder", str(folder))


_CHECKS: tuple[Callable[[_Seen], Iterator[Check]], ...] = (
    _python,
    _set_up,
    _mpiexec,
    _mpi_library,
    _mpi_ranks,
    _other_mpi,
    _tensorflow,
    _horovod,
    _ipyparallel,
    _machine,
    _kernelspec,
    _locking,
    _ports,
    _state_folder,
)


# -- helpers --------------------------------------------------------------------------------------------------------------


def _existing(path: Path) -> Path:
    """The path, or the nearest above it that is there."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _run(
    command: list[str], *, timeout_s: float, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run in a session of its own; nothing of it is left after the time limit. Raises TimeoutExpired."""
    variables = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3", **(env or {})}
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=variables,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _ask(code: str, *, timeout_s: float) -> dict[str, Any]:
    """The JSON object that the code prints last, in a Python of its own; {"error": why} when there is none."""
    try:
        answer = _run([sys.executable, "-c", code], timeout_s=timeout_s)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {timeout_s:g} s"}
    except OSError as error:
        return {"error": str(error)}
    with suppress(ValueError, IndexError):
        return dict(json.loads(answer.stdout.strip().splitlines()[-1]))
    words = answer.stderr.strip().splitlines()[-1:] or ["no output"]
    how = f"signal {-answer.returncode}" if answer.returncode < 0 else f"exit code {answer.returncode}"
    return {"error": f"{words[0]} ({how})"}


def _version(text: str) -> str:
    found = re.search(r"(?:Version:\s*|\) |v)(\d+\.\d+(?:\.\d+)?)", text)
    return found.group(1) if found else ""


def _library(text: str) -> tuple[str, str]:
    """(vendor, version) of an MPI library, from MPI_Get_library_version."""
    if "Open MPI" in text:
        return "openmpi", _version(text)
    if "MPICH" in text or "Intel(R) MPI" in text:
        return "mpich", _version(text) if "MPICH" in text else ""
    return "unknown", ""
