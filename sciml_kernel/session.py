"""The story of one run on one page: config -> pool -> ranks -> metrics -> record.

`train` checks the config in the notebook, opens a record and starts one function, by name, on every rank. It returns
at once with a `Run`. The ranks write the metrics and close the record themselves, so that both are true when this
process is gone; a `Run` only reads them, and writes down what a dead rank could not.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sciml_kernel import config as configs
from sciml_kernel import records, registry
from sciml_kernel.contracts import PARENT_VARIABLE, MetricEvent
from sciml_kernel.contracts import Pool as PoolLike
from sciml_kernel.errors import (
    ConfigError,
    NotFoundError,
    PoolBusyError,
    PoolDeadError,
    RecordError,
    RunCancelledError,
    RunError,
    RunInterruptedError,
    RunTimeoutError,
    SciMLError,
)
from sciml_kernel.metrics.history import HistoryReader
from sciml_kernel.pool import Pool

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from sciml_kernel.views.live import LivePlot

__all__ = ["Run", "check_ranks", "repeat", "runs", "train"]

ENTRY = "sciml_kernel.engine.entry:train"
FOLLOW_S = 0.25


def train(
    recipe: str,
    *,
    data: str | Path,
    pool: PoolLike | None = None,
    settings: str | Path | None = None,
    resume: str | Path | Run | None = None,
    source: str = "notebook",
    **overrides: Any,
) -> Run:
    """Train a recipe on every rank of a pool; return at once.

    recipe: "cosmoflow", "cosmoflow_mlperf" or an installed one. data: folder or file of samples. pool: where; None
    takes the newest live pool. settings: YAML file of settings. resume: a run to go on from, from its last whole
    checkpoint. overrides: settings by leaf or dotted name (`epochs=20`); `sciml config explain RECIPE` lists them.
    source: what the record says of where the overrides came from.

    Raises NotFoundError (recipe, pool), ConfigError (a setting), DataError (the data), PoolBusyError: before anything
    is started or written.
    """
    spec = registry.recipe_spec(recipe)
    layers = [
        configs.Layer("recipe", spec.defaults),
        configs.site_layer(),
        configs.load.file_layer(settings) if settings is not None else None,
        configs.Layer(source, {**overrides, "data.path": str(Path(data).expanduser().resolve())}),
    ]
    config = configs.resolve(spec.name, spec.model_type, [layer for layer in layers if layer is not None]).config
    if spec.check_data is not None:
        spec.check_data(config)
    manifest = spec.describe_data(config.data.path) if spec.describe_data is not None else None
    if resume is not None:
        origin: records.Record | None = _record_of(resume)
    elif origin := records.left_off(configs.digest(configs.to_json(config)), manifest):
        print(f"goes on from run {origin.id}, which the earlier batch run had begun", flush=True)

    ranks: PoolLike = pool if pool is not None else Pool.attach()
    check_ranks(config.data.batch_size, ranks.n)
    if ranks.state == "busy":
        raise PoolBusyError(f"pool {ranks.name!r} is running another call; wait for it, interrupt it or start a pool")

    parent = os.environ.get(PARENT_VARIABLE) or None
    record = records.create(
        spec.name,
        configs.to_json(config),
        kind="train",
        ranks=ranks.n,
        seeds={"train": config.train.seed, "data": config.data.data_seed},
        data=manifest,
        launch=ranks.command(),
        parent=parent,
        extra={"pool": ranks.name, "pool_id": ranks.id, "resumed_from": origin.id if origin else None},
    )
    payload = {
        "run": record.id,
        "record": str(record.path),
        "config": configs.to_json(config),
        "resume_from": str(origin.path) if origin else None,
    }
    try:
        call = ranks.submit(ENTRY, payload)
    except BaseException as error:
        record.close("failed", error)
        raise
    return Run(record, pool=ranks, call=call)


def runs() -> pd.DataFrame:
    """Every run under the runs root, one row each, newest first."""
    return records.list_runs()


class Run:
    """One training, running or over. `Run.open()` finds the newest, `Run.open(name)` one by id, path or beginning.

    A run that another process started, or this kernel before it was restarted, is followed by its record and
    interrupted through its pool.
    """

    def __init__(self, record: records.Record, *, pool: PoolLike | None = None, call: Any = None) -> None:
        self.record = record
        self.pool = pool
        self._call = call
        self._reader = HistoryReader(record.metrics_path)
        self._begun_s = datetime.fromisoformat(record.read()["created_utc"]).timestamp()
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._plots: list[LivePlot] = []
        if call is None and self.status in records.END_STATES:
            self._over.set()
        else:
            watch = self._follow if call is None else self._watch
            threading.Thread(target=watch, name=f"watch {record.id}", daemon=True).start()

    @classmethod
    def open(cls, name: str | Path | None = None) -> Run:
        """A run from its record, over or still going on; the newest by default. Raises NotFoundError."""
        return cls(records.find(name) if name is not None else records.newest())

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def figures_dir(self) -> Path:
        """Where its figures are kept as PNG."""
        return self.record.figures_dir

    @property
    def status(self) -> str:
        """What the record says now: created, running, completed, failed, interrupted, timeout or cancelled."""
        return str(self.record.read()["status"])

    @property
    def history(self) -> xr.Dataset:
        """Metrics so far, read from the record: Dataset with dims step and epoch, variables by metric name."""
        return self._reader.dataset()

    @property
    def predictions(self) -> pd.DataFrame:
        """One row a held-out sample: sample, simulation, true_<parameter>, predicted_<parameter>..."""
        import pandas as pd

        path = self.record.path / "predictions.csv"
        if not path.exists():
            raise RunError(f"run {self.id} left no predictions (status {self.status})")
        return pd.read_csv(path)

    def logs(self, rank: int = 0) -> str:
        """All that a rank printed in this run so far. Raises NotFoundError for a rank that wrote nothing."""
        path = self.record.log_path(rank)
        if not path.exists():
            there = ", ".join(sorted(file.stem.removeprefix("rank-") for file in path.parent.glob("rank-*.log")))
            raise NotFoundError(f"run {self.id} has no log of rank {rank} (there are: {there or 'none'})")
        return path.read_text(encoding="utf-8", errors="replace")

    def wait(self, timeout: float | None = None, *, progress: bool = True) -> Run:
        """Return when the run is over; raise if it ended otherwise than completed.

        A KeyboardInterrupt (the stop button) interrupts the run on all ranks, waits until they have answered, and
        raises RunInterruptedError: the pool lives and a checkpoint is whole. A second one does not wait for the step's
        end: the checkpoint is then the one before, and ranks that don't answer are replaced.

        Raises RemoteError, PoolDeadError, RunInterruptedError, RunTimeoutError (`timeout` seconds are over: the run
        is interrupted), RunCancelledError (SIGTERM in a command), RunError.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        shown, asked = 0, ""
        try:
            while not asked and not self._over.wait(0.2):
                shown = self._print_epochs(shown) if progress else shown
                if deadline is not None and time.monotonic() > deadline:
                    asked = "timeout"
        except KeyboardInterrupt as request:
            asked = getattr(request, "run_status", "interrupted")
        if asked:
            try:
                self.interrupt(status=asked)
            except KeyboardInterrupt:
                self._abort()
        if self._over.is_set():
            self._finish_plots()
        if progress:
            self._print_epochs(shown)
        if asked == self.status == "timeout":
            raise RunTimeoutError(
                f"run {self.id} was stopped after {timeout:g} s; resume() goes on from its checkpoint"
            )
        self._raise_if_bad()
        if asked not in ("", "timeout"):
            raise RunInterruptedError(f"run {self.id} was interrupted as it ended: it is {self.status}")
        return self

    def interrupt(self, timeout: float = 60.0, *, status: str = "interrupted") -> None:
        """Stop at the next step on all ranks, leave a checkpoint, keep the pool; return when all ranks answered.

        status: what the run is then: "interrupted", "timeout" or "cancelled". A run that is over already is left as it
        is. Raises RunTimeoutError when ranks don't answer in time, NotFoundError when its pool can't be found.
        """
        if self._over.is_set():
            return
        if status != "interrupted":
            self.record.update(extra={"stop_status": status})
        if self._call is not None:
            self._call.interrupt()
        else:
            self._its_pool().interrupt(timeout=timeout)
        if not self._over.wait(timeout):
            raise RunTimeoutError(f"run {self.id}: the ranks did not answer the interrupt within {timeout:g} s")

    def resume(self, *, pool: PoolLike | None = None, **overrides: Any) -> Run:
        """Go on from the last whole checkpoint, as a new run with the same config and `overrides`, say more epochs."""
        recipe, path, settings = _settings_of(self.record)
        leaf = {name.split(".")[1]: name for name in settings}
        settings |= {leaf.get(name, name): value for name, value in overrides.items()}
        pool = pool or self.pool
        return train(recipe, data=path, pool=pool, resume=self, source=f"resume of {self.id}", **settings)

    def plot(self) -> LivePlot:
        """Loss, learning rate and samples/s; redrawn in place while the run goes on, kept as a PNG in the record."""
        from sciml_kernel.views.live import LivePlot

        plot = LivePlot(
            self._live_history,
            self._over.is_set,
            title=self.id,
            status=lambda: self.status,
            png_path=self.figures_dir / "training.png",
        )
        self._plots.append(plot)
        return plot

    def __reduce__(self) -> tuple[Any, ...]:
        """A run is its record; so it can be a result of a stage."""
        return Run.open, (str(self.record.path),)

    def __sciml_fingerprint__(self) -> str:
        return f"run {self.id}"

    def __repr__(self) -> str:
        return f"<Run {self.id}: {self.status}>"

    def _watch(self) -> None:
        """Wait for the ranks' answers. What a lost rank could not write into the record is written here."""
        try:
            self._call.result()
        except BaseException as error:
            self._error = error
            hard = isinstance(error, RunInterruptedError) or getattr(error, "type_name", "") == "KeyboardInterrupt"
            with contextlib.suppress(RecordError):  # a rank may close it in this moment, and knows better
                if self.record.read()["status"] not in records.END_STATES:
                    self.record.close("interrupted" if hard else "failed", error)
        finally:
            self._over.set()

    def _follow(self) -> None:
        """Look at the record until it says that the run is over. It may be the first look that finds its ranks dead."""
        while True:
            with contextlib.suppress(SciMLError):  # it is being written, or its pool is gone
                health = self._its_pool().health()
                if health.exits and not health.live:
                    self.record.close("failed", PoolDeadError(health.reason, exits=health.exits))
            with contextlib.suppress(SciMLError):
                if self.status in records.END_STATES:
                    return self._over.set()
            time.sleep(FOLLOW_S)

    def _its_pool(self) -> Any:
        """The pool that the run is on. Raises NotFoundError if it is gone, or another has its name now."""
        extra = self.record.read()["extra"]
        pool: Any = self.pool if self.pool is not None else Pool.attach(extra.get("pool"))
        if pool.id != extra.get("pool_id"):
            raise NotFoundError(f"the pool of run {self.id}, {extra.get('pool')!r}, is gone")
        return pool

    def _abort(self) -> None:
        """Stop now: ranks that do not answer at once are replaced."""
        reason = f"run {self.id} was interrupted twice"
        if self._call is not None:
            self._call.abort(reason)
        else:
            pool = self._its_pool()
            generation = pool.health().generation
            with contextlib.suppress(PoolBusyError):
                pool.interrupt(timeout=1.0)
            if not self._over.wait(1.0):
                pool.taint(generation, reason)
        self._over.wait(5.0)

    def _live_history(self) -> xr.Dataset:
        """For the eyes: the record, and what came by the fast road and is not in it yet (a shared file system lags)."""
        fast = self._call.data(0).get("events", []) if self._call is not None else []
        return self._reader.dataset(newer=[MetricEvent.from_json(event) for event in fast])

    def _finish_plots(self) -> None:
        """Wait for the last redraw, so that the cell's figure does not go on saying "running"."""
        while self._plots:
            with contextlib.suppress(TimeoutError):
                self._plots.pop().wait(10.0)

    def _raise_if_bad(self) -> None:
        state = self.record.read()
        status, error = state["status"], state.get("error") or {}
        if status == "completed":
            return
        if status == "interrupted":
            raise RunInterruptedError(f"run {self.id} was interrupted; resume() goes on from its checkpoint")
        if status in ("timeout", "cancelled"):
            kind = RunTimeoutError if status == "timeout" else RunCancelledError
            raise kind(f"run {self.id} was stopped ({status}); resume() goes on from its checkpoint")
        if isinstance(self._error, SciMLError):
            raise self._error
        what = f"{error.get('type', '')} {error.get('message', '')}".strip() or "see its record"
        raise RunError(f"run {self.id} {status}: {what}") from self._error

    def _print_epochs(self, shown: int) -> int:
        """Print a line for each epoch whose validation is in; return how many were printed."""
        seen = self.history
        if "val/loss" not in seen:
            return shown
        epochs = seen["val/loss"].dropna("epoch")
        epochs = epochs[epochs["epoch_wall_time_s"] >= self._begun_s]  # a resumed run has its predecessor's before
        for epoch in epochs["epoch"].values[shown:]:
            print(
                f"epoch {int(epoch) + 1:3d}  train loss {_in_epoch(seen, 'train/loss', epoch)}"
                f"  val loss {float(epochs.sel(epoch=epoch)):.4f}"
                f"  {_in_epoch(seen, 'train/samples_per_s_avg', epoch)} samples/s",
                flush=True,
            )
        return int(epochs.sizes["epoch"])


