"""The story of a batch run: parameters -> plan -> record -> kernel -> children -> a status that is true."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sciml_kernel import records
from sciml_kernel.batch import source
from sciml_kernel.batch.conduct import Limits, conduct
from sciml_kernel.batch.ending import GRACE_S, Ending
from sciml_kernel.batch.literals import as_json, as_source, from_source
from sciml_kernel.batch.parameters import resolve
from sciml_kernel.batch.progress import Progress, Quiet
from sciml_kernel.batch.stages import tagged
from sciml_kernel.config.digest import canonical_json
from sciml_kernel.errors import EnvironmentNotFitError, RunCancelledError, RunInterruptedError, UsageError
from sciml_kernel.pool import Pool
from sciml_kernel.records import Record

if TYPE_CHECKING:
    from sciml_kernel.batch.engine import State

__all__ = [
    "Plan",
    "as_before",
    "earlier_run",
    "execute",
    "open_record",
    "plan",
    "plan_source",
    "raise_signal",
    "recorded_parameters",
    "run_notebook",
]


@dataclass(frozen=True)
class Plan:
    """What would be run. given: the parameters to inject; parameters: all, defaults too; both typed."""

    source: source.Source
    given: Mapping[str, Any]
    parameters: Mapping[str, Any]
    name: str
    runs_root: Path
    kernel: list[str]
    n_ranks: int | None

    @property
    def config_json(self) -> str:
        return canonical_json(
            {
                "notebook": self.source.path.name,
                "notebook_sha256": self.source.sha256,
                "parameters": as_json(dict(self.parameters)),
                # JSON has no tuples, dates or keys that are numbers: this makes the same values again.
                "parameters_python": {name: as_source(value) for name, value in self.parameters.items()},
            }
        )

    @property
    def seeds(self) -> dict[str, int]:
        """Parameters that are seeds by their name: `seed`, `seed_data`, `data_seed`."""
        whole = {name: value for name, value in self.parameters.items() if isinstance(value, int)}
        return {name: int(value) for name, value in whole.items() if "seed" in name.lower().split("_")}

    def describe(self) -> str:
        """Parameters after typing, kernel, record and pool, as text; for `--dry-run`."""
        marks = {name: "given" if name in self.given else "default" for name in self.parameters}
        return "\n".join(
            [
                f"notebook    {self.source.path}",
                *(f"parameter   {name} = {value!r}  [{marks[name]}]" for name, value in self.parameters.items()),
                f"kernel      {shlex.join(self.kernel)}",
                f"record      {self.runs_root}/<utc>-{self.name}-<digest>",
                *self._pool_lines(),
            ]
        )

    def _pool_lines(self) -> list[str]:
        if self.n_ranks is None:
            return ["pool        the notebook has no parameter n_ranks: what it starts is not known here"]
        return [f"pool        {self.n_ranks} ranks, started by the notebook:", Pool.plan(n=self.n_ranks)]


def plan(
    notebook: str | Path,
    parameters: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    runs_root: str | Path | None = None,
    n_ranks: int | None = None,
) -> Plan:
    """Check everything that can be checked before anything is started or written.

    Raises NotFoundError, UsageError (the notebook), ParameterError, EnvironmentNotFitError (no `sciml` kernel).
    """
    return plan_source(source.read(notebook), parameters or {}, name=name, runs_root=runs_root, n_ranks=n_ranks)


def plan_source(
    found: source.Source,
    parameters: Mapping[str, Any],
    *,
    name: str | None = None,
    runs_root: str | Path | None = None,
    n_ranks: int | None = None,
) -> Plan:
    """`plan` of a notebook that has been read already."""
    injected, everything = resolve(found.node.cells, parameters, n_ranks=n_ranks)
    tagged(found.node.cells)
    ranks = everything.get("n_ranks")
    if n_ranks is not None and n_ranks < 1:
        raise UsageError(f"-n must be at least 1 rank, got {n_ranks}")
    return Plan(
        source=found,
        given=injected,
        parameters=everything,
        name=name or found.name,
        runs_root=Path(runs_root).expanduser().absolute() if runs_root is not None else records.runs_root(),
        kernel=_kernel_command(),
        n_ranks=ranks if isinstance(ranks, int) and not isinstance(ranks, bool) else None,
    )


def run_notebook(
    notebook: str | Path | None,
    parameters: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    runs_root: str | Path | None = None,
    n_ranks: int | None = None,
    timeout_s: float | None = None,
    cell_timeout_s: float | None = None,
    grace_s: float = GRACE_S,
    progress: Progress | None = None,
    launch: str | None = None,
    resume: str | Path | Record | None = None,
    raise_on_signal: bool = True,
) -> Record:
    """Run a notebook in the `sciml` kernel and return its record, whose status says how it ended.

    parameters: values by name. n_ranks: value of the parameter n_ranks. timeout_s, cell_timeout_s: seconds for the
    whole run and for each cell. grace_s: seconds between asking a run to end and killing its kernel. launch: command
    that the record notes. resume: an earlier run to go on from: its notebook unless another is given, its parameters
    where none are given; finished stages are kept, and a training goes on from its last checkpoint.

    A cell that fails, a dead kernel or a time limit do not raise: they are in the record. SIGINT and SIGTERM are taken
    over meanwhile (in the main thread) and end the run; then RunInterruptedError or RunCancelledError is raised, so
    that a cell that runs a notebook is interrupted as well, unless raise_on_signal is False. Afterwards there is no
    kernel and no pool of it.

    Raises, before anything is written: NotFoundError, UsageError, ParameterError, EnvironmentNotFitError.
    """
    for limit, value in (("timeout_s", timeout_s), ("cell_timeout_s", cell_timeout_s)):
        if value is not None and value <= 0:
            raise UsageError(f"{limit} must be more than 0 seconds, got {value:g}")
    earlier = earlier_run(resume) if resume is not None else None
    if earlier is not None:
        notebook, parameters, name, runs_root = as_before(earlier, notebook, parameters, name, n_ranks)
    if notebook is None:
        raise UsageError("which notebook? Give one, or a run to resume")
    what = plan(notebook, parameters, name=name, runs_root=runs_root, n_ranks=n_ranks)
    ending = Ending(grace_s)
    with ending.signals():
        extra = {"resumed_from": earlier.id} if earlier is not None else {}
        record = open_record(what, launch=launch, extra=extra)
        conduct(
            record,
            partial(execute, what),
            ending=ending,
            progress=progress or Quiet(),
            limits=Limits(timeout_s, cell_timeout_s),
            earlier=earlier,
        )
    if raise_on_signal and ending.signalled:
        raise_signal(record)
    return record


def raise_signal(record: Record) -> None:
    """Raise what a run ended with that was asked to end by a signal."""
    status = record.read()["status"]
    kind = RunInterruptedError if status == "interrupted" else RunCancelledError
    raise kind(f"run {record.id} ended by a signal: it is {status}")


def earlier_run(resume: str | Path | Record) -> Record:
    """Raises UsageError for a run that goes on still, or is no batch run."""
    record = resume if isinstance(resume, Record) else records.find(resume)
    content = record.read()
    if content["kind"] != "batch":
        raise UsageError(f"run {record.id} is a training; `sciml train --resume` or `Run.resume()` go on with it")
    if content["status"] not in records.END_STATES:
        raise UsageError(f"run {record.id} is {content['status']} still; interrupt it first")
    return record


def as_before(
    earlier: Record,
    notebook: str | Path | None = None,
    parameters: Mapping[str, Any] | None = None,
    name: str | None = None,
    n_ranks: int | None = None,
) -> tuple[Path, dict[str, Any], str, Path]:
    """Notebook, parameters, name and runs root of a resumed run: the earlier one's where nothing else is given."""
    content = earlier.read()
    before = recorded_parameters(earlier)
    if n_ranks is not None:
        before.pop("n_ranks", None)
    given = {**before, **(parameters or {})}
    return Path(notebook or content["extra"]["notebook"]), given, name or content["name"], earlier.path.parent


