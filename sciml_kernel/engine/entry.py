"""One training, called by name on every rank of a pool: `"sciml_kernel.engine.entry:train"`.

Only JSON comes in and goes out. How the run ended is written into its record here, by whoever knows it first: rank 0
where it ended as planned, the rank that raised where it did not.
"""

from __future__ import annotations

import contextlib
import json
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sciml_kernel import config as configs
from sciml_kernel import records, registry
from sciml_kernel.engine import collective as collectives
from sciml_kernel.engine import device, rank_log
from sciml_kernel.engine.interrupt import Interruptible, StopFlag, StopRequested, listening
from sciml_kernel.engine.publish import DataPublisher
from sciml_kernel.engine.usage import Usage
from sciml_kernel.errors import ConfigError, SciMLError
from sciml_kernel.metrics.jsonl import JsonlSink

if TYPE_CHECKING:
    from sciml_kernel.config import RunConfig
    from sciml_kernel.contracts import Sink, Task
    from sciml_kernel.engine.collective import EngineCollective
    from sciml_kernel.engine.loop import Outcome
    from sciml_kernel.engine.report import Reporter

__all__ = ["train"]

_PAYLOAD = ("run", "record", "config", "resume_from")


def train(payload: dict[str, Any]) -> dict[str, Any]:
    """Run one training to its end. Called on all ranks of one MPI world, with the same payload.

    payload: {"run": id, "record": absolute path of the run record, "config": canonical JSON of the RunConfig,
    "resume_from": path of the record to go on from, or None}.

    Returns {"status": "completed" or "interrupted", "epochs": completed, "steps": done, "seconds", "hosts", "devices"},
    the last two by rank. Raises whatever ended the training; the record then says "failed" with type, message, rank,
    host and step ("interrupted" after a second SIGINT).
    """
    missing = [name for name in _PAYLOAD if name not in payload]
    if missing:
        raise ConfigError(f"the payload of a training lacks {', '.join(missing)}; it needs {', '.join(_PAYLOAD)}")
    record = records.Record(Path(payload["record"]))
    where = _Where()
    stop = StopFlag()
    rank = collectives.launch_rank() or 0
    if rank == 0:  # at once: the process that asked for the training may end before TensorFlow is imported
        record.start(records.this_process())
    with rank_log.kept(record.log_path(rank)), listening(stop), _failure_noted(record, where):
        return _train(payload, record, stop, where)


def _stopped_as(record: records.Record) -> str:
    """What an interrupted run is called: whoever stopped it at a time limit or for a SIGTERM has noted that."""
    return str(record.read()["extra"].get("stop_status", "interrupted"))


class _Where:
    """What is known of the place of a failure."""

    reporter: Any = None

    @property
    def step(self) -> int | None:
        """The step under way, counted from 1; between epochs and before the first: steps done."""
        return self.reporter.under_way if self.reporter is not None else None


def _train(payload: Mapping[str, Any], record: records.Record, stop: StopFlag, where: _Where) -> dict[str, Any]:
    started = time.perf_counter()
    config = _config(payload["config"])
    device.quiet()
    collective = collectives.make(config.train.collective)
    with collective.explained():
        return _train_together(payload, config, collective, record, stop, where, started)


def _train_together(
    payload: Mapping[str, Any],
    config: RunConfig,
    collective: EngineCollective,
    record: records.Record,
    stop: StopFlag,
    where: _Where,
    started: float,
) -> dict[str, Any]:
    usage = Usage()
    name = device.configure(
        local_rank=collective.local_rank, local_size=collective.local_size, precision=config.train.precision
    )
    device.seed_all(config.train.seed)
    everyone = collective.gather_json({"host": platform.node(), "device": name})
    hosts, devices = [one["host"] for one in everyone], [one["device"] for one in everyone]
    if collective.rank == 0:
        record.update(ranks=collective.size, hosts=list(dict.fromkeys(hosts)), devices=devices)
        print(f"{collective.size} rank{'s' * (collective.size > 1)}: {'; '.join(dict.fromkeys(devices))}", flush=True)
    with _sinks(record, collective.rank) as sinks:
        outcome = _fit(payload, config, record, collective, sinks, stop, where)
    used = collective.gather_json(usage.read())  # waits for all: a rank that fails at the very end completes no run
    if collective.rank == 0:
        ranks = [{"rank": i, "host": host, **one} for i, (host, one) in enumerate(zip(hosts, used, strict=True))]
        record.update(usage={"wall_s": round(time.perf_counter() - started, 3), "ranks": ranks})
        record.close(_stopped_as(record) if outcome.status == "interrupted" else outcome.status)
    return {
        "status": outcome.status,
        "epochs": outcome.position.epoch,
        "steps": outcome.position.step,
        "seconds": time.perf_counter() - started,
        "hosts": hosts,
        "devices": devices,
    }


