"""What is checked before anything is downloaded: compiler, disk, places to write."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from sciml_env.say import SetupError, note

__all__ = [
    "cache_directory",
    "check_compiler",
    "check_cuda",
    "check_disk",
    "download_caches",
    "scratch_directory",
    "writable",
]

VENV_BYTES = 6 * 10**9


def writable(directory: Path) -> bool:
    """Whether a file can be made there; the directory itself or its nearest existing parent."""
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    if not directory.is_dir():
        return False
    try:
        # os.access says yes to root on a read-only file system; only making a file is proof.
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".sciml-"):
            return True
    except OSError:
        return False


def cache_directory(asked: Path | None, project: Path, environ: Mapping[str, str]) -> Path:
    """`asked` if given, else $XDG_CACHE_HOME/sciml or ~/.cache/sciml, else (home can't be written) near the project."""
    if asked is not None:
        if not writable(asked):
            raise SetupError(f"the cache directory {asked} can't be written; name another with --cache DIR")
        asked.mkdir(parents=True, exist_ok=True)
        return asked
    home = environ.get("HOME") or os.path.expanduser("~")
    usual = Path(environ.get("XDG_CACHE_HOME") or Path(home) / ".cache") / "sciml"
    private = Path(tempfile.gettempdir()) / f"sciml-cache-{os.getuid()}"
    for directory in (usual, project / ".cache" / "sciml", private):
        if not writable(directory):
            continue
        directory.mkdir(parents=True, exist_ok=True, mode=0o700 if directory == private else 0o777)
        if directory == private and directory.stat().st_uid != os.getuid():
            continue  # somebody else made it first: its wheels are not to be trusted
        if directory != usual:
            note(f"{usual} can't be written; the cache is {directory} (name another with --cache DIR)")
        return directory
    raise SetupError(f"no place for the cache: {usual} can't be written; name one with --cache DIR")


def scratch_directory() -> Path:
    """A directory for temporary builds whose path has no space: CMake's FindMPI splits paths at spaces."""
    for base in (Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")):
        if " " not in str(base) and writable(base):
            return base
    raise SetupError("TMPDIR has a space in its path or can't be written; set TMPDIR to another directory")


def check_compiler(environ: Mapping[str, str]) -> None:
    """A C++17 compiler and make, or the line that installs them."""
    path = environ.get("PATH", os.defpath)
    compiler = environ.get("CXX") or "g++"
    missing = [name for name in (compiler.split()[0], "make") if shutil.which(name, path=path) is None]
    why = f"{' and '.join(missing)} not found on PATH" if missing else ""
    if not missing:
        with tempfile.TemporaryDirectory(prefix="sciml-cxx-") as directory:
            source = Path(directory) / "probe.cc"
            source.write_text("#include <optional>\nint main() { return std::optional<int>(0).value(); }\n")
            done = subprocess.run(
                [*compiler.split(), "-std=c++17", str(source), "-o", str(source.with_suffix(".out"))],
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
            )
            if done.returncode != 0:
                why = f"{compiler} can't build a C++17 program:\n{done.stderr.strip()[:600]}\n"
    if why:
        raise SetupError(
            f"Horovod must be compiled, and {why}.\n"
            "  Debian, Ubuntu:  sudo apt-get install g++ make\n"
            "  Fedora, RHEL:    sudo dnf install gcc-c++ make\n"
            "  a cluster:       module load gcc   (or CXX=/path/to/g++ env/setup)\n"
            "Nothing was downloaded."
        )


def check_disk(directory: Path, needed: int = VENV_BYTES) -> None:
    """Enough free space for the packages, where the venv will lie."""
    while not directory.exists():
        directory = directory.parent
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise SetupError(
            f"{directory} has {free / 1e9:.1f} GB free; about {needed / 1e9:.0f} GB are needed.\n"
            "Put the venv elsewhere: env/setup --venv DIR (and SCIML_VENV=DIR for env/demo and env/test)"
        )


def check_cuda(environ: Mapping[str, str]) -> None:
    """nvcc for `--gpu`: Horovod compiles CUDA code of its own."""
    home = environ.get("HOROVOD_CUDA_HOME")
    nvcc = Path(home) / "bin" / "nvcc" if home else shutil.which("nvcc", path=environ.get("PATH", os.defpath))
    if not nvcc or not os.access(nvcc, os.X_OK):
        raise SetupError(
            f"--gpu: no nvcc {'in ' + home + '/bin' if home else 'on PATH'}; load the CUDA module, or set\n"
            "HOROVOD_CUDA_HOME to the toolkit's directory. Nothing was downloaded."
        )


def download_caches(cache: Path, environ: Mapping[str, str], *, ours: bool) -> dict[str, str]:
    """Where uv and pip keep downloads: their own places under the home directory, unless `ours` (a cache directory was
    named: home quotas are small) or those can't be written."""
    home = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or os.path.expanduser("~")) / ".cache")
    return {
        variable: str(cache / tool)
        for variable, tool in (("UV_CACHE_DIR", "uv"), ("PIP_CACHE_DIR", "pip"))
        if not environ.get(variable) and (ours or not writable(home / tool))
    }