def recorded_parameters(record: Record) -> dict[str, Any]:
    """All parameters of a batch run, with their types."""
    config, values = record.config(), {}
    for name, text in config["parameters_python"].items():
        try:
            values[name] = from_source(text)
        except Exception:  # of a class that only the notebook knows
            values[name] = config["parameters"][name]
    return values


def open_record(
    what: Plan, *, launch: str | None = None, parent: Path | None = None, extra: Mapping[str, Any] | None = None
) -> Record:
    """The record of a run that is about to begin. launch: the command; default: this process's. parent: of a grid."""
    return records.create(
        what.name,
        what.config_json,
        root=what.runs_root,
        kind="batch",
        parent=parent,
        ranks=what.n_ranks,
        seeds=what.seeds,
        launch=launch or shlex.join(sys.argv),
        code=what.source.path.parent,
        extra={"notebook": str(what.source.path), "cwd": str(Path.cwd()), **(extra or {})},
    )


def execute(what: Plan, state: State) -> None:
    """Run the cells, through papermill and our engine."""
    import papermill

    from sciml_kernel.batch.engine import ENGINE, KERNEL, register

    register()
    with suppress(papermill.PapermillExecutionError):  # what it says is in `state` already, and truer
        papermill.execute_notebook(
            what.source.node,
            None,
            parameters=dict(what.given),
            engine_name=ENGINE,
            kernel_name=KERNEL,
            language="python",
            progress_bar=False,
            state=state,
        )


def _kernel_command() -> list[str]:
    """How the `sciml` kernel is started. Raises EnvironmentNotFitError when there is none, or another environment's."""
    import nbformat
    from nbclient import NotebookClient

    mend = "run: sciml kernel install --sys-prefix"
    try:
        manager: Any = NotebookClient(nbformat.v4.new_notebook(), kernel_name="sciml").create_kernel_manager()
        argv = list(manager.kernel_spec.argv)
    except Exception as error:  # NoSuchKernel is jupyter_client's, which only `jupyter` knows
        raise EnvironmentNotFitError(f"the kernel 'sciml' can't be used: {error}; {mend}") from error
    if os.path.realpath(argv[0]) != os.path.realpath(sys.executable) or _prefix(argv[0]) != _prefix(sys.executable):
        raise EnvironmentNotFitError(
            f"the kernel 'sciml' is of another environment: it runs {argv[0]}, this is {sys.executable}; {mend}"
        )
    return argv


def _prefix(executable: str) -> Path:
    """The environment of an interpreter; a venv's is a link to one that several share."""
    return Path(os.path.realpath(Path(executable).parent.parent))
