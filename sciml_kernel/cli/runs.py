"""`sciml runs list|show`."""

from __future__ import annotations

import click

from sciml_kernel.cli.shared import Group, echo_json, echo_table, json_option, rows


@click.group(cls=Group)
def runs() -> None:
    """Run records."""


@runs.command("list")
@json_option
def list_runs(as_json: bool) -> None:
    """Every run under the runs root, newest first."""
    from sciml_kernel import records

    table = records.list_runs()
    if as_json:
        echo_json(rows(table))
        return
    table = table.assign(started=table["started"].dt.strftime("%Y-%m-%d %H:%M:%S"), seconds=table["seconds"].round(1))
    echo_table(table.drop(columns=["name"]), none=f"no runs in {records.runs_root()}")


@runs.command()
@click.argument("run")
@json_option
def show(run: str, as_json: bool) -> None:
    """One run: RUN is an id, its unique beginning, or a path."""
    from sciml_kernel import records

    record = records.find(run)
    if as_json:
        echo_json(record.read())
    else:
        click.echo(records.show(record))
