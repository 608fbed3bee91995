"""The MPI that Horovod is built with: compiler wrapper, launcher and library of ONE installation.

They are asked, never guessed: a small program is compiled with mpicxx, the dynamic linker says which libmpi it loads,
that library says its version, and two ranks are started with the launcher that lies beside the compiler. So a launcher
of one MPI never meets the library of another.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sciml_env.say import SetupError, note
from sciml_env.tools import scratch_directory

__all__ = ["ALLOWED", "Mpi", "ldd", "loaded_libmpi", "site_mpi", "wheel_identity", "wheel_mpi"]

PROBE = r"""
#include <mpi.h>
#include <cstdio>
int main(int argc, char** argv) {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int n = 0;
  if (argc > 1) {
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    std::printf("world size %d\n", n);
    MPI_Finalize();
    return 0;
  }
  MPI_Get_library_version(text, &n);
  std::puts(text);
}
"""
LIBRARY = re.compile(r"^\s*(libmpi\S*\.so\S*) => (/.+) \(0x", re.M)
# Bindings for other languages, beside the library itself.
NOT_THE_LIBRARY = re.compile(r"^libmpi(_cxx|cxx|fort|_mpifh|_usempi|gf|_ilp|cxx)")
# Open MPI refuses root and more ranks than cores, a container has both; MPICH ignores these.
ALLOWED = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


@dataclass(frozen=True)
class Mpi:
    """One installation. kind: "wheel" or "system". library_version: the first line of MPI_Get_library_version."""

    kind: str
    mpicxx: str
    mpiexec: str | None
    libmpi: str
    library_version: str

    @property
    def vendor(self) -> str | None:
        """Whose options the launcher takes: "mpich" (and what is made from it) or "openmpi"; None: not known."""
        text = self.library_version.lower()
        if any(word in text for word in ("mpich", "intel(r) mpi", "mvapich")):
            return "mpich"
        return "openmpi" if "open mpi" in text else None

    def identity(self) -> str:
        """What the cached Horovod wheel depends on. Not for the wheel's MPI: see `wheel_identity`."""
        return f"{self.library_version} {os.path.realpath(self.libmpi)}"


def wheel_identity(version: str) -> str:
    """The same for the mpich wheel: known from the lock before anything is installed, and the same in every venv."""
    return f"mpich wheel {version}"


