"""What the checks of `sciml doctor` share: `Check`, what was seen so far, and asking in another process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sciml_kernel.pool.mpi import Mpi

__all__ = ["SETUP", "Check", "Seen", "ask", "existing", "fail", "library_in", "ok", "run", "version_in", "warn"]

SETUP = "run env/setup again"


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
class Seen:
    """What earlier checks found and later ones need."""

    prefix: Path
    noted: dict[str, Any] = field(default_factory=dict)
    mpi: Mpi | None = None
    mpiexec_version: str = ""
    mpi4py: dict[str, Any] = field(default_factory=dict)
    tensorflow: dict[str, Any] = field(default_factory=dict)


def ok(name: str, found: str) -> Check:
    return Check(name, "ok", found)


def warn(name: str, found: str, mend: str) -> Check:
    return Check(name, "warn", found, mend)


def fail(name: str, found: str, mend: str) -> Check:
    return Check(name, "fail", found, mend)


def existing(path: Path) -> Path:
    """The path, or the nearest above it that is there."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def run(
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


def ask(code: str, *, timeout_s: float, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The JSON object that the code prints last, in a Python of its own; {"error": why} when there is none."""
    try:
        answer = run([sys.executable, "-c", code], timeout_s=timeout_s, env=env)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {timeout_s:g} s"}
    except OSError as error:
        return {"error": str(error)}
    with suppress(ValueError, IndexError):
        return dict(json.loads(answer.stdout.strip().splitlines()[-1]))
    words = answer.stderr.strip().splitlines()[-1:] or ["no output"]
    how = f"signal {-answer.returncode}" if answer.returncode < 0 else f"exit code {answer.returncode}"
    return {"error": f"{words[0]} ({how})"}


def version_in(text: str) -> str:
    found = re.search(r"(?:Version:\s*|\) |v)(\d+\.\d+(?:\.\d+)?)", text)
    return found.group(1) if found else ""


def library_in(text: str) -> tuple[str, str]:
    """(vendor, version) of an MPI library, from MPI_Get_library_version."""
    if "Open MPI" in text:
        return "openmpi", version_in(text)
    if "MPICH" in text or "Intel(R) MPI" in text:
        return "mpich", version_in(text) if "MPICH" in text else ""
    return "unknown", ""
