"""`sciml batch`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from sciml_kernel.cli.shared import echo_json, json_option

_EXIT_CODES = {"completed": 0, "failed": 1, "interrupted": 130, "timeout": 124, "cancelled": 143}


@click.command()
@click.argument("notebook", type=click.Path(path_type=Path))
@click.option("-p", "pairs", nargs=2, multiple=True, metavar="NAME VALUE", help="A parameter.")
@click.option("-f", "file", type=click.Path(path_type=Path), help="YAML file of parameters; -p wins.")
@click.option("-n", "n_ranks", type=int, help="Sets the notebook's parameter n_ranks.")
@click.option("--name", help="Name in the run's id; the notebook's by default.")
@click.option("--timeout", type=float, help="Seconds for the whole run.")
@click.option("--cell-timeout", type=float, help="Seconds for each cell.")
@click.option("--help-notebook", is_flag=True, help="List the notebook's parameters.")
@click.option("--dry-run", is_flag=True, help="Print what would be run.")
@click.option("--quiet", is_flag=True, help="Print the record's path only.")
@json_option
def batch(
    notebook: Path,
    pairs: tuple[tuple[str, str], ...],
    file: Path | None,
    n_ranks: int | None,
    name: str | None,
    timeout: float | None,
    cell_timeout: float | None,
    help_notebook: bool,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Run NOTEBOOK in the sciml kernel and leave a record of it.

    Its relative paths are relative to the current directory. A pool that it starts ends with it.
    """
    from sciml_kernel.batch import plan, run_notebook, source
    from sciml_kernel.batch.parameter_files import from_pairs, read_file
    from sciml_kernel.batch.parameters import describe
    from sciml_kernel.batch.progress import Lines, Quiet

    if help_notebook:
        click.echo(describe(source.read(notebook).node.cells))
        return 0
    given = {**(read_file(file) if file else {}), **from_pairs(pairs)}
    if dry_run:
        click.echo(plan(notebook, given, name=name, n_ranks=n_ranks).describe())
        return 0
    record = run_notebook(
        notebook,
        given,
        name=name,
        n_ranks=n_ranks,
        timeout_s=timeout,
        cell_timeout_s=cell_timeout,
        progress=Quiet() if quiet or as_json else Lines(),
        launch=shlex.join(["sciml", *sys.argv[1:]]),
    )
    content = record.read()
    if as_json:
        echo_json({"record": str(record.path), **{key: content[key] for key in ("id", "status", "error", "cells")}})
    elif quiet:
        click.echo(record.path)
    if content["status"] != "completed":
        error = content["error"] or {}
        where = f" in cell {error['cell']}" if error.get("cell") is not None else ""
        click.echo(f"sciml: the run {content['status']}{where}: {error.get('type')}: {error.get('message')}", err=True)
        click.echo(f"sciml: see {record.path / 'notebook.html'}", err=True)
    return _EXIT_CODES[content["status"]]
