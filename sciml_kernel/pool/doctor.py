"""The checks behind `sciml doctor`: do the pieces fit together, and how is what does not mended?

Everything that may crash or hang (MPI, Horovod, TensorFlow) is asked in a process of its own with a time limit.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from sciml_kernel.errors import SciMLError
from sciml_kernel.pool.doctor_base import SETUP, Check, Seen, ask, fail, library_in, ok, run, version_in, warn
from sciml_kernel.pool.doctor_machine import kernelspec, locking, machine, ports, state_folder
from sciml_kernel.pool.files import read_json
from sciml_kernel.pool.launch_local import LocalLauncher, forker
from sciml_kernel.pool.mpi import find_mpi
from sciml_kernel.pool.spec import PoolSpec

__all__ = ["Check", "examine"]

ASK_TIMEOUT_S = 120.0  # TensorFlow's first import on a busy machine
MPI_TIMEOUT_S = 60.0
PYTHONS = ((3, 11), (3, 14))  # from, below


def examine(show: Callable[[Check], None] | None = None, *, prefix: str | Path | None = None) -> list[Check]:
    """All checks in order; `show` gets each as soon as it is known. prefix: environment; default: this Python's."""
    seen = Seen(Path(prefix or sys.prefix))
    found: list[Check] = []
    for check in _CHECKS:
        try:
            results = list(check(seen))
        except Exception as error:  # a check that breaks says so, and the others go on
            results = [fail(check.__name__.strip("_"), f"{type(error).__name__}: {error}", "report this")]
        for result in results:
            found.append(result)
            if show is not None:
                show(result)
    return found


# -- Python and what the set-up noted ---------------------------------------------------------------------------------


def _python(seen: Seen) -> Iterator[Check]:
    found = f"{sys.version.split()[0]} in {sys.prefix}"
    low, high = PYTHONS
    if low <= sys.version_info[:2] < high:
        yield ok("python", found)
    else:
        yield fail("python", found, "use Python 3.11, 3.12 or 3.13: env/setup --python PATH")


def _set_up(seen: Seen) -> Iterator[Check]:
    path = seen.prefix / "etc" / "sciml" / "environment.json"
    if not path.exists():
        yield warn("set-up", f"{path} is missing: not installed by env/setup", "run env/setup, if MPI is to be trusted")
        return
    noted = read_json(path)
    if noted is None:
        yield fail("set-up", f"{path} is no JSON object", SETUP)
        return
    seen.noted = noted
    horovod, mpi = noted.get("horovod") or {}, noted.get("mpi") or {}
    words = f"Horovod {horovod.get('version')} built with {horovod.get('built_with')}, {mpi.get('library_version')}"
    yield ok("set-up", words)


# -- MPI --------------------------------------------------------------------------------------------------------------


def _mpiexec(seen: Seen) -> Iterator[Check]:
    try:
        seen.mpi = find_mpi(str(seen.prefix))
        answer = run([seen.mpi.mpiexec, "--version"], timeout_s=20)
    except (SciMLError, OSError) as error:
        yield fail("mpiexec", str(error), SETUP)
        return
    seen.mpiexec_version = version_in(answer.stdout + answer.stderr)
    found = f"{seen.mpi.mpiexec} ({seen.mpi.vendor} {seen.mpiexec_version}, named by {seen.mpi.source})"
    if answer.returncode != 0:
        yield fail("mpiexec", f"{found}: --version ended with {answer.returncode}", SETUP)
    elif seen.mpi.vendor == "unknown":
        yield warn("mpiexec", f"{found}: whose it is can't be told", "see what the check 'mpi ranks' says")
    else:
        yield ok("mpiexec", found)
    if seen.mpi.vendor == "mpich" and forker(seen.mpi.mpiexec) is None:
        yield warn(
            "mpi port",
            f"no mpiexec.gforker beside {seen.mpi.mpiexec}: Hydra is used, whose control port is open to the network",
            f"on a machine that you share, use an MPI that has one: {SETUP}",
        )


_MPI4PY = """
import json, mpi4py
from mpi4py import MPI
lines = open("/proc/self/maps").read().split("\\n")
libs = sorted({line.split()[-1] for line in lines if "/libmpi.so" in line or "/libmpi_" in line})
print(json.dumps({"mpi4py": mpi4py.__version__, "library": MPI.Get_library_version(), "libs": libs}))
"""


def _mpi_library(seen: Seen) -> Iterator[Check]:
    seen.mpi4py = answer = ask(_MPI4PY, timeout_s=MPI_TIMEOUT_S, env=seen.mpi.variables if seen.mpi else None)
    if "error" in answer:
        yield fail("mpi library", f"mpi4py: {answer['error']}", SETUP)
        return
    first = answer["library"].splitlines()[0].strip().rstrip(",")
    found = f"mpi4py {answer['mpi4py']} uses {' '.join(first.split())}"
    vendor, version = library_in(answer["library"])
    if seen.mpi is None:
        yield warn("mpi library", f"{found}; there is no mpiexec to compare it with", SETUP)
    elif seen.mpi.vendor not in (vendor, "unknown"):
        yield fail(
            "mpi library",
            f"{found}, but {seen.mpi.mpiexec} is of {seen.mpi.vendor} {seen.mpiexec_version}: every rank would be "
            "a world of size 1",
            "use the mpiexec of the MPI that Horovod was built with: " + SETUP,
        )
    elif version and seen.mpiexec_version and version != seen.mpiexec_version:
        yield warn("mpi library", f"{found}, mpiexec is {seen.mpiexec_version}", f"two versions of one MPI: {SETUP}")
    else:
        yield ok("mpi library", found)


