"""`sciml lab`: this environment's JupyterLab with the `sciml` kernel, on loopback."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from sciml_kernel.errors import EnvironmentNotFitError
from sciml_kernel.jupyter import kernelspec

__all__ = ["command", "environment", "run"]


def command(arguments: Sequence[str] = ()) -> list[str]:
    """What is started. Arguments of the caller come last and so win, save over the address of a shared machine."""
    given = [argument.split("=")[0] for argument in arguments]
    own: list[str] = []
    if not {"--ip", "--ServerApp.ip"} & set(given):
        own.append("--ServerApp.ip=127.0.0.1")
    if not {"--notebook-dir", "--ServerApp.root_dir"} & set(given) and not _names_a_path(arguments):
        own.append(f"--ServerApp.root_dir={Path.cwd()}")
    return [sys.executable, "-m", "jupyterlab", *own, *arguments]


def environment() -> dict[str, str]:
    """This environment's Jupyter folders come first, and its `bin` for the kernels' shells."""
    share = str(Path(sys.prefix) / "share" / "jupyter")
    others = [path for path in os.environ.get("JUPYTER_PATH", "").split(os.pathsep) if path and path != share]
    bin_folder = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "JUPYTER_PATH": os.pathsep.join([share, *others]),
        "PATH": os.pathsep.join([bin_folder, os.environ.get("PATH", os.defpath)]),
    }


def run(arguments: Sequence[str] = ()) -> NoReturn:
    """Become JupyterLab. Raises EnvironmentNotFitError when the kernelspec or JupyterLab is missing."""
    kernelspec.installed()
    import importlib.util

    if importlib.util.find_spec("jupyterlab") is None:
        raise EnvironmentNotFitError(f"jupyterlab is not installed in {sys.prefix}; run env/setup")
    words = command(arguments)
    os.execve(words[0], words, environment())


def _names_a_path(arguments: Sequence[str]) -> bool:
    """A notebook or folder to open, as the last argument, is the caller's own place."""
    return bool(arguments) and not arguments[-1].startswith("-") and Path(arguments[-1]).exists()