def repeat(record: records.Record, pool: PoolLike) -> Run:
    """The same training once more, from its beginning."""
    recipe, path, settings = _settings_of(record)
    return train(recipe, data=path, pool=pool, source=f"repeat of {record.id}", **settings)


def _settings_of(record: records.Record) -> tuple[str, str, dict[str, Any]]:
    """Recipe, path of the data, and all settings by dotted name, of the record's frozen config."""
    config = record.config()
    recipe = config.pop("recipe")
    path = config["data"].pop("path")
    return (
        recipe,
        path,
        {f"{group}.{name}": value for group, fields in config.items() for name, value in fields.items()},
    )


def _in_epoch(seen: xr.Dataset, name: str, epoch: int) -> str:
    """The last value that a step of the epoch reported."""
    if name not in seen:
        return "   -  "
    found = seen[name].values[(seen["epoch_of_step"] == epoch).values & seen[name].notnull().values]
    return f"{found[-1]:<6.4g}" if found.size else "   -  "


def check_ranks(batch_size: int, n_ranks: int) -> None:
    """Raises ConfigError where the ranks can't share a batch evenly."""
    if batch_size % n_ranks:
        lower, upper = batch_size // n_ranks * n_ranks, -(-batch_size // n_ranks) * n_ranks
        words = f"{lower} or {upper}" if lower else str(upper)
        raise ConfigError(f"batch_size {batch_size} not divisible by {n_ranks} ranks; use {words}")


def _record_of(run: str | Path | Run) -> records.Record:
    return run.record if isinstance(run, Run) else records.find(run)