# One write a rank: what two ranks print in pieces may come out mixed.
_HELLO = """
import os
from mpi4py import MPI
world = MPI.COMM_WORLD
os.write(1, f"SCIML {world.rank} {world.size} {world.allreduce(1)}\\n".encode())
"""


def _mpi_ranks(seen: Seen) -> Iterator[Check]:
    """Two ranks through the mpiexec that pools use."""
    if seen.mpi is None:
        yield fail("mpi ranks", "not tried: there is no mpiexec", SETUP)
        return
    spec = cast(PoolSpec, SimpleNamespace(mpiexec=seen.mpi.mpiexec, mpi_vendor=seen.mpi.vendor, n=2))
    launcher = LocalLauncher()
    command = launcher.command(spec, [sys.executable, "-c", _HELLO])
    try:
        answer = run(command, timeout_s=MPI_TIMEOUT_S, env={**launcher.variables(spec), **seen.mpi.variables})
    except (OSError, subprocess.TimeoutExpired) as error:
        yield fail("mpi ranks", f"two ranks did not come up: {error}", SETUP)
        return
    ranks = sorted(tuple(map(int, found)) for found in re.findall(r"SCIML (\d+) (\d+) (\d+)", answer.stdout))
    if ranks == [(0, 2, 2), (1, 2, 2)]:
        yield ok("mpi ranks", "two ranks are one world of size 2")
    elif len(ranks) == 2 and all(size == 1 for _, size, _ in ranks):
        yield fail("mpi ranks", "two ranks are 2 worlds of size 1: mpiexec is of another MPI than mpi4py", SETUP)
    else:
        words = (answer.stderr or answer.stdout).strip().splitlines()[-1:] or ["no output"]
        yield fail("mpi ranks", f"exit code {answer.returncode}, {len(ranks)} of 2 ranks answered: {words[0]}", SETUP)


def _other_mpi(seen: Seen) -> Iterator[Check]:
    on_path = shutil.which("mpiexec")
    used = os.path.realpath(seen.mpi.mpiexec) if seen.mpi else ""
    if on_path is None or os.path.realpath(on_path) == used:
        yield ok("mpi on PATH", f"{on_path or 'none'}; PATH is not looked at")
    else:
        yield warn(
            "mpi on PATH",
            f"{on_path} comes first on PATH; pools don't use it",
            f"never start ranks by hand with it; write {seen.mpi.mpiexec if seen.mpi else 'the one of env/setup'}",
        )


# -- TensorFlow, Horovod, ipyparallel ---------------------------------------------------------------------

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


def _tensorflow(seen: Seen) -> Iterator[Check]:
    seen.tensorflow = answer = ask(_TENSORFLOW, timeout_s=ASK_TIMEOUT_S)
    if "error" in answer:
        yield fail("tensorflow", answer["error"], SETUP)
        return
    missing = [answer[f"{name}_error"] for name in ("numpy", "keras", "tensorflow") if f"{name}_error" in answer]
    if missing:
        yield fail("tensorflow", "; ".join(missing), SETUP)
        return
    found = ", ".join(f"{name} {answer[name]}" for name in ("tensorflow", "keras", "numpy"))
    if int(answer["keras"].split(".")[0]) < 3:
        yield fail("tensorflow", found, "Keras 3 is needed: " + SETUP)
    else:
        yield ok("tensorflow", found)


def _horovod(seen: Seen) -> Iterator[Check]:
    answer = seen.tensorflow
    if "horovod_error" in answer or "horovod" not in answer:
        why = answer.get("horovod_error") or answer.get("error") or "it can't be imported without TensorFlow"
        yield fail("horovod", why, "env/setup builds it against this TensorFlow and MPI")
        return
    built = answer.get("built", {})
    with_ = [name for name, there in built.items() if there]
    found = f"{answer['horovod']} with {', '.join(with_) or 'nothing'}"
    wanted = ((seen.noted.get("horovod") or {}).get("built_with") or {}).get("tf")
    theirs, ours = answer.get("libs", []), seen.mpi4py.get("libs", [])
    if not built.get("mpi"):
        yield fail("horovod", f"{found}: built without MPI", "env/setup builds it with MPI")
    elif wanted and wanted != answer.get("tensorflow"):
        yield fail("horovod", f"{found}, built against TensorFlow {wanted}, here is {answer['tensorflow']}", SETUP)
    elif theirs and ours and not {os.path.realpath(p) for p in theirs} & {os.path.realpath(p) for p in ours}:
        yield fail("horovod", f"{found}: it uses {theirs[0]}, mpi4py uses {ours[0]}", f"one MPI for both: {SETUP}")
    else:
        yield ok("horovod", f"{found}, {theirs[0] if theirs else 'MPI library not seen'}")


def _ipyparallel(seen: Seen) -> Iterator[Check]:
    try:
        version = metadata.version("ipyparallel")
    except metadata.PackageNotFoundError:
        yield fail("ipyparallel", "not installed", SETUP)
        return
    if int(version.split(".")[0]) < 9:
        yield fail("ipyparallel", version, f"version 9 is needed: {SETUP}")
    else:
        yield ok("ipyparallel", version)


_CHECKS: tuple[Callable[[Seen], Iterator[Check]], ...] = (
    _python,
    _set_up,
    _mpiexec,
    _mpi_library,
    _mpi_ranks,
    _other_mpi,
    _tensorflow,
    _horovod,
    _ipyparallel,
    machine,
    kernelspec,
    locking,
    ports,
    state_folder,
)
