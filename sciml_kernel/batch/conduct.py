"""What is done around a notebook's cells: a record that is opened and closed, signals and time limits, pools, children,
pictures and the page. `run` leads here from `sciml batch` and Python, `plugin` from papermill's own command."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sciml_kernel import records
from sciml_kernel.batch import children, outputs
from sciml_kernel.batch.ending import Ending
from sciml_kernel.batch.index_page import renew_index
from sciml_kernel.batch.progress import Progress
from sciml_kernel.batch.report import write_page
from sciml_kernel.contracts import ERROR_VARIABLE, PARENT_VARIABLE, RESUME_VARIABLE, STAGES_VARIABLE
from sciml_kernel.pool.owner import BATCH_OWNER_VARIABLE
from sciml_kernel.pool.processes import ProcessId
from sciml_kernel.records import Record

if TYPE_CHECKING:
    from sciml_kernel.batch.engine import State

__all__ = ["LOG_VARIABLE", "Limits", "conduct"]

LOG_VARIABLE = "SCIML_BATCH_LOG"


@dataclass(frozen=True)
class Limits:
    """Seconds for the whole run and for each cell; None: no limit."""

    run_s: float | None = None
    cell_s: float | None = None


def conduct(
    record: Record,
    cells: Callable[[State], object],
    *,
    ending: Ending,
    progress: Progress,
    limits: Limits,
    copy: Path | None = None,
    earlier: Record | None = None,
) -> None:
    """Run `cells` with a state that belongs to the record, and close the record with how it ended.

    cells: executes the notebook through the engine. copy: another place for the executed notebook. earlier: the run
    that this one goes on from. Afterwards there is no kernel and no pool of it. Raises what is no cell's fault.
    """
    from sciml_kernel.batch.engine import State

    def on_cells(found: list[dict[str, Any]], running: int | None) -> None:
        if running is None and all(cell["status"] == "not_run" for cell in found):
            progress.begin(str(record.path), len(found))
        record.update(cells=found, extra={"running_cell": running})

    began = time.monotonic()
    record.start()
    status, error = "failed", None
    try:
        (record.path / "logs").mkdir(exist_ok=True)
        state = State(
            notebook=record.path / "notebook.ipynb",
            log=record.path / "logs" / "notebook.log",
            env=_environment(record, earlier),
            ending=ending,
            progress=progress,
            cell_timeout_s=limits.cell_s,
            on_cells=on_cells,
            before_shutdown=lambda state: children.wait(record, ending, abandon=state.error is not None),
            copy=copy,
            earlier=earlier.path / "notebook.ipynb" if earlier is not None else None,
        )
        with ending.limit(limits.run_s, "the run"):
            cells(state)
            status, error = _finish(record, state, ending)
        record.update(
            usage={"wall_s": round(time.monotonic() - began, 3), "kernel": state.usage},
            **children.gathered(record),
        )
        status, error = _show(record, state, status, error)
    except BaseException as problem:
        status, error = "failed", records.error_fields(problem)
        raise
    finally:
        ending.close()
        with suppress(Exception):
            children.stop_pools(record.id)
        record.close(status, error)
        if record.read()["parent"] is None:
            with suppress(Exception):  # the run is over and its record closed; a page of all is no part of it
                renew_index(record.path.parent)
        progress.end(status, f"{error['type']}: {error['message']}" if error else "")


def _finish(record: Record, state: State, ending: Ending) -> tuple[str, dict[str, Any] | None]:
    """Stop what is left and judge the children."""
    children.stop_pools(record.id, state.kernel)
    if ending.reason is not None and state.error is None:
        state.fail("", "", "", None)
    error = dict(state.error) if state.error is not None else None
    bad = children.bad_child(record)
    if bad is not None:
        if error is None:
            state.status, error = "failed", bad
        else:
            error |= {key: bad[key] for key in ("rank", "host", "signal", "step") if bad.get(key) is not None}
    return state.status, error


def _show(record: Record, state: State, status: str, error: dict[str, Any] | None) -> tuple[str, dict[str, Any] | None]:
    """Write pictures and page, with the end that the record will have; where that fails, the run does."""
    if state.node is None:
        return status, error
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    content = record.read() | {"status": status, "error": error, "ended_utc": now}
    try:
        outputs.pictures(state.node, record.figures_dir)
        write_page(record, content, record.path / "notebook.html")
    except Exception as problem:
        if error is None:
            message = f"the notebook ran, but its page can't be written: {problem}"
            return "failed", {"type": type(problem).__name__, "message": message}
    return status, error


def _environment(record: Record, earlier: Record | None) -> dict[str, str]:
    resumed = {RESUME_VARIABLE: str(earlier.path)} if earlier is not None else {}
    return {
        **{name: value for name, value in os.environ.items() if name != RESUME_VARIABLE},
        **resumed,
        STAGES_VARIABLE: str(record.path / "logs" / "stages.json"),
        PARENT_VARIABLE: str(record.path),
        children.BATCH_VARIABLE: record.id,
        BATCH_OWNER_VARIABLE: json.dumps(ProcessId.of(os.getpid()).to_json()),
        ERROR_VARIABLE: str(record.path / "logs" / "cell-error.json"),
        LOG_VARIABLE: str(record.path / "logs" / "notebook.log"),
        "SCIML_RUNS": str(record.path.parent),
        # A picture that a plotting library sends to a window is lost.
        "MPLBACKEND": os.environ.get("MPLBACKEND", "module://matplotlib_inline.backend_inline"),
    }
