"""`papermill --engine sciml IN OUT`: papermill's own command or function, with our kernel, record and truth.

papermill has read the notebook and injected the parameters by its own rules when it gets here. They are typed again by
the notebook's `parameters` cell, and refused where papermill has changed what was meant (`-p name 007` is a number to
papermill; `-r name 007` keeps the text). The executed notebook goes to papermill's output path as well as into the
record, whose path is in the notebook's metadata: `papermill.sciml`.

papermill imports this module while it is being imported itself, so nothing here imports papermill at once.
"""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat

from sciml_kernel.batch.conduct import Limits, conduct
from sciml_kernel.batch.ending import Ending
from sciml_kernel.batch.progress import Lines, Quiet
from sciml_kernel.batch.run import open_record, plan_source
from sciml_kernel.batch.source import Source
from sciml_kernel.batch.values import Text
from sciml_kernel.errors import RunCancelledError, RunError, RunInterruptedError, RunTimeoutError

if TYPE_CHECKING:
    from sciml_kernel.batch.engine import State

__all__ = ["INJECTED", "Engine", "run_for_papermill"]

INJECTED = "injected-parameters"
_RAISED = {"interrupted": RunInterruptedError, "timeout": RunTimeoutError, "cancelled": RunCancelledError}


class Engine:
    """papermill's entry point `sciml`, in the form of `papermill.engines.Engine`. The notebook is run in our kernel,
    whatever it names: another one leaves no record."""

    @classmethod
    def execute_notebook(cls, nb: Any, kernel_name: str, **options: Any) -> Any:
        return run_for_papermill(nb, **options)

    @classmethod
    def nb_kernel_name(cls, nb: Any, name: str | None = None) -> str:
        return "sciml"

    @classmethod
    def nb_language(cls, nb: Any, language: str | None = None) -> str:
        return "python"


def run_for_papermill(
    nb: Any,
    *,
    input_path: str | None = None,
    output_path: str | None = None,
    progress_bar: Any = False,
    execution_timeout: float | None = None,
    **options: Any,
) -> Any:
    """Execute papermill's notebook; return it.

    output_path: where papermill keeps the notebook; written whole at every save if it is a local path. progress_bar:
    cells and what they print go to standard error. execution_timeout: seconds for each cell.

    Raises ParameterError and others of `plan` before anything is started; RunInterruptedError, RunTimeoutError,
    RunCancelledError; RunError where the run failed otherwise than by a cell's exception, which papermill raises.
    """
    given = {name: _as_given(value) for name, value in nb.metadata.papermill.get("parameters", {}).items()}
    path = Path(input_path or "notebook.ipynb").absolute()
    plain = Source(path, _without_injected(nb), _sha256(path, nb))
    what = plan_source(plain, given)
    _inject(nb, what.given)
    nb.metadata.papermill["parameters"] = dict(what.given)
    ending = Ending()
    with ending.signals():
        record = open_record(what, launch=shlex.join(sys.argv))
        nb.metadata.papermill["sciml"] = {"record": str(record.path)}

        def cells(state: State) -> None:
            from sciml_kernel.batch.engine import KERNEL, SciMLEngine

            SciMLEngine.execute_notebook(nb, KERNEL, state=state, **options)

        conduct(
            record,
            cells,
            ending=ending,
            progress=Lines(sys.stderr) if progress_bar else Quiet(),
            limits=Limits(cell_s=execution_timeout),
            copy=Path(output_path) if output_path and "://" not in output_path and output_path != "-" else None,
        )
    content = record.read()
    nb.metadata.papermill["sciml"]["status"] = content["status"]
    if content["status"] != "completed":
        error = content["error"] or {}
        words = f"run {record.id} {content['status']}: {error.get('type')}: {error.get('message')}"
        if content["status"] in _RAISED:
            raise _RAISED[content["status"]](words)
        if not any(output.output_type == "error" for cell in nb.cells for output in cell.get("outputs", [])):
            raise RunError(words)
    return nb


def _as_given(value: Any) -> Any:
    return Text(value) if isinstance(value, str) else value


def _without_injected(nb: Any) -> Any:
    return nbformat.from_dict({**nb, "cells": [cell for cell in nb.cells if not _is_injected(cell)]})


def _is_injected(cell: Any) -> bool:
    return INJECTED in cell.metadata.get("tags", [])


def _inject(nb: Any, values: Mapping[str, Any]) -> None:
    """Write the typed values into papermill's cell."""
    from sciml_kernel.batch.engine import translate

    for cell in filter(_is_injected, nb.cells):
        cell.source = translate(values)


def _sha256(path: Path, nb: Any) -> str:
    """Of the file that papermill has read, or of the notebook where that was no file."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return hashlib.sha256(nbformat.writes(nb).encode()).hexdigest()
