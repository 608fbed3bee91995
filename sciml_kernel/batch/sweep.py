"""Runs a grid: variants side by side within a budget of cores and GPUs, each a batch run in a process of its own.

The grid has a record as well (kind "grid"): its children are the variants' runs, and `index.csv` and `index.json` in it
hold a row a variant, renewed whenever one changes. A killed grid leaves no process; `resume` runs what is not done.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Protocol

from sciml_kernel import records
from sciml_kernel.batch.budget import Budget, Share
from sciml_kernel.batch.grid import read_grid, variants
from sciml_kernel.batch.index_page import renew_index
from sciml_kernel.batch.literals import as_json, as_source
from sciml_kernel.batch.run import Plan, plan, raise_signal
from sciml_kernel.config.digest import canonical_json
from sciml_kernel.errors import ParameterError, SciMLError, UsageError
from sciml_kernel.records import Record

__all__ = ["Grid", "OnFailure", "Row", "Watcher", "plan_grid", "run_grid"]

OnFailure = Literal["continue", "stop"]
POLL_S = 0.1
KILL_AFTER_S = 90.0  # a run has its own, shorter grace time


@dataclass
class Row:
    """A variant and what became of it. varied: parameter -> value. status: "waiting", "running", an end status, or
    "not_run". run: id. kept: done by the grid that this one goes on from."""

    number: int
    varied: Mapping[str, Any]
    plan: Plan
    status: str = "waiting"
    run: str | None = None
    seconds: float | None = None
    reason: str = ""
    kept: bool = False
    resume: Path | None = None
    process: subprocess.Popen[bytes] | None = None
    share: Share | None = None
    began: float = 0.0
    values: dict[str, float] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        return self.status in (*records.END_STATES, "not_run")

    def to_json(self) -> dict[str, Any]:
        return {
            "variant": self.number,
            "status": self.status,
            "run": self.run,
            "seconds": self.seconds,
            "reason": self.reason,
            "kept": self.kept,
            **as_json(dict(self.varied)),
            **{name: value if value == value and abs(value) != float("inf") else str(value)
               for name, value in self.values.items()},
        }  # fmt: skip


class Watcher(Protocol):
    """Is told of every change, in the grid's thread. Must not raise."""

    def changed(self, grid: Grid, row: Row | None) -> None: ...

    def end(self, grid: Grid) -> None: ...


