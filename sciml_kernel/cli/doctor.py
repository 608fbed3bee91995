"""`sciml doctor`."""

from __future__ import annotations

from typing import Any

import click

from sciml_kernel.cli.shared import echo_json, json_option

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@json_option
def doctor(as_json: bool) -> int:
    """Check that this environment can run: what is wrong, and how to mend it.

    Exit code 3 when something fails; warnings (no GPU) are no failure.
    """
    from sciml_kernel.pool.doctor import examine

    found = [check for check in examine(None if as_json else _show)]
    worst = 3 if any(check.result == "fail" for check in found) else 0
    if as_json:
        echo_json([check.to_json() for check in found])
    else:
        counts = {name: sum(check.result == name for check in found) for name in _COLOURS}
        click.echo(", ".join(f"{number} {name}" for name, number in counts.items()))
    return worst


def _show(check: Any) -> None:
    click.echo(f"{click.style(f'{check.result:<4}', fg=_COLOURS[check.result])}  {check.name}: {check.found}")
    if check.mend:
        click.echo(f"      mend: {check.mend}")
