"""Options of magics. argparse ends the process on a wrong option; here it is a UsageError of the cell."""

from __future__ import annotations

import argparse
import shlex
from typing import Any, NoReturn

from sciml_kernel.errors import UsageError, did_you_mean

__all__ = ["POOL", "RANKS", "RUNS", "Arguments", "parse"]


class Arguments(argparse.ArgumentParser):
    """argparse that raises. `-h` prints the help and raises `HelpShown`."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}; {' '.join(self.format_usage().split())}")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise HelpShown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise UsageError(f"{self.prog}: unknown command {value!r}; {did_you_mean(str(value), action.choices)}")


class HelpShown(Exception):
    """The help was asked for and printed: nothing else is to be done."""


def parse(parser: Arguments, line: str) -> argparse.Namespace:
    """Raises UsageError for what the parser does not know, HelpShown after `-h`."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{parser.prog}: {error} in {line!r}") from None
    return parser.parse_args(words)


def _ranks(text: str) -> list[int]:
    """ "0,2" or "0-3" -> ranks."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise argparse.ArgumentTypeError(f"{text!r} names no ranks; write for example 0,2 or 0-3")
        found.extend(range(int(first), int(last if dash else first) + 1))
    return found


def _pool_parser() -> Arguments:
    parser = Arguments(prog="%pool", description="Pools of MPI ranks.")
    commands = parser.add_subparsers(
        dest="command", metavar="start|status|watch|list|attach|restart|stop|logs", required=True
    )
    start = commands.add_parser("start", help="start a pool")
    start.add_argument("-n", type=int, default=4, help="ranks (default 4)")
    start.add_argument("--name")
    start.add_argument("--launcher", default="local")
    start.add_argument("--keep", action="store_true", help="it outlives this kernel")
    start.add_argument("--ttl", type=float, default=3600.0, help="seconds that it lives unused; 0: for ever")
    start.add_argument("--oversubscribe", action="store_true", help="more ranks than cores are meant")
    for name, text in (
        ("status", "state and ranks"),
        ("watch", "the same, renewed in place"),
        ("attach", "use an earlier pool"),
        ("stop", "end it"),
    ):
        commands.add_parser(name, help=text).add_argument("name", nargs="?")
    restart = commands.add_parser("restart", help="a new set of ranks")
    restart.add_argument("name", nargs="?")
    restart.add_argument("-n", type=int, default=None, help="ranks; as before by default")
    commands.add_parser("list", help="all pools of this user")
    logs = commands.add_parser("logs", help="what a rank printed")
    logs.add_argument("rank", help="a rank's number, or keeper, controller, mpiexec")
    logs.add_argument("name", nargs="?")
    logs.add_argument("--lines", type=int, default=None)
    return parser


def _ranks_parser() -> Arguments:
    parser = Arguments(prog="%%ranks", description="Run this cell on the ranks; its names stay there.")
    parser.add_argument("-t", "--targets", type=_ranks, default=None, help="ranks, such as 0,2; all by default")
    parser.add_argument("--timeout", type=float, default=None, help="seconds until the call is ended everywhere")
    parser.add_argument("--quiet", action="store_true", help="show no output; errors are shown")
    parser.add_argument(
        "--set-up",
        nargs="?",
        const="",
        metavar="NAME",
        help="run it again on every new set of ranks; a later cell of this name takes its place",
    )
    parser.add_argument("--pool", default=None, help="name of the pool; the one in use by default")
    return parser


def _runs_parser() -> Arguments:
    parser = Arguments(prog="%runs", description="Every run, newest first.")
    parser.add_argument("run", nargs="?", help="show this one")
    return parser


POOL = _pool_parser()
RANKS = _ranks_parser()
RUNS = _runs_parser()
