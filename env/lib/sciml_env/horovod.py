"""Horovod: sdist, patch, build, and the cache of built wheels."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sciml_env.locks import Lock
from sciml_env.mpi import Mpi
from sciml_env.pythons import Python
from sciml_env.say import FAILED, Log, SetupError, note
from sciml_env.tools import scratch_directory

__all__ = ["Wheel", "apply_patch", "build", "cached", "exclusive", "key_parts", "patch_sha256", "wheel_key"]

RECIPE = 1  # raise it when the way of building below changes
GPU_VARIABLES = (
    "HOROVOD_CUDA_HOME",
    "HOROVOD_NCCL_HOME",
    "HOROVOD_NCCL_INCLUDE",
    "HOROVOD_NCCL_LIB",
    "HOROVOD_NCCL_LINK",
)
HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


@dataclass(frozen=True)
class Wheel:
    path: Path
    sha256: str
    parts: Mapping[str, Any]


# --- the patch


def apply_patch(tree: Path, patch: Path) -> list[str]:
    """Apply a unified diff, every context line exact. Returns the files changed; raises SetupError on any difference.

    `git apply` in a directory of another repository skips silently, and `patch` may be missing: so neither is used.
    """
    changed: list[str] = []
    lines = patch.read_text(encoding="utf-8").splitlines()
    i = 0
    while i < len(lines):
        if not lines[i].startswith("+++ b/"):
            i += 1
            continue
        name = lines[i][6:].strip()
        target = tree / name
        if not target.is_file():
            raise SetupError(f"{patch.name}: the sdist has no {name}", FAILED)
        old = target.read_text(encoding="utf-8").splitlines()
        new: list[str] = []
        at = 0
        i += 1
        while i < len(lines) and (head := HUNK.match(lines[i])):
            start, n_old = int(head[1]) - 1, int(head[2] or 1)
            new += old[at:start]
            at = start
            i += 1
            while i < len(lines) and lines[i][:1] in (" ", "-", "+", "") and not lines[i].startswith(("--- ", "+++ ")):
                kind, text = lines[i][:1] or " ", lines[i][1:]
                if kind == "+":
                    new.append(text)
                else:
                    if at >= start + n_old:
                        break
                    if at >= len(old) or old[at] != text:
                        got = old[at] if at < len(old) else "the end of the file"
                        raise SetupError(
                            f"{patch.name} does not fit {name}, line {at + 1}: got {got!r}, not {text!r}", FAILED
                        )
                    if kind == " ":
                        new.append(text)
                    at += 1
                i += 1
        new += old[at:]
        target.write_text("\n".join(new) + "\n", encoding="utf-8")
        changed.append(name)
    if not changed:
        raise SetupError(f"{patch.name} changes no file", FAILED)
    return changed


def patches(env_directory: Path) -> list[Path]:
    return sorted((env_directory / "horovod").glob("*.patch"))


def patch_sha256(env_directory: Path) -> str:
    digest = hashlib.sha256()
    for patch in patches(env_directory):
        digest.update(patch.read_bytes())
    return digest.hexdigest()


# --- the cache


def key_parts(
    *, env_directory: Path, python: Python, tensorflow: str, mpi: str, gpu: bool, environ: Mapping[str, str]
) -> dict[str, Any]:
    """Everything that the built wheel depends on. tensorflow: "tensorflow-cpu 2.21.0". mpi: `Mpi.identity()`."""
    lock = Lock(env_directory / "lock" / "horovod.txt")
    return {
        "recipe": RECIPE,
        "horovod": lock.version("horovod"),
        "sdist_lock": lock.sha256,
        "patch_sha256": patch_sha256(env_directory),
        "tensorflow": tensorflow,
        "mpi": mpi,
        "python": python.soabi,
        "libc": python.libc,
        "gpu": {name: environ.get(name, "") for name in GPU_VARIABLES} if gpu else None,
    }


def wheel_key(parts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _directory(cache: Path, parts: Mapping[str, Any]) -> Path:
    return cache / "wheels" / f"horovod-{parts['horovod']}-{wheel_key(parts)}"


def cached(cache: Path, parts: Mapping[str, Any]) -> Wheel | None:
    """The wheel built earlier from the same parts; None if there is none or it is not whole."""
    directory = _directory(cache, parts)
    try:
        told = json.loads((directory / "built.json").read_text(encoding="utf-8"))
        path = directory / told["wheel"]
        if hashlib.sha256(path.read_bytes()).hexdigest() == told["sha256"]:
            return Wheel(path, told["sha256"], told["parts"])
        note(f"{path} is damaged; it is built anew")
    except (OSError, ValueError, KeyError):
        pass
    return None


def _put(cache: Path, parts: Mapping[str, Any], wheel: Path) -> Wheel:
    directory = _directory(cache, parts)
    directory.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=".new-", dir=directory.parent))
    try:
        os.chmod(staged, 0o755)
        shutil.copyfile(wheel, staged / wheel.name)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        told = {"wheel": wheel.name, "sha256": digest, "parts": dict(parts)}
        (staged / "built.json").write_text(json.dumps(told, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        if directory.exists():
            shutil.rmtree(directory)
        staged.rename(directory)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return Wheel(directory / wheel.name, digest, dict(parts))


@contextlib.contextmanager
def exclusive(path: Path, waiting_for: str) -> Iterator[None]:
    """Hold a lock file; say so when another set-up has it. The lock ends with the process, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note(f"another env/setup is at work on {waiting_for}; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:  # a file system without locks: go on, the renames are atomic all the same
            note(f"no file locks in {path.parent} ({error}); don't run two set-ups at once")
        yield


# --- the build


def sdist(cache: Path, env_directory: Path, python: Path, log: Log, env: Mapping[str, str], *, offline: bool) -> Path:
    """Horovod's source archive, from the cache or the package index; its hash is checked in both cases."""
    lock = Lock(env_directory / "lock" / "horovod.txt")
    found = re.search(r"sha256:([0-9a-f]{64})", lock.text)
    assert found is not None
    directory = cache / "sdist"
    target = directory / f"horovod-{lock.version('horovod')}.tar.gz"
    if target.exists() and hashlib.sha256(target.read_bytes()).hexdigest() == found[1]:
        return target
    if offline:
        raise SetupError(
            f"--offline, and the cache has no {target.name}; run once without it, or put it into {directory}"
        )
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=directory) as fresh:
        command = [str(python), "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
        command += ["--require-hashes", "-r", str(lock.path), "-d", fresh]
        log.run(command, what="downloading Horovod's source", env=env, tries=4)
        (Path(fresh) / target.name).rename(target)
    return target


def jobs(environ: Mapping[str, str]) -> str:
    """MAKEFLAGS as given, else one compiler a core, at most 8, each with 2 GB of memory to itself."""
    if environ.get("MAKEFLAGS"):
        return environ["MAKEFLAGS"]
    try:
        memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        memory = 4 * 10**9
    return f"-j{max(1, min(len(os.sched_getaffinity(0)), 8, int(memory // (2 * 10**9))))}"


def toolchain(mpi: Mpi, prefix: Path, link: Path) -> str:
    """A CMake file that names the MPI, and for an MPI inside the environment makes the library find it relatively."""
    inside = mpi.kind == "wheel" or Path(mpi.libmpi).is_relative_to(prefix)

    def seen(path: str) -> str:
        return str(link / Path(path).relative_to(prefix)) if Path(path).is_relative_to(prefix) else path

    lines = [f'set(MPI_CXX_COMPILER "{seen(mpi.mpicxx)}" CACHE FILEPATH "")']
    if mpi.mpiexec:
        lines.append(f'set(MPIEXEC_EXECUTABLE "{seen(mpi.mpiexec)}" CACHE FILEPATH "")')
    if inside:
        # PREFIX/lib/python3.N/site-packages/horovod/tensorflow -> PREFIX/lib: so the wheel serves any environment.
        lines += ["set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)", 'set(CMAKE_INSTALL_RPATH "$ORIGIN/../../../..")']
    return "\n".join(lines) + "\n"


def build_env(
    env: Mapping[str, str], *, link: Path, mpi: Mpi, gpu: bool, site: str, toolchain_file: Path
) -> dict[str, str]:
    """The environment of the build: one MPI first on PATH, no HOROVOD_ settings that linger in a shell."""
    keep = {key: value for key, value in env.items() if not key.startswith("HOROVOD_")}
    keep["PATH"] = os.pathsep.join([str(link / "bin"), str(Path(mpi.mpicxx).parent), env.get("PATH", os.defpath)])
    keep |= {
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITHOUT_GLOO": "1",
        "MAKEFLAGS": jobs(env),
        "CMAKE_TOOLCHAIN_FILE": str(toolchain_file),
    }
    if gpu:
        keep["HOROVOD_GPU_OPERATIONS"] = "NCCL"
        keep |= {name: env[name] for name in GPU_VARIABLES if env.get(name)}
        nccl = Path(site) / "nvidia" / "nccl"
        if not env.get("HOROVOD_NCCL_HOME") and nccl.is_dir():
            keep["HOROVOD_NCCL_HOME"] = str(nccl)
    return keep


def build(
    *,
    cache: Path,
    env_directory: Path,
    prefix: Path,
    python: Python,
    mpi: Mpi,
    parts: Mapping[str, Any],
    gpu: bool,
    log: Log,
    env: Mapping[str, str],
    offline: bool,
) -> Wheel:
    """Build the wheel for the environment in `prefix`, and keep it. A clean tree each time."""
    executable = prefix / "bin" / "python"
    archive = sdist(cache, env_directory, executable, log, env, offline=offline)
    with tempfile.TemporaryDirectory(prefix="sciml-horovod-", dir=scratch_directory()) as scratch:
        work = Path(scratch)
        # CMake and the MPI compiler split paths at spaces; through this link no path has one.
        link = work / "env"
        link.symlink_to(prefix)
        with tarfile.open(archive) as tar:
            if hasattr(tarfile, "data_filter"):
                tar.extractall(work, filter="data")
            else:  # Python before 3.11.4; the archive's hash was checked
                tar.extractall(work)
        source = work / f"horovod-{parts['horovod']}"
        for patch in patches(env_directory):
            apply_patch(source, patch)
        file = work / "toolchain.cmake"
        file.write_text(toolchain(mpi, prefix, link))
        command = [str(link / "bin" / "python"), "-m", "pip", "wheel", "-v", "--no-deps", "--no-index"]
        command += ["--no-build-isolation", "-w", str(work / "out"), str(source)]
        log.run(
            command,
            what="building Horovod",
            progress=r"\[ *\d+%\]",
            env=build_env(env, link=link, mpi=mpi, gpu=gpu, site=python.site, toolchain_file=file),
            hint="" if not gpu else "Horovod with NCCL needs nvcc and NCCL: HOROVOD_CUDA_HOME, HOROVOD_NCCL_HOME.",
        )
        built = list((work / "out").glob("horovod-*.whl"))
        if len(built) != 1:
            raise SetupError(f"the build left {len(built)} wheels; see {log.path}", FAILED)
        return _put(cache, parts, built[0])