def _fit(
    payload: Mapping[str, Any],
    config: RunConfig,
    record: records.Record,
    collective: EngineCollective,
    sinks: Sequence[Sink],
    stop: StopFlag,
    where: _Where,
) -> Outcome:
    """Build the task and the optimizer and hand them to the loop. TensorFlow is imported from here on."""
    from sciml_kernel import optim
    from sciml_kernel.data.sharding import batches_per_epoch
    from sciml_kernel.engine.carry import carry
    from sciml_kernel.engine.checkpoint import Checkpoints
    from sciml_kernel.engine.loop import Loop
    from sciml_kernel.engine.plans import data_order
    from sciml_kernel.engine.report import Reporter

    where.reporter = Reporter(
        payload["run"],
        rank=collective.rank,
        sinks=sinks,
        every_s=config.train.report_every_s,
        n_per_step=config.data.batch_size,
        say=lambda line: print(line, flush=True),
    )
    task = _prepare(config, collective, stop)
    if task is None:
        return _not_begun(payload, record, collective, where.reporter, sinks)
    steps_per_epoch = batches_per_epoch(task.n_train, batch_size=config.data.batch_size)
    return Loop(
        task=task,
        optimizer=optim.build(config.optim, steps_per_epoch=max(1, steps_per_epoch), epochs=config.train.epochs),
        config=config,
        collective=collective,
        reporter=where.reporter,
        checkpoints=Checkpoints(
            record.checkpoints_dir,
            digest=configs.digest(payload["config"]),
            order=data_order(task, config),
            rank=collective.rank,
        ),
        directory=record.path,
        stop=stop,
        resume_from=_checkpoints_of(payload["resume_from"]) if payload["resume_from"] else None,
        on_resume=lambda position: (
            carry(Path(payload["resume_from"]), record.path, payload["run"], position, sinks)
            if collective.rank == 0
            else None
        ),
    ).fit()


def _prepare(config: RunConfig, collective: EngineCollective, stop: StopFlag) -> Task | None:
    """The recipe's task; None, on every rank, where one was interrupted meanwhile."""
    recipe = registry.load_recipe(config.recipe)  # an interrupted import can't be done again
    ranks = Interruptible(collective, stop)
    try:
        with stop.breaking():
            task = recipe.prepare(config, collective=ranks)
            ranks.settle()
    except StopRequested as stopped:
        if stopped.rank is None:
            ranks.leave()
        return None
    return task


def _not_begun(
    payload: Mapping[str, Any],
    record: records.Record,
    collective: EngineCollective,
    reporter: Reporter,
    sinks: Sequence[Sink],
) -> Outcome:
    """How a training ends that was interrupted before its first step. What it was to go on from stays to go on from."""
    from sciml_kernel.engine import checkpoint
    from sciml_kernel.engine.carry import carry
    from sciml_kernel.engine.loop import Outcome

    position = checkpoint.Position()
    if payload["resume_from"] and collective.rank == 0:
        found = checkpoint.newest(_checkpoints_of(payload["resume_from"]), say=reporter.say)
        position = found.position
        record.checkpoints_dir.mkdir(parents=True, exist_ok=True)
        records.write_atomic(record.checkpoints_dir / found.path.name, found.path.read_bytes())
        carry(Path(payload["resume_from"]), record.path, payload["run"], position, sinks)
    reporter.say("interrupted before the first step" + ("" if payload["resume_from"] else "; there is no checkpoint"))
    return Outcome("interrupted", position)


def _checkpoints_of(resume_from: str) -> Path:
    return Path(resume_from) / "checkpoints"


def _config(text: str) -> RunConfig:
    """The config of the payload. Raises NotFoundError for its recipe, ConfigError for its fields."""
    try:
        recipe = json.loads(text)["recipe"]
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"the payload's config is no JSON of a RunConfig: {error!r}") from error
    return configs.from_json(text, registry.recipe_spec(recipe).model_type)


@contextlib.contextmanager
def _sinks(record: records.Record, rank: int) -> Iterator[list[Sink]]:
    """Where rank 0's events go: the file, which is the truth, before the fast road."""
    if rank != 0:
        yield []
        return
    with JsonlSink(record.metrics_path) as file, contextlib.closing(DataPublisher()) as fast:
        yield [file, fast]


@contextlib.contextmanager
def _failure_noted(record: records.Record, where: _Where) -> Iterator[None]:
    """Write what ends the training into the record, and pass it on. The first rank to fail is the one that is kept."""
    try:
        yield
    except BaseException as error:
        rank = collectives.launch_rank() or 0
        with contextlib.suppress(AttributeError):  # an exception with slots
            error.step = where.step  # type: ignore[attr-defined]  # the pool puts it before the message
        entry = {**records.error_fields(error), "rank": rank, "host": platform.node(), "step": where.step}
        print(f"[rank {rank} @ {entry['host']}, step {entry['step']}] {entry['type']}: {entry['message']}", flush=True)
        # the record may be ended already, by another rank or by the pool, and must not hide the error
        with contextlib.suppress(SciMLError):
            record.close(_stopped_as(record) if isinstance(error, KeyboardInterrupt) else "failed", entry)
        raise
