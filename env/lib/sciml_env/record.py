"""What a set-up leaves in the environment: `etc/sciml/environment.json` for the package, `stamp.json` for itself."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sciml_env.horovod import Wheel, patch_sha256
from sciml_env.locks import Lock
from sciml_env.mpi import Mpi
from sciml_env.options import Options
from sciml_env.pythons import Python

__all__ = [
    "environment",
    "fingerprint",
    "is_editable",
    "place",
    "read",
    "remove",
    "source_digest",
    "up_to_date",
    "write",
]

SETUP_VERSION = 1  # raise it when an existing venv must go through the steps again


def place(prefix: Path, name: str) -> Path:
    return prefix / "etc" / "sciml" / f"{name}.json"


def read(prefix: Path, name: str) -> dict[str, Any]:
    """{} where it is missing or broken."""
    try:
        value = json.loads(place(prefix, name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def write(prefix: Path, name: str, value: Mapping[str, Any]) -> None:
    target = place(prefix, name)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{name}-", dir=target.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.chmod(temporary, 0o644)  # mkstemp makes 0600; other users of a shared directory read it
    os.replace(temporary, target)


def remove(prefix: Path, name: str) -> None:
    place(prefix, name).unlink(missing_ok=True)


def source_digest(project: Path) -> str:
    """Digest of the package's sources: an installed copy is renewed when they change."""
    digest = hashlib.sha256()
    for file in sorted((project / "sciml_kernel").rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(f"{file.relative_to(project)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def fingerprint(options: Options, lock: Lock, project: Path, *, editable: bool) -> dict[str, Any]:
    """All that a finished set-up depends on; equal means that there is nothing to do."""
    meta = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    relevant = {key: meta[key] for key in ("build-system", "project")} | {"setuptools": meta["tool"]["setuptools"]}
    kernel = hashlib.sha256()
    for file in sorted((project / "sciml_kernel" / "jupyter").glob("kernelspec*/**/*")):
        if file.is_file() and "__pycache__" not in file.parts:
            kernel.update(file.read_bytes())
    for file in sorted((project / "sciml_kernel" / "jupyter").glob("kernelspec*.py")):
        kernel.update(file.read_bytes())
    return {
        "setup": SETUP_VERSION,
        "lock": lock.sha256,
        "horovod_lock": Lock(project / "env" / "lock" / "horovod.txt").sha256,
        "patch": patch_sha256(project / "env"),
        "project": hashlib.sha256(json.dumps(relevant, sort_keys=True).encode()).hexdigest(),
        "kernel": kernel.hexdigest(),
        "sources": "" if editable else source_digest(project),
        "paths": [str(project), str(options.venv)],
        "options": options.chosen(),
    }


def is_editable(venv: Path) -> bool:
    """Whether the finished set-up of this venv reads the package from the clone rather than from a copy."""
    return bool(read(venv, "stamp").get("fingerprint", {}).get("sources") == "")


def up_to_date(options: Options, wanted: Mapping[str, Any]) -> bool:
    """Whether the venv was finished with the same inputs and its interpreter and MPI are still there."""
    venv = options.venv
    stamp = read(venv, "stamp")
    if stamp.get("fingerprint") != wanted or not (venv / "bin" / "python").exists():
        return False
    if options.python_version and not str(stamp.get("python", "")).startswith(options.python_version + "."):
        return False
    mpi = read(venv, "environment").get("mpi", {})
    return all(path is None or os.path.exists(path) for path in (mpi.get("libmpi", ""), mpi.get("mpiexec", "")))


def environment(*, mpi: Mpi, wheel: Wheel, lock: Lock | None, python: Python) -> dict[str, Any]:
    """The record that pools, `sciml doctor` and run records read."""
    package, version = wheel.parts["tensorflow"].split()
    return {
        "schema": 1,
        "mpi": {
            "kind": mpi.kind,
            "vendor": mpi.vendor,
            "mpiexec": mpi.mpiexec,
            "libmpi": mpi.libmpi,
            "library_version": mpi.library_version,
        },
        "horovod": {
            "version": wheel.parts["horovod"],
            "wheel_sha256": wheel.sha256,
            "built_with": {
                "tf": version,
                "tf_package": package,
                "mpi": wheel.parts["mpi"],
                "patch_sha256": wheel.parts["patch_sha256"],
                "gpu": wheel.parts["gpu"],
            },
        },
        "lock": {"name": lock.path.name, "sha256": lock.sha256} if lock else None,
        "python": {"version": python.text, "soabi": python.soabi},
    }
