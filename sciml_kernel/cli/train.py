"""`sciml train`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sciml_kernel.cli.shared import cancellable, echo_json, json_option
from sciml_kernel.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from sciml_kernel.pool import Pool
    from sciml_kernel.session import Run


@click.command()
@click.argument("recipe")
@click.option("--data", type=click.Path(path_type=Path), help="Folder or file of samples.")
@click.option("-n", "n", type=int, help="Ranks of a pool of its own. Without: the newest live pool, else 2 ranks.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A setting, such as epochs=20.")
@click.option("--settings", type=click.Path(path_type=Path), help="YAML file of settings.")
@click.option("--resume", metavar="RUN", help="Go on from the last checkpoint of this run, with its settings.")
@click.option("--timeout", type=float, help="Interrupt the run after so many seconds.")
@json_option
def train(
    recipe: str,
    data: Path | None,
    n: int | None,
    assignments: tuple[str, ...],
    settings: Path | None,
    resume: str | None,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Train RECIPE on every rank of a pool, and wait for the end.

    Ctrl-C stops it at the next step with a whole checkpoint.
    """
    from sciml_kernel.cli.config import resolved
    from sciml_kernel.config.load import parse_assignments
    from sciml_kernel.session import check_ranks
    from sciml_kernel.session import train as begin

    if timeout is not None and timeout <= 0:
        raise UsageError(f"--timeout must be more than 0 seconds, got {timeout:g}")
    overrides = parse_assignments(assignments)
    earlier = _earlier(resume, recipe, data, settings) if resume else None
    if earlier is None:
        if data is None:
            raise UsageError("--data is missing: the folder or file with the samples")
        spec, found = resolved(recipe, assignments, settings, data=data)
        if spec.check_data is not None:
            spec.check_data(found.config)
        if n is not None:
            check_ranks(found.config.data.batch_size, n)
    with cancellable(), _ranks(n, quiet=as_json) as pool:
        if earlier is not None:
            run = earlier.resume(pool=pool, **overrides)
        else:
            run = begin(recipe, data=str(data), pool=pool, settings=settings, source="--set", **overrides)
        if not as_json:
            click.echo(f"record {run.record.path}")
        run.wait(timeout, progress=not as_json)
        _report(run, as_json)


def _earlier(resume: str, recipe: str, data: Path | None, settings: Path | None) -> Run:
    from sciml_kernel.session import Run

    run = Run.open(resume)
    config = run.record.config()
    if config.get("recipe") != recipe:
        raise UsageError(f"run {run.id} is of recipe {config.get('recipe')!r}, not {recipe!r}")
    if settings is not None:
        raise UsageError("a resumed run has its own settings; write --set for what is to change")
    path = config["data"]["path"]
    if data is not None and str(data.expanduser().resolve()) != path:
        raise UsageError(f"run {run.id} was trained on {path}, not on {data}; leave out --data")
    return run


@contextmanager
def _ranks(n: int | None, *, quiet: bool) -> Iterator[Pool]:
    """The newest live pool, or one of our own, which ends with the command."""
    from sciml_kernel.pool import Pool

    if n is None:
        try:
            found = Pool.attach()
        except NotFoundError:
            n = 2
        else:
            if not quiet:
                click.echo(f"pool {found.name} ({found.n} ranks)")
            yield found
            return
    if not quiet:
        click.echo(f"starting {n} ranks")
    own = Pool.start(n)
    try:
        yield own
    finally:
        own.stop()


def _report(run: Run, as_json: bool) -> None:
    from sciml_kernel import records

    fields: dict[str, Any] = run.record.read()
    if as_json:
        echo_json({"record": str(run.record.path), **{key: fields[key] for key in ("id", "status", "error")}})
    else:
        click.echo(records.show(run.record))
