"""What a run was made with: packages, lock, MPI and Horovod build, hardware, variables. Nothing is imported for it."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from sciml_kernel.records.hardware import hardware
from sciml_kernel.records.secrets import kept_variables

__all__ = ["build", "environment", "lock_hash", "versions"]


def versions() -> dict[str, str]:
    """Installed packages: normalised name -> version, sorted. Read from their metadata; nothing is imported."""
    found: dict[str, str] = {}
    for distribution in distributions():
        try:
            name, version = distribution.metadata["Name"], distribution.version
        except Exception:  # a broken installation of one package must not stop a run
            continue
        if name and version:
            # the first on the path is the one that is imported
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), version)
    return dict(sorted(found.items()))


def _noted() -> dict[str, Any]:
    """What `env/setup` noted of this environment; empty elsewhere."""
    try:
        noted = json.loads((Path(sys.prefix) / "etc/sciml/environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return noted if isinstance(noted, dict) else {}


def lock_hash() -> str | None:
    """sha256 of the lock that this environment was installed from, as `env/setup` noted it; None elsewhere."""
    lock = _noted().get("lock")
    value = lock.get("sha256") if isinstance(lock, dict) else None
    return value if isinstance(value, str) else None


def build() -> dict[str, Any]:
    """{"mpi": ..., "horovod": ...} as `env/setup` noted them when it built Horovod: library, version, what it was built
    with. None each where the environment was made another way."""
    noted = _noted()
    return {name: noted.get(name) for name in ("mpi", "horovod")}


def environment() -> dict[str, Any]:
    """The fields of `record.json` that describe installation and machine: python, platform, lock_sha256, versions,
    build, hardware, variables."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "lock_sha256": lock_hash(),
        "versions": versions(),
        "build": build(),
        "hardware": hardware(),
        "variables": kept_variables(os.environ),
    }
