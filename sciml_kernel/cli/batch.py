"""`sciml batch`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sciml_kernel.cli.shared import echo_json, json_option

if TYPE_CHECKING:
    from sciml_kernel.batch.progress import Progress

_EXIT_CODES = {"completed": 0, "failed": 1, "interrupted": 130, "timeout": 124, "cancelled": 143}


@click.command()
@click.argument("notebook", type=click.Path(path_type=Path), required=False)
@click.option("-p", "pairs", nargs=2, multiple=True, metavar="NAME VALUE", help="A parameter.")
@click.option(
    "-f", "file", type=click.Path(path_type=Path), help="YAML file of parameters, or a parameter set; -p wins."
)
@click.option("-n", "n_ranks", type=int, help="Sets the notebook's parameter n_ranks.")
@click.option("--name", help="Name in the run's id; the notebook's by default.")
@click.option("--timeout", type=float, help="Seconds for the whole run.")
@click.option("--cell-timeout", type=float, help="Seconds for each cell.")
@click.option("--resume", metavar="RUN", help="Go on from an earlier run: id, its unique beginning, or a path.")
@click.option(
    "--check", type=click.Path(path_type=Path), help="Run the parameter sets of a folder at toy size; compare."
)
@click.option("--help-notebook", is_flag=True, help="List the notebook's parameters.")
@click.option("--dry-run", is_flag=True, help="Print what would be run.")
@click.option("--quiet", is_flag=True, help="Print the record's path only.")
@json_option
def batch(
    notebook: Path | None,
    pairs: tuple[tuple[str, str], ...],
    file: Path | None,
    n_ranks: int | None,
    name: str | None,
    timeout: float | None,
    cell_timeout: float | None,
    resume: str | None,
    check: Path | None,
    help_notebook: bool,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Run NOTEBOOK in the sciml kernel and leave a record of it.

    Its relative paths are relative to the current directory. A pool that it starts ends with it. A parameter set
    (papermill_runs/*.yaml) names its notebook itself.
    """
    from sciml_kernel.batch import plan, run_notebook, source
    from sciml_kernel.batch.parameter_files import from_pairs
    from sciml_kernel.batch.parameters import describe
    from sciml_kernel.batch.progress import Lines, Quiet
    from sciml_kernel.batch.run import as_before, earlier_run
    from sciml_kernel.batch.sets import read_set

    if check is not None:
        return _check(check, Quiet() if quiet or as_json else Lines(), as_json=as_json)
    chosen = read_set(file) if file else None
    notebook = notebook or (chosen.notebook if chosen else None)
    runs_root: Path | None = None
    given = {**(chosen.parameters if chosen else {}), **from_pairs(pairs)}
    if resume is not None:
        notebook, given, name, runs_root = as_before(earlier_run(resume), notebook, given, name, n_ranks)
    if notebook is None:
        raise click.UsageError("which notebook? Write NOTEBOOK, or -f with a parameter set that names one")
    if help_notebook:
        click.echo(describe(source.read(notebook).node.cells))
        return 0
    name = name or (chosen.path.stem if chosen and chosen.notebook else None)
    if dry_run:
        click.echo(plan(notebook, given, name=name, n_ranks=n_ranks, runs_root=runs_root).describe())
        return 0
    record = run_notebook(
        notebook,
        given,
        name=name,
        runs_root=runs_root,
        n_ranks=n_ranks,
        timeout_s=timeout,
        cell_timeout_s=cell_timeout,
        progress=Quiet() if quiet or as_json else Lines(),
        launch=shlex.join(["sciml", *sys.argv[1:]]),
        resume=resume,
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


def _check(place: Path, progress: Progress, *, as_json: bool) -> int:
    from sciml_kernel.batch.sets import check_sets

    found = check_sets(place, progress=progress)
    if as_json:
        echo_json([one.to_json() for one in found])
    for one in [] if as_json else found:
        click.echo(f"{one.path.name}: {'as expected' if not one.problems else 'NOT as expected'} ({one.seconds:.0f} s)")
        for problem in one.problems:
            click.echo(f"    {problem}")
        if one.record is not None:
            click.echo(f"    see {one.record / 'notebook.html'}")
    return 1 if any(one.problems for one in found) else 0