@dataclass
class Grid:
    """record: of the whole. rows: the variants in order."""

    record: Record
    rows: list[Row]

    def counts(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for row in self.rows:
            found[row.status] = found.get(row.status, 0) + 1
        return found

    def write_index(self) -> None:
        rows = [row.to_json() for row in self.rows]
        records.write_atomic(self.record.path / "index.json", json.dumps(rows, indent=1) + "\n")
        import pandas as pd

        records.write_atomic(self.record.path / "index.csv", pd.DataFrame(rows).to_csv(index=False))


def plan_grid(
    notebook: str | Path,
    grid: str | Path | Mapping[str, Any],
    parameters: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    runs_root: str | Path | None = None,
    n_ranks: int | None = None,
) -> list[Row]:
    """Check every variant before any is run.

    grid: a file, or what one holds. parameters: what all variants have. Raises ParameterError naming the variant.
    """
    found = read_grid(grid) if isinstance(grid, str | Path) else variants(grid)
    rows = []
    for number, varied in enumerate(found, start=1):
        both = [one for one in varied if one in (parameters or {})]
        if both:
            raise ParameterError(f"{both[0]} is in the grid and given for all variants; write it once")
        try:
            one = plan(notebook, {**(parameters or {}), **varied}, name=name, runs_root=runs_root, n_ranks=n_ranks)
        except ParameterError as error:
            raise ParameterError(f"variant {number}: {error}") from error
        rows.append(Row(number, {key: one.parameters[key] for key in varied}, one))
    return rows


def run_grid(
    notebook: str | Path | None = None,
    grid: str | Path | Mapping[str, Any] | None = None,
    parameters: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    runs_root: str | Path | None = None,
    n_ranks: int | None = None,
    cores: int | None = None,
    gpus: int | None = None,
    on_failure: OnFailure = "continue",
    timeout_s: float | None = None,
    cell_timeout_s: float | None = None,
    watcher: Watcher | None = None,
    launch: str | None = None,
    resume: str | Path | Record | None = None,
    raise_on_signal: bool = True,
) -> Grid:
    """Run all variants of a notebook; return when they are over. How each ended is in its row and record.

    grid, parameters: see `plan_grid`. cores, gpus: see `Budget`. on_failure: whether the other variants go on when one
    has failed. timeout_s, cell_timeout_s: of each variant. watcher: who shows it; in a notebook a table by default.
    resume: a grid to go on from: its notebook and variants; those that completed are kept, those that had begun are
    resumed.

    SIGINT and SIGTERM reach every variant, and no further one begins; then RunInterruptedError or RunCancelledError is
    raised, unless raise_on_signal is False. Raises, before anything is written, what
    `plan_grid` and `Budget` raise.
    """
    rows, earlier = _rows(notebook, grid, parameters, name, runs_root, n_ranks, resume)
    budget = Budget(cores, gpus)
    first = rows[0].plan
    record = records.create(
        name or first.name,
        _config(rows),
        root=first.runs_root,
        kind="grid",
        launch=launch or shlex.join(sys.argv),
        code=first.source.path.parent,
        extra={"notebook": str(first.source.path), "cwd": os.getcwd(), "cores": budget.cores, "gpus": budget.n_gpus}
        | ({"resumed_from": earlier.id} if earlier is not None else {}),
    )
    run = _Sweep(Grid(record, rows), budget, on_failure, (timeout_s, cell_timeout_s), watcher or _default_watcher())
    found = run.go()
    if raise_on_signal and run.signalled:
        raise_signal(found.record)
    return found


class _Sweep:
    def __init__(
        self,
        grid: Grid,
        budget: Budget,
        on_failure: OnFailure,
        limits: tuple[float | None, float | None],
        watcher: Watcher,
    ) -> None:
        self.grid, self.budget, self.on_failure, self.limits, self.watcher = grid, budget, on_failure, limits, watcher
        self.asked: signal.Signals | None = None
        self.kill_at = float("inf")
        self.signalled = False
        self.told = 0.0

    def go(self) -> Grid:
        grid, record = self.grid, self.grid.record
        record.start()
        status, error = "failed", None
        try:
            for row in grid.rows:
                if row.kept and row.run:
                    record.add_child(row.run)
            grid.write_index()
            self.watcher.changed(grid, None)
            with self._signals():
                while not all(row.over for row in grid.rows):
                    self._step()
                    time.sleep(POLL_S)
            status, error = self._judge()
        except BaseException as problem:
            status, error = "failed", records.error_fields(problem)
            raise
        finally:
            self._end_all(signal.SIGKILL)
            with suppress(OSError):
                grid.write_index()
            record.close(status, error)
            with suppress(Exception):
                renew_index(record.path.parent)
            self.watcher.end(grid)
        return grid

    def _step(self) -> None:
        for row in self.grid.rows:
            if row.process is not None:
                self._follow(row)
        if time.monotonic() > self.kill_at:
            self._end_all(signal.SIGKILL)
        for row in self.grid.rows:
            if row.status == "waiting":
                if self.asked is not None:
                    row.status = "not_run"
                    self._tell(row)
                elif (share := self.budget.take(row.plan.n_ranks or 1)) is not None:
                    self._start(row, share)

    def _start(self, row: Row, share: Share) -> None:
        what = row.plan
        spec = {
            "notebook": str(what.source.path),
            "parameters": {key: as_source(value) for key, value in what.given.items()},
            "name": what.name,
            "grid": str(self.grid.record.path),
            "variant": row.number,
            "cpus": share.cpus,
            "gpus": share.gpus,
            "resume": str(row.resume) if row.resume else None,
            "timeout_s": self.limits[0],
            "cell_timeout_s": self.limits[1],
            "launch": f"variant {row.number} of {self.grid.record.id}",
            "parent": os.getpid(),
        }
        log = self.grid.record.path / "logs" / f"variant-{row.number}.log"
        with log.open("wb") as file:
            row.process = subprocess.Popen(
                [sys.executable, "-m", "sciml_kernel.batch.variant"],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C at the terminal comes through this process, once
            )
        assert row.process.stdin is not None
        with suppress(BrokenPipeError):
            row.process.stdin.write(json.dumps(spec).encode())
            row.process.stdin.close()
        row.status, row.share, row.began = "running", share, time.monotonic()
        self._tell(row)

    def _follow(self, row: Row) -> None:
        assert row.process is not None
        code = row.process.poll()
        if row.run is None:
            row.run = self._run_of(row.number)
        if row.run is not None and (code is not None or time.monotonic() - self.told > 1.0):
            with suppress(SciMLError):
                row.values = records.final_values(self.record_of(row))
        row.seconds = round(time.monotonic() - row.began, 1)
        if code is None:
            if time.monotonic() - self.told > 1.0:
                self._tell(row)
            return
        row.process = None
        assert row.share is not None
        self.budget.give_back(row.share)
        row.status, row.reason = self._end_of(row, code)
        self._tell(row)
        if row.status != "completed" and self.on_failure == "stop" and self.asked is None:
            self.ask(signal.SIGTERM)

    def record_of(self, row: Row) -> Record:
        return Record(self.grid.record.path.parent / str(row.run))

    def _run_of(self, number: int) -> str | None:
        for child in reversed(self.grid.record.children()):
            with suppress(SciMLError):
                if child.read()["extra"].get("variant") == number and not self._is_kept(child.id):
                    return child.id
        return None

    def _is_kept(self, run: str) -> bool:
        return any(row.kept and row.run == run for row in self.grid.rows)

    def _end_of(self, row: Row, code: int) -> tuple[str, str]:
        """Status and reason of a variant whose process has ended."""
        if row.run is None:
            log = self.grid.record.path / "logs" / f"variant-{row.number}.log"
            words = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["it printed nothing"]
            return "failed", f"ended with code {code} before it had a record: {words[-1][:200]}"
        content = self.record_of(row).read()
        error = content["error"] or {}
        return content["status"], f"{error.get('type')}: {error.get('message')}"[:300] if error else ""

    def _judge(self) -> tuple[str, dict[str, Any] | None]:
        bad = [row for row in self.grid.rows if row.status != "completed"]
        if not bad:
            return "completed", None
        if self.asked is not None and not any(row.status == "failed" for row in bad):
            status = "interrupted" if self.asked == signal.SIGINT else "cancelled"
        else:
            status = "failed"
        first = next((row for row in bad if row.status == status), bad[0])
        varied = ", ".join(f"{name}={value!r}" for name, value in first.varied.items())
        words = f"{len(bad)} of {len(self.grid.rows)} variants did not complete; variant {first.number} ({varied}) "
        return status, {"type": "RunError", "message": words + f"{first.status}: {first.reason}".rstrip(": ")}

    def ask(self, number: signal.Signals) -> None:
        """End all: no further variant begins, those that run get the signal. The second time they are killed."""
        again, self.asked = self.asked is not None, self.asked or number
        self.kill_at = min(self.kill_at, time.monotonic() + (0.0 if again else KILL_AFTER_S))
        self._end_all(signal.SIGKILL if again else number)

    def _end_all(self, number: signal.Signals) -> None:
        for row in self.grid.rows:
            if row.process is not None and row.process.poll() is None:
                with suppress(ProcessLookupError):
                    row.process.send_signal(number)
                if number == signal.SIGKILL:
                    row.process.wait()

    @contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def take(number: int, frame: FrameType | None) -> None:
            self.signalled = True
            self.ask(signal.Signals(number))

        before = {number: signal.signal(number, take) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _tell(self, row: Row) -> None:
        self.told = time.monotonic()
        self.grid.write_index()
        self.watcher.changed(self.grid, row)


def _rows(
    notebook: str | Path | None,
    grid: str | Path | Mapping[str, Any] | None,
    parameters: Mapping[str, Any] | None,
    name: str | None,
    runs_root: str | Path | None,
    n_ranks: int | None,
    resume: str | Path | Record | None,
) -> tuple[list[Row], Record | None]:
    if resume is None:
        if notebook is None or grid is None:
            raise UsageError("a grid needs a notebook and its variants, or a grid to resume")
        return plan_grid(notebook, grid, parameters, name=name, runs_root=runs_root, n_ranks=n_ranks), None
    earlier = resume if isinstance(resume, Record) else records.find(resume)
    content = earlier.read()
    if content["kind"] != "grid":
        raise UsageError(f"run {earlier.id} is no grid; resume it without --grid")
    if content["status"] not in records.END_STATES:
        raise UsageError(f"grid {earlier.id} is {content['status']} still; interrupt it first")
    from sciml_kernel.batch.literals import from_source

    index = json.loads((earlier.path / "index.json").read_text(encoding="utf-8"))
    rows = []
    for before, texts in zip(index, earlier.config()["variants_python"], strict=True):
        given = {key: from_source(text) for key, text in texts.items()}
        what = plan(notebook or content["extra"]["notebook"], given, name=name or content["name"],
                    runs_root=earlier.path.parent)  # fmt: skip
        row = Row(before["variant"], {key: given[key] for key in given if key in before}, what)
        path = earlier.path.parent / before["run"] if before["run"] else None
        if before["status"] == "completed" and path is not None and what.source.sha256 == _sha256_of(earlier):
            row.status, row.run, row.kept, row.seconds = "completed", before["run"], True, before["seconds"]
            row.values = records.final_values(Record(path))
        elif path is not None and path.exists():
            row.resume = path
        rows.append(row)
    return rows, earlier


def _sha256_of(grid: Record) -> str:
    return str(grid.config()["notebook_sha256"])


def _config(rows: Sequence[Row]) -> str:
    source = rows[0].plan.source
    return canonical_json(
        {
            "notebook": source.path.name,
            "notebook_sha256": source.sha256,
            "variants": [as_json(dict(row.varied)) for row in rows],
            "variants_python": [{k: as_source(v) for k, v in row.plan.given.items()} for row in rows],
        }
    )


def _default_watcher() -> Watcher:
    from sciml_kernel.batch.sweep_table import Nobody, NotebookTable
    from sciml_kernel.views.shown import can_show

    return NotebookTable() if can_show() else Nobody()
