"""The command line of `env/setup`. What is not given is taken from the earlier set-up of the same venv."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sciml_env.say import USAGE, SetupError

__all__ = ["Options", "parse", "with_remembered"]

EPILOG = """\
variables: PYTHON interpreter to make the venv from; SCIML_VENV default of --venv (read by env/demo and env/test
too); SCIML_CACHE default of --cache; CXX the C++ compiler; MAKEFLAGS how many jobs (default: -j, one a core, at most
8); HOROVOD_CUDA_HOME, HOROVOD_NCCL_HOME with --gpu. Proxy variables are passed on.
exit codes: 0 ok, 1 a step failed, 2 wrong use, 3 something is missing here, 130 interrupted."""


@dataclass(frozen=True)
class Options:
    """What was asked for. None: not given, so the earlier choice or the default holds."""

    venv: Path
    python: Path | None = None
    python_version: str | None = None
    mpi: str | None = None
    mpi_prefix: Path | None = None
    gpu: bool | None = None
    hub: bool | None = None
    cache: Path | None = None
    offline: bool = False
    rebuild: bool = False
    check_ranks: bool = True

    def chosen(self) -> dict[str, Any]:
        """What a later set-up of the same venv takes over."""
        return {
            "mpi": self.mpi,
            "mpi_prefix": str(self.mpi_prefix) if self.mpi_prefix else None,
            "gpu": self.gpu,
            "hub": self.hub,
        }


def parser() -> argparse.ArgumentParser:
    cli = argparse.ArgumentParser(
        prog="env/setup",
        description="Make the environment: venv, locked packages, MPI, Horovod, this package, its Jupyter kernel. "
        "Needs no root. Safe to run again.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    cli.add_argument("--venv", metavar="DIR", help="the virtual environment (default: $SCIML_VENV, else .venv here)")
    cli.add_argument("--python-version", metavar="3.N", help="make the venv from this Python: 3.11, 3.12 or 3.13")
    cli.add_argument("--mpi", choices=["wheel", "system"], help="the mpich wheel (default) or the site's mpicxx")
    cli.add_argument("--mpi-prefix", metavar="DIR", help="where the site's MPI lies, with bin/mpicxx; implies system")
    cli.add_argument("--gpu", action="store_true", default=None, help="TensorFlow with CUDA, Horovod with NCCL")
    cli.add_argument("--hub", action="store_true", default=None, help="JupyterHub's packages too")
    cli.add_argument("--cache", metavar="DIR", help="wheels, logs (default: $SCIML_CACHE, else ~/.cache/sciml)")
    cli.add_argument("--offline", action="store_true", help="take everything from the caches")
    cli.add_argument("--rebuild", action="store_true", help="throw the venv away first")
    cli.add_argument(
        "--no-rank-check", action="store_true", help="don't start two MPI ranks at the end (login nodes forbid it)"
    )
    cli.add_argument(
        "--python",
        metavar="PATH",
        help="no venv: build Horovod for this interpreter of a conda or module environment and add this package",
    )
    return cli


def _absolute(text: str | None) -> Path | None:
    return Path(os.path.abspath(os.path.expanduser(text))) if text else None


def parse(arguments: Sequence[str], *, project: Path, environ: Mapping[str, str]) -> Options:
    """Raises SetupError(2) for options that contradict each other; argparse ends with 2 itself for unknown ones."""
    given = parser().parse_args(arguments)
    if given.mpi == "wheel" and given.mpi_prefix:
        raise SetupError("--mpi-prefix names the site's MPI, --mpi wheel asks for the wheel; give one of them", USAGE)
    if given.python_version and given.python_version not in ("3.11", "3.12", "3.13"):
        raise SetupError(f"--python-version {given.python_version}: write 3.11, 3.12 or 3.13", USAGE)
    if given.python:
        clash = [
            f"--{name}"
            for name in ("venv", "python-version", "hub", "rebuild")
            if getattr(given, name.replace("-", "_"))
        ]
        if given.mpi == "wheel":
            clash.append("--mpi wheel")
        if clash:
            raise SetupError(
                f"--python takes an environment as it is; it does not go with {', '.join(clash)}\n"
                "(to make the venv from a certain Python, write: PYTHON=/path/to/python3.11 env/setup)",
                USAGE,
            )
    return Options(
        venv=_absolute(given.venv or environ.get("SCIML_VENV")) or project / ".venv",
        python=_absolute(given.python),
        python_version=given.python_version,
        mpi="system" if given.mpi_prefix else given.mpi,
        mpi_prefix=_absolute(given.mpi_prefix),
        gpu=given.gpu,
        hub=given.hub,
        cache=_absolute(given.cache or environ.get("SCIML_CACHE")),
        offline=given.offline,
        rebuild=given.rebuild,
        check_ranks=not given.no_rank_check,
    )


def with_remembered(options: Options, earlier: Mapping[str, Any]) -> Options:
    """Fill what was not given from the earlier set-up's choices, then from the defaults.

    So `env/demo`, which gives no options, keeps a venv that was set up with the site's MPI.
    """
    mpi = options.mpi or earlier.get("mpi") or "wheel"
    prefix = options.mpi_prefix
    if prefix is None and options.mpi is None and mpi == "system" and earlier.get("mpi_prefix"):
        prefix = Path(earlier["mpi_prefix"])
    gpu = options.gpu if options.gpu is not None else bool(earlier.get("gpu"))
    hub = options.hub if options.hub is not None else bool(earlier.get("hub"))
    if gpu and hub:
        raise SetupError(
            "--gpu and --hub: a hub node needs no GPU; make two venvs (--venv), one with each option", USAGE
        )
    return replace(options, mpi=mpi, mpi_prefix=prefix, gpu=gpu, hub=hub)
