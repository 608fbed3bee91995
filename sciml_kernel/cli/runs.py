"""`sciml runs list|show|compare|verify|export|index`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sciml_kernel.cli.shared import Group, echo_json, echo_table, json_option, rows

if TYPE_CHECKING:
    from sciml_kernel.records import Comparison


@click.group(cls=Group)
def runs() -> None:
    """Run records."""


@runs.command("list")
@click.option("--status", help="Only those with this status.")
@click.option("--name", help="Only those of this recipe or notebook.")
@json_option
def list_runs(status: str | None, name: str | None, as_json: bool) -> None:
    """Every run under the runs root, newest first."""
    from sciml_kernel import records

    table = records.list_runs()
    for column, wanted in (("status", status), ("name", name)):
        if wanted is not None:
            table = table[table[column] == wanted]
    if as_json:
        echo_json(rows(table))
        return
    table = table.assign(started=table["started"].dt.strftime("%Y-%m-%d %H:%M:%S"), seconds=table["seconds"].round(1))
    echo_table(
        table.drop(columns=["name"]), none=f"no {'such ' if status or name else ''}runs in {records.runs_root()}"
    )


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


@runs.command()
@click.argument("run", nargs=-1, required=True)
@click.option("--figure", type=click.Path(path_type=Path), help="PNG of the metric curves over each other.")
@json_option
def compare(run: tuple[str, ...], figure: Path | None, as_json: bool) -> None:
    """What two runs or more differ in: settings, environment, results."""
    from sciml_kernel import records

    found = [records.find(one) for one in run]
    comparison = records.compare(found)
    if figure is not None:
        from sciml_kernel import views
        from sciml_kernel.metrics.history import HistoryReader

        histories = {
            f"{record.id} {part}".strip(): HistoryReader(one.metrics_path).dataset()
            for record in found
            for part, one in records.parts(record)
            if one.metrics_path.exists()
        }
        views.compare_runs(histories).save(figure)
    if as_json:
        echo_json(comparison.to_json())
    else:
        _echo_comparison(comparison)


@runs.command()
@click.argument("run")
@click.option("--static", is_flag=True, help="Look at files and hashes only; run nothing.")
@click.option("--rtol", type=click.FloatRange(min=0), default=1e-6, show_default=True, help="Relative tolerance.")
@click.option("--quiet", is_flag=True, help="Do not show the new run's progress.")
@json_option
def verify(run: str, static: bool, rtol: float, quiet: bool, as_json: bool) -> int:
    """Run RUN once more as its record says and compare the numbers. Ends with 1 where they do not hold."""
    import sys

    from sciml_kernel import records
    from sciml_kernel.batch import verify as verification
    from sciml_kernel.batch.progress import Lines, Quiet

    record = records.find(run)
    progress = Quiet() if quiet or as_json else Lines(sys.stderr)
    found = verification.check(record) if static else verification.again(record, rtol=rtol, progress=progress)
    if as_json:
        echo_json(found.to_json())
    else:
        click.echo(found.text())
    return 0 if found.holds else 1


@runs.command()
@click.argument("run", nargs=-1, required=True)
@click.option("--to", type=click.Path(path_type=Path), help="File; its suffix says the format. Default: CSV here.")
@click.option("--format", "kind", type=click.Choice(["csv", "json", "parquet"]), help="Instead of the suffix.")
@click.option(
    "--table",
    type=click.Choice(["metrics", "runs"]),
    default="metrics",
    show_default=True,
    help="A row a number that was reported, or a row a run with its settings and last values.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
def export(run: tuple[str, ...], to: Path | None, kind: str | None, table: str, as_json: bool) -> None:
    """What runs reported as one tidy table."""
    from sciml_kernel import records

    found = [records.find(one) for one in run]
    frame = records.tidy(found) if table == "metrics" else records.runs_table(found)
    text = records.write_table(frame, to, kind or ("json" if as_json else None))
    if text is not None:
        click.echo(text, nl=False)
    else:
        click.echo(f"{len(frame)} rows in {to}", err=True)


@runs.command()
def index() -> None:
    """Write index.html in the runs root: every run, with a picture and the way to its page."""
    from sciml_kernel.batch.index_page import write_index

    click.echo(write_index())


def _echo_comparison(found: Comparison) -> None:
    import pandas as pd

    names = [f"[{i}]" for i in range(len(found.runs))]
    click.echo("\n".join(f"{name} {run}" for name, run in zip(names, found.runs, strict=True)))
    tables = (("", found.status), ("settings", found.config), ("environment", found.environment))
    for title, values in (*tables, ("results, last values", found.metrics)):
        if title:
            click.echo(f"\n{title}" + ("" if values else ": no difference"))
        if values:
            short = {key: [_short(value) for value in row] for key, row in values.items()}
            click.echo(pd.DataFrame.from_dict(short, orient="index", columns=names).to_string())


def _short(value: object) -> str:
    if value is None:
        return "-"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."