def ldd(path: Path) -> str:
    done = subprocess.run(["ldd", str(path)], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.stdout


def loaded_libmpi(ldd_output: str) -> str | None:
    """Path of the MPI library in what `ldd` printed."""
    for name, path in LIBRARY.findall(ldd_output):
        if not NOT_THE_LIBRARY.match(name):
            return str(path)
    return None


def first_line(text: str) -> str:
    """MPICH pads its first line with tabs, mpi4py leaves Open MPI's closing zero byte in: one blank will do."""
    return re.sub(r"[\s\0]+", " ", text.strip().split("\n")[0]).strip()


def ask_library(python: Path, libmpi: Path) -> str:
    """First line of what the library says of itself; allowed before MPI_Init."""
    code = (
        "import ctypes, sys; n = ctypes.c_int(); text = ctypes.create_string_buffer(8192); "
        "ctypes.CDLL(sys.argv[1]).MPI_Get_library_version(text, ctypes.byref(n)); print(text.value.decode())"
    )
    done = subprocess.run(
        [str(python), "-E", "-s", "-c", code, str(libmpi)], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        raise SetupError(f"{libmpi} can't be loaded:\n{done.stderr.strip()[-600:]}")
    return first_line(done.stdout)


def wheel_mpi(venv: Path) -> Mpi:
    """The MPI of the mpich wheel in this venv."""
    mpicxx, mpiexec, libmpi = venv / "bin" / "mpicxx", venv / "bin" / "mpiexec", venv / "lib" / "libmpi.so.12"
    for path in (mpicxx, mpiexec, libmpi):
        if not path.exists():
            raise SetupError(f"the mpich wheel left no {path}; run env/setup --rebuild")
    return Mpi("wheel", str(mpicxx), str(mpiexec), str(libmpi), ask_library(venv / "bin" / "python", libmpi))


def find_site_mpicxx(prefix: Path | None, environ: Mapping[str, str], not_in: Path | None = None) -> str:
    """mpicxx of the site. `not_in`: a directory of PATH that doesn't count (an activated venv's bin)."""
    names = ("mpicxx", "mpic++", "mpiCC")
    if prefix is not None:
        for name in names:
            if os.access(prefix / "bin" / name, os.X_OK):
                return str(prefix / "bin" / name)
        raise SetupError(
            f"--mpi-prefix {prefix}: no mpicxx in {prefix / 'bin'}; name the directory above the bin that holds it"
        )
    path = os.pathsep.join(
        entry
        for entry in environ.get("PATH", os.defpath).split(os.pathsep)
        if not (entry and not_in and os.path.realpath(entry) == os.path.realpath(not_in))
    )
    for name in names:
        found = shutil.which(name, path=path)
        if found:
            return found
    raise SetupError(
        "--mpi system: no mpicxx on PATH.\n"
        "  a cluster:       module load openmpi   (or mpich, cray-mpich; the one that jobs use)\n"
        "  Debian, Ubuntu:  sudo apt-get install libopenmpi-dev openmpi-bin\n"
        "  elsewhere:       env/setup --mpi-prefix DIR   (DIR/bin/mpicxx)\n"
        "or leave --mpi out: the mpich wheel needs nothing from the system."
    )


def _beside(mpicxx: str) -> str | None:
    """The launcher in the same directory as the compiler, as it is named (not where links lead)."""
    for name in ("mpiexec", "mpirun"):
        path = Path(mpicxx).parent / name
        if os.access(path, os.X_OK):
            return str(path)
    return None


def site_mpi(
    prefix: Path | None, environ: Mapping[str, str], *, not_in: Path | None = None, check_ranks: bool = True
) -> Mpi:
    """Ask the site's MPI what it is. Compiles and runs a small program; nothing is installed."""
    mpicxx = find_site_mpicxx(prefix, environ, not_in)
    with tempfile.TemporaryDirectory(prefix="sciml-mpi-", dir=scratch_directory()) as directory:
        source, program = Path(directory) / "probe.cc", Path(directory) / "probe"
        source.write_text(PROBE)
        # Wrappers hand paths to the compiler unquoted: one with a space is reached through a link without.
        prefix_seen, link = Path(mpicxx).parents[1], Path(directory) / "mpi"
        compiler = mpicxx
        if " " in mpicxx:
            link.symlink_to(prefix_seen)
            compiler = str(link / "bin" / Path(mpicxx).name)
        built = subprocess.run(
            [compiler, str(source), "-o", str(program)],
            capture_output=True,
            text=True,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
        )
        if built.returncode != 0:
            raise SetupError(f"{mpicxx} can't compile an MPI program:\n{built.stderr.strip()[:800]}")
        libmpi = loaded_libmpi(ldd(program))
        if libmpi is None:
            raise SetupError(
                f"a program built with {mpicxx} does not find its libmpi.so; load the module whole, or set\n"
                f"LD_LIBRARY_PATH to the lib directory of that MPI. ldd says:\n{ldd(program)}"
            )
        if Path(libmpi).is_relative_to(link):
            libmpi = str(prefix_seen / Path(libmpi).relative_to(link))
        said = subprocess.run(
            [str(program)], capture_output=True, text=True, timeout=60, env=dict(environ), stdin=subprocess.DEVNULL
        )
        mpiexec = _beside(mpicxx)
        if mpiexec is None:
            note(f"no mpiexec beside {mpicxx}: pools can be started by the batch system only (srun)")
        elif check_ranks:
            _check_launcher(mpiexec, program, environ)
    return Mpi("system", mpicxx, mpiexec, libmpi, first_line(said.stdout))


def _check_launcher(mpiexec: str, program: Path, environ: Mapping[str, str]) -> None:
    try:
        done = subprocess.run(
            [mpiexec, "-n", "2", str(program), "ranks"],
            capture_output=True,
            text=True,
            timeout=120,
            env={**environ, **ALLOWED},
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise SetupError(
            f"{mpiexec} -n 2 did not end within 120 s; --no-rank-check skips this on a login node"
        ) from None
    if done.returncode != 0:
        raise SetupError(
            f"{mpiexec} -n 2 ended with {done.returncode}:\n{(done.stdout + done.stderr).strip()[:800]}\n"
            "On a login node that forbids MPI: --no-rank-check"
        )
    if done.stdout.count("world size 2") != 2:
        raise SetupError(
            f"{mpiexec} -n 2 gave {done.stdout.strip()!r}, not two ranks of one world: it belongs to another MPI than\n"
            "the mpicxx beside it. Name the whole installation with --mpi-prefix DIR."
        )


# --- mpi4py


def _pointer(venv: Path) -> Path:
    return venv / "lib" / "libmpi.so"


def point_mpi4py(venv: Path, site: Mpi) -> None:
    """Make mpi4py's wheel load the site's MPI: it looks into VENV/lib for libmpi.so before anywhere else.

    A link rather than the variable MPI4PY_LIBMPI, which a kernel, a batch job or a rank might not inherit.
    """
    pointer = _pointer(venv)
    if pointer.is_symlink() or not pointer.exists():
        pointer.unlink(missing_ok=True)
        pointer.symlink_to(os.path.realpath(site.libmpi))


def unpoint_mpi4py(venv: Path) -> None:
    """Take the link of `point_mpi4py` away; the mpich wheel's own libmpi.so stays."""
    pointer = _pointer(venv)
    if pointer.is_symlink() and not Path(os.path.realpath(pointer)).is_relative_to(os.path.realpath(venv)):
        pointer.unlink()
