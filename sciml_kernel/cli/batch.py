"""`sciml batch`."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sciml_kernel.cli.shared import echo_json, json_option

if TYPE_CHECKING:
    from sciml_kernel.batch.progress import Progress
    from sciml_kernel.batch.sets import ParameterSet
    from sciml_kernel.batch.sweep import OnFailure, Watcher

_path: Any = click.Path(path_type=Path)


@click.command()
@click.argument("notebook", type=_path, required=False)
@click.option("-p", "pairs", nargs=2, multiple=True, metavar="NAME VALUE", help="A parameter.")
@click.option("-f", "file", type=_path, help="YAML file of parameters, or a parameter set; -p wins.")
@click.option("-n", "n_ranks", type=int, help="Sets the notebook's parameter n_ranks.")
@click.option("--name", help="Name in the run's id; the notebook's by default.")
@click.option("--timeout", type=float, help="Seconds for the whole run, with --grid for each variant.")
@click.option("--cell-timeout", type=float, help="Seconds for each cell.")
@click.option("--resume", metavar="RUN", help="Go on from an earlier run: id, its unique beginning, or a path.")
@click.option("--grid", type=_path, help="YAML file of variants: product and zip.")
@click.option("--cores", type=int, help="With --grid: cores that may be busy at once; default: all.")
@click.option("--gpus", type=int, help="With --grid: GPUs to give out; default: all.")
@click.option(
    "--on-failure",
    type=click.Choice(["continue", "stop"]),
    default="continue",
    show_default=True,
    help="With --grid: what the other variants do when one fails.",
)
@click.option("--check", type=_path, help="Run the parameter sets of a folder at toy size; compare.")
@click.option("--help-notebook", is_flag=True, help="List the notebook's parameters.")
@click.option("--dry-run", is_flag=True, help="Print what would be run.")
@click.option("--quiet", is_flag=True, help="Print the record's path only.")
@json_option
def batch(**options: Any) -> int:
    """Run NOTEBOOK in the sciml kernel and leave a record of it.

    Its relative paths are relative to the current directory. A pool that it starts ends with it. A parameter set
    (papermill_runs/*.yaml) names its notebook itself, and so does a run that is resumed.
    """
    return _Request(**options).run()


@dataclass
class _Request:
    """What was written on the command line."""

    notebook: Path | None
    pairs: tuple[tuple[str, str], ...]
    file: Path | None
    n_ranks: int | None
    name: str | None
    timeout: float | None
    cell_timeout: float | None
    resume: str | None
    grid: Path | None
    cores: int | None
    gpus: int | None
    on_failure: OnFailure
    check: Path | None
    help_notebook: bool
    dry_run: bool
    quiet: bool
    as_json: bool

    def run(self) -> int:
        if self.check is not None:
            return self._check(self.check)
        if self.help_notebook:
            return self._help_notebook()
        return self._many() if self.grid is not None or self._resumes_a_grid() else self._one()

    @cached_property
    def _set(self) -> ParameterSet | None:
        from sciml_kernel.batch.sets import read_set

        return read_set(self.file) if self.file else None

    @cached_property
    def _given(self) -> dict[str, Any]:
        from sciml_kernel.batch.parameter_files import from_pairs

        return {**(self._set.parameters if self._set else {}), **from_pairs(self.pairs)}

    @property
    def _notebook(self) -> Path | None:
        return self.notebook or (self._set.notebook if self._set else None)

    @property
    def _name(self) -> str | None:
        return self.name or (self._set.path.stem if self._set and self._set.notebook else None)

    @property
    def _launch(self) -> str:
        return shlex.join(["sciml", *sys.argv[1:]])

    def _needs_notebook(self) -> Path:
        if self._notebook is None:
            raise click.UsageError("which notebook? Write NOTEBOOK, or -f with a parameter set that names one")
        return self._notebook

    def _resumes_a_grid(self) -> bool:
        from sciml_kernel import records

        return self.resume is not None and records.find(self.resume).read()["kind"] == "grid"

    def _progress(self) -> Progress:
        from sciml_kernel.batch.progress import Lines, Quiet

        return Quiet() if self.quiet or self.as_json else Lines()

    def _help_notebook(self) -> int:
        from sciml_kernel.batch import source
        from sciml_kernel.batch.parameters import describe

        click.echo(describe(source.read(self._needs_notebook()).node.cells))
        return 0

    def _one(self) -> int:
        from sciml_kernel.batch import plan, run_notebook
        from sciml_kernel.batch.run import as_before, earlier_run

        notebook, given, name, root = self._notebook, self._given, self._name, None
        if self.resume is not None:
            notebook, given, name, root = as_before(earlier_run(self.resume), notebook, given, name, self.n_ranks)
        else:
            notebook = self._needs_notebook()
        if self.dry_run:
            click.echo(plan(notebook, given, name=name, n_ranks=self.n_ranks, runs_root=root).describe())
            return 0
        record = run_notebook(
            notebook,
            given,
            name=name,
            runs_root=root,
            n_ranks=self.n_ranks,
            timeout_s=self.timeout,
            cell_timeout_s=self.cell_timeout,
            progress=self._progress(),
            launch=self._launch,
            resume=self.resume,
            raise_on_signal=False,
        )
        return self._say_end(record.path, record.read())

    def _say_end(self, path: Path, content: dict[str, Any]) -> int:
        from sciml_kernel.batch.variant import EXIT_CODES

        error = content["error"] or {}
        if self.as_json:
            echo_json({"record": str(path), **{key: content[key] for key in ("id", "status", "error", "cells")}})
        elif self.quiet:
            click.echo(path)
        if error:
            where = f" in cell {error['cell']}" if error["cell"] is not None else ""
            click.echo(f"sciml: the run {content['status']}{where}: {error['type']}: {error['message']}", err=True)
            click.echo(f"sciml: see {path / 'notebook.html'}", err=True)
        return EXIT_CODES[content["status"]]

    def _many(self) -> int:
        from sciml_kernel.batch.sweep import plan_grid, run_grid
        from sciml_kernel.batch.variant import EXIT_CODES

        if self.dry_run and self.grid is not None:
            rows = plan_grid(self._needs_notebook(), self.grid, self._given, name=self._name, n_ranks=self.n_ranks)
            for row in rows:
                values = ", ".join(f"{name} = {value!r}" for name, value in row.plan.parameters.items())
                click.echo(f"variant {row.number}: {values}")
            return 0
        found = run_grid(
            self._notebook if self.resume else self._needs_notebook(),
            self.grid,
            self._given,
            name=self._name,
            n_ranks=self.n_ranks,
            cores=self.cores,
            gpus=self.gpus,
            on_failure=self.on_failure,
            timeout_s=self.timeout,
            cell_timeout_s=self.cell_timeout,
            watcher=self._watcher(),
            launch=self._launch,
            resume=self.resume,
            raise_on_signal=False,
        )
        status, path = found.record.read()["status"], found.record.path
        if self.as_json:
            echo_json({"record": str(path), "status": status, "variants": [row.to_json() for row in found.rows]})
        else:
            click.echo(path if self.quiet else f"index: {path / 'index.csv'}")
        return EXIT_CODES[status]

    def _watcher(self) -> Watcher:
        from sciml_kernel.batch.sweep_table import Nobody, PlainLines, TerminalTable

        if self.quiet or self.as_json:
            return Nobody()
        return TerminalTable() if sys.stdout.isatty() else PlainLines()

    def _check(self, place: Path) -> int:
        from sciml_kernel.batch.sets import check_sets

        found = check_sets(place, progress=self._progress())
        if self.as_json:
            echo_json([one.to_json() for one in found])
        for one in [] if self.as_json else found:
            verdict = "as expected" if not one.problems else "NOT as expected"
            click.echo(f"{one.path.name}: {verdict} ({one.seconds:.0f} s)")
            for problem in one.problems:
                click.echo(f"    {problem}")
            if one.record is not None:
                click.echo(f"    see {one.record / 'notebook.html'}")
        return 1 if any(one.problems for one in found) else 0
