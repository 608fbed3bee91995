"""`%pool?` and the Tab key: both tell what the parsers in `arguments` know."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from sciml_kernel.jupyter.arguments import POOL, RANKS, RUNS, Arguments
from sciml_kernel.jupyter.magics import SciMLMagics

__all__ = ["add", "candidates", "text"]

_PARSERS = {"%pool": POOL, "%%ranks": RANKS, "%runs": RUNS}
_TAKES_POOLS = ("name",)  # arguments that name a pool


def add(shell: Any) -> None:
    """Show the parsers' help as `%pool?`, and complete what they take. Twice is no harm."""
    for magic, parser in _PARSERS.items():
        function: Any = getattr(SciMLMagics, magic.strip("%"))
        first = (function.__doc__ or "").partition("\n\n")[0]
        function.__doc__ = f"{first}\n\n{text(parser)}"
        shell.set_hook("complete_command", lambda _shell, event: candidates(event.line), str_key=magic)


def text(parser: Arguments) -> str:
    """The help of a magic and of each of its commands."""
    return "\n".join([parser.format_help(), *(command.format_help() for command in _commands(parser).values())])


def candidates(line: str) -> list[str]:
    """What may stand where the line ends: commands, options, names of pools."""
    words = line.split()
    done = words if line[-1:].isspace() else words[:-1]
    parser = _PARSERS.get(done[0]) if done else None
    if parser is None:
        return []
    commands = _commands(parser)
    if not commands:
        return _options(parser)
    if len(done) == 1:
        return [*commands]
    command = commands.get(done[1])
    if command is None:
        return []
    names = _pools() if any(action.dest in _TAKES_POOLS for action in _positional(command)) else []
    return [*names, *_options(command)]


def _commands(parser: argparse.ArgumentParser) -> dict[str, Any]:
    found: Iterable[Any] = (action.choices for action in _positional(parser) if isinstance(action.choices, dict))
    return next(iter(found), {})


def _positional(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if not action.option_strings]


def _options(parser: argparse.ArgumentParser) -> list[str]:
    """The long name of each option, where it has one; of `-h` none: Tab shows what there is."""
    return [action.option_strings[-1] for action in parser._actions if action.option_strings and action.dest != "help"]


def _pools() -> list[str]:
    """Names only: whether they live is asked when one is used."""
    from sciml_kernel.pool.spec import pools_root

    with suppress(OSError):
        return sorted(entry.name for entry in os.scandir(pools_root()) if entry.is_dir())
    return []
