"""A clone of the project and a machine on which `env/setup` runs in a second.

Real: the shell script, the interpreter, the venv, the order of the steps, the dynamic linker, the files that are left.
Fake: the packages (a fake uv "installs" them in no time), Horovod's build (a wheel lies in the cache), MPI (a library
with one function), mpiexec.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sciml_env import horovod, mpi, pythons
from sciml_env.locks import Lock

BASE = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info[1]}"
SITE = f"lib/python3.{sys.version_info[1]}/site-packages"
FAKE_UV = r"""
echo "uv $*" >> "$FAKE/calls"
[ -z "${https_proxy:-}" ] || echo "proxy $https_proxy" >> "$FAKE/calls"
case "$1 ${2:-}" in
"--version "*) echo "uv 0.9.1" ;;
"venv "*) for last; do :; done; exec "@BASE@" -m venv --without-pip "$last" ;;
"pip install")
  [ ! -e "$FAKE/break" ] || { rm "$FAKE/break"; echo "connection reset by peer"; exit 1; }
  python=$4; venv=${python%/bin/python}
  for last; do :; done
  case "$*" in
  *--require-hashes*)
    [ ! -e "$FAKE/own_certificate" ] || [ -n "${UV_SYSTEM_CERTS:-}" ] || { echo "invalid peer certificate"; exit 2; }
    cp "$last" "$FAKE/requirements.txt"
    if grep -q '^mpich==' "$last"; then
      cp "$FAKE/libmpi.so.12" "$venv/lib/"; ln -sf libmpi.so.12 "$venv/lib/libmpi.so"
      cp "$FAKE/mpiexec" "$venv/bin/"; cp "$FAKE/mpiexec" "$venv/bin/mpicxx"
    fi ;;
  *.whl) mkdir -p "$venv/@SITE@/horovod/tensorflow"; cp "$FAKE/mpi_lib.so" "$venv/@SITE@/horovod/tensorflow/" ;;
  *--editable*) echo "$last" > "$venv/@SITE@/project.pth" ;;
  *) cp -r "$last/sciml_kernel" "$venv/@SITE@/" ;;
  esac ;;
"pip uninstall") echo gone ;;
esac
"""
KERNELSPEC = """
import pathlib, sys
assert sys.argv[1:] == ["install", "--sys-prefix"], sys.argv
target = pathlib.Path(sys.prefix) / "share/jupyter/kernels/sciml"
target.mkdir(parents=True, exist_ok=True)
(target / "kernel.json").write_text("{}")
"""
RANK = {"mpi4py": "Fake MPI 12", "size": 2, "horovod": 2, "same": True, "mean": 1.5}

Result = subprocess.CompletedProcess[str]


class Site:
    """A clone of the project and a machine on which `env/setup` can run in a second."""

    def __init__(self, clone: Path, fake: Path, run: Callable[..., Result], bare_env: dict[str, str]) -> None:
        self.clone, self.fake, self._run = clone, fake, run
        self.venv = clone / ".venv"
        self.cache = Path(bare_env["HOME"]) / ".cache" / "sciml"

    def setup(self, *options: str, **extra: str) -> Result:
        environ = {"FAKE": str(self.fake), "SCIML_SETUP_RETRY_S": "0.01", **extra}
        return self._run(self.clone / "env" / "setup", *options, extra=environ)

    def calls(self) -> list[str]:
        file = self.fake / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return [line for line in lines if line != "uv --version"]

    def told(self, name: str) -> dict[str, object]:
        value: dict[str, object] = json.loads((self.venv / "etc" / "sciml" / f"{name}.json").read_text())
        return value


@pytest.fixture
def site(
    tmp_path: Path, clone: Path, tools: Callable[[str, str], Path], run: Callable[..., Result], bare_env: dict[str, str]
) -> Site:
    fake = tmp_path / "fake"
    fake.mkdir()
    tools(BASE.name, f'exec "{BASE}" "$@"')
    tools("uv", FAKE_UV.replace("@BASE@", str(BASE)).replace("@SITE@", SITE))
    for name in ("cp", "ln", "grep", "timeout"):
        found = shutil.which(name)
        if found:
            (tmp_path / "bin" / name).symlink_to(found)
    # A library that only knows its version, and "Horovod" that is linked to it as the real one is.
    (fake / "mpi.c").write_text(
        "#include <string.h>\nint MPI_Get_library_version(char *t, int *n)"
        ' { strcpy(t, "Fake MPI\\t12\\nmore"); *n = 11; return 0; }\n'
    )
    (fake / "lib.c").write_text(
        "int MPI_Get_library_version(char *, int *);\nint f() { return MPI_Get_library_version(0, 0); }\n"
    )
    gcc = ["g++", "-x", "c", "-shared", "-fPIC"]
    subprocess.run([*gcc, "-Wl,-soname,libmpi.so.12", "mpi.c", "-o", "libmpi.so.12"], cwd=fake, check=True)
    subprocess.run(
        [*gcc, "lib.c", "-x", "none", "libmpi.so.12", "-Wl,-rpath,$ORIGIN/../../../..", "-o", "mpi_lib.so"],
        cwd=fake,
        check=True,
    )
    (fake / "mpiexec").write_text("#!/bin/sh\n" + f"echo 'RANK {json.dumps(RANK)}'\n" * 2)
    (fake / "mpiexec").chmod(0o755)
    (clone / "sciml_kernel" / "jupyter" / "__init__.py").write_text("")
    (clone / "sciml_kernel" / "jupyter" / "kernelspec.py").write_text(KERNELSPEC)
    # Horovod was built before.
    base = pythons.probe(BASE)
    assert base is not None
    lock = Lock(clone / "env" / "lock" / "cpu.txt")
    parts = horovod.key_parts(
        env_directory=clone / "env",
        python=base,
        tensorflow=f"tensorflow-cpu {lock.version('tensorflow-cpu')}",
        mpi=mpi.wheel_identity(lock.version("mpich")),
        gpu=False,
        environ={},
    )
    wheel = fake / "horovod-0.28.1-cp3-none-any.whl"
    wheel.write_bytes(b"wheel")
    result = Site(clone, fake, run, bare_env)
    horovod._put(result.cache, parts, wheel)
    return result
