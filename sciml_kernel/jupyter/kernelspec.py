"""The kernelspec: `python -m sciml_kernel.jupyter.kernelspec install --sys-prefix|--user|--prefix PATH [--name NAME]`.

Standard library only, so that a set-up can call it early.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sciml_kernel.errors import EnvironmentNotFitError, SciMLError, UsageError

__all__ = ["content", "folder", "install", "installed", "main"]

NAME = "sciml"
LOGOS = Path(__file__).parent / "kernelspec_files"


def content() -> dict[str, Any]:
    """What `kernel.json` says. The interpreter is named by its absolute path: PATH decides nothing."""
    return {
        "argv": [os.path.abspath(sys.executable), "-m", "sciml_kernel.jupyter.kernel", "-f", "{connection_file}"],
        "display_name": "SciML (MPI + TensorFlow)",
        "language": "python",
        "interrupt_mode": "signal",
        "metadata": {"debugger": True, "supported_encryption": ["curve"]},
        "kernel_protocol_version": "5.5",
    }


def folder(prefix: str | Path | None = None, *, user: bool = False, name: str = NAME) -> Path:
    """Where the kernelspec goes: in an environment (default: this Python's) or in the user's Jupyter data folder."""
    if not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or not name.isascii():
        raise UsageError(f"kernel name {name!r} can't be used; write letters, digits, '.', '-', '_'")
    if user:
        data = os.environ.get("JUPYTER_DATA_DIR") or Path.home() / ".local" / "share" / "jupyter"
        return Path(data) / "kernels" / name
    return Path(prefix or sys.prefix) / "share" / "jupyter" / "kernels" / name


def install(prefix: str | Path | None = None, *, user: bool = False, name: str = NAME) -> Path:
    """Write it, whole or not at all, and return its folder. Raises UsageError where it can't be written."""
    target = folder(prefix, user=user, name=name)
    temporary = target.with_name(f".{name}.{secrets.token_hex(4)}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        for logo in LOGOS.glob("logo-*"):
            shutil.copyfile(logo, temporary / logo.name)
        (temporary / "kernel.json").write_text(json.dumps(content(), indent=1) + "\n", encoding="utf-8")
        old = target.with_name(f".{name}.{secrets.token_hex(4)}.old")
        if target.exists():
            os.replace(target, old)
        os.replace(temporary, target)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise UsageError(
            f"the kernelspec can't be written to {target.parent}: {error.strerror or error}; "
            "with --user it goes into your own Jupyter folder"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


def installed(prefix: str | Path | None = None) -> Path:
    """The folder of this environment's kernelspec, checked. Raises EnvironmentNotFitError saying how to mend it."""
    place = folder(prefix)
    try:
        argv = json.loads((place / "kernel.json").read_text(encoding="utf-8"))["argv"]
    except (OSError, ValueError, KeyError) as error:
        raise EnvironmentNotFitError(f"no kernelspec in {place}; run: sciml kernel install --sys-prefix") from error
    if not os.access(argv[0], os.X_OK):
        raise EnvironmentNotFitError(
            f"the kernelspec in {place} names {argv[0]}, which can't be run; run: sciml kernel install --sys-prefix"
        )
    return place


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m sciml_kernel.jupyter.kernelspec")
    install_parser = parser.add_subparsers(dest="command", required=True).add_parser("install")
    where = install_parser.add_mutually_exclusive_group()
    where.add_argument("--sys-prefix", action="store_true", help="into this environment (default)")
    where.add_argument("--user", action="store_true", help="into your own Jupyter folder")
    where.add_argument("--prefix", help="into another environment")
    install_parser.add_argument("--name", default=NAME)
    options = parser.parse_args(arguments)
    try:
        print(install(options.prefix, user=options.user, name=options.name))
    except SciMLError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
