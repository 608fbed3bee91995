"""The program `sciml`: commands are imported when they are used, errors become exit codes."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

import click

from sciml_kernel.cli.shared import Group
from sciml_kernel.errors import SciMLError

__all__ = ["cli", "main"]

_COMMANDS = {
    "batch": "batch:batch",
    "config": "config:config",
    "data": "data:data",
    "doctor": "doctor:doctor",
    "kernel": "jupyter:kernel",
    "lab": "jupyter:lab",
    "models": "models:models",
    "pool": "pool:pool",
    "runs": "runs:runs",
    "train": "train:train",
}
"""Command -> "module:attribute" in this package."""


class _Commands(Group):
    """Imports a command's module when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(f"sciml_kernel.cli.{module}"), attribute)
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="sciml-kernel", prog_name="sciml")
def cli() -> None:
    """A notebook, a pool of MPI ranks, and TensorFlow models trained on them with Horovod."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code."""
    warnings.showwarning = _show_warning
    sys.exit(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    try:
        result: Any = cli.main(args=None if arguments is None else list(arguments), standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.exceptions.Exit as error:
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo("sciml: interrupted", err=True)
        return 130
    except BrokenPipeError:  # `sciml runs list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except SciMLError as error:
        _say(error, str(error))
        return error.exit_code
    except Exception as error:
        _say(error, f"{type(error).__name__}: {error} (SCIML_DEBUG=1 shows where)")
        return 1


def _say(error: Exception, text: str) -> None:
    if os.environ.get("SCIML_DEBUG") == "1":
        traceback.print_exception(error)
    click.echo(f"sciml: {text}", err=True)


def _show_warning(message: Warning | str, *where: Any, **more: Any) -> None:
    click.echo(f"sciml: warning: {message}", err=True)
