"""Output of commands: for people, or with --json for programs."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from sciml_kernel.errors import CancelRequest, RunCancelledError, RunInterruptedError, did_you_mean

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Group", "cancellable", "echo_json", "echo_table", "json_option", "rows"]


class Group(click.Group):
    """A wrong command names the nearest one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            ctx.fail(f"no command {name!r}; {did_you_mean(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


json_option: Callable[[Any], Any] = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def echo_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=1, default=str, allow_nan=False))


def rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """A table as JSON rows: times as ISO 8601, missing values as null."""
    found: list[dict[str, Any]] = json.loads(table.to_json(orient="records", date_format="iso"))
    return found


def echo_table(table: pd.DataFrame, *, none: str) -> None:
    """A table as text; the sentence `none` for an empty one."""
    if table.empty:
        click.echo(none)
    else:
        click.echo(table.astype(object).where(table.notna(), "-").to_string(index=False))


@contextmanager
def cancellable() -> Iterator[None]:
    """SIGTERM stops the block as Ctrl-C does, and the command then ends as cancelled (143)."""
    asked = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        raise CancelRequest

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except (KeyboardInterrupt, RunInterruptedError) as error:
        if asked:
            raise RunCancelledError("cancelled (SIGTERM)") from error
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
