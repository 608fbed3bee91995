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
from sciml_kernel.engine.interrupt import StopFlag, listening
from sciml_kernel.engine.publish import DataPublisher
from sciml_kernel.errors import ConfigError, SciMLError
from sciml_kernel.metrics.jsonl import JsonlSink

if TYPE_CHECKING:
    from sciml_kernel.config import RunConfig
    from sciml_kernel.contracts import Sink
    from sciml_kernel.engine.collective import EngineCollective
    from sciml_kernel.engine.loop import Outcome

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
    with rank_log.kept(record.log_path(rank)), listening(stop), _failure_noted(record, where):
        return _train(payload, record, stop, where)


class _Where:
    """What is known of the place of a failure."""

    reporter: Any = None

    @property
    def step(self) -> int | None:
        return self.reporter.position.step if self.reporter is not None else None


def _train(payload: Mapping[str, Any], record: records.Record, stop: StopFlag, where: _Where) -> dict[str, Any]:
    started = time.perf_counter()
    config = _config(payload["config"])
    device.quiet()
    collective = collectives.make(config.train.collective)
    name = device.configure(
        local_rank=collective.local_rank, local_size=collective.local_size, precision=config.train.precision
    )
    device.seed_all(config.train.seed)
    everyone = collective.gather_json({"host": platform.node(), "device": name})
    hosts, devices = [one["host"] for one in everyone], [one["device"] for one in everyone]
    if collective.rank == 0:
        record.start(records.this_process())
        record.update(ranks=collective.size, hosts=list(dict.fromkeys(hosts)), devices=devices)
        print(f"{collective.size} rank{'s' * (collective.size > 1)}: {'; '.join(dict.fromkeys(devices))}", flush=True)
    with _sinks(record, collective.rank) as sinks:
        outcome = _fit(payload, config, record, collective, sinks, stop, where)
    collective.barrier()  # a rank that fails at the very end has no completed run
    if collective.rank == 0:
        record.close(outcome.status)
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
    task = registry.load_recipe(config.recipe).prepare(config, collective=collective)
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
        resume_from=Path(payload["resume_from"]) / "checkpoints" if payload["resume_from"] else None,
    ).fit()


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
        entry = {**records.error_fields(error), "rank": rank, "host": platform.node(), "step": where.step}
        print(f"[rank {rank} @ {entry['host']}, step {entry['step']}] {entry['type']}: {entry['message']}", flush=True)
        # the record may be ended already, by another rank or by the pool, and must not hide the error
        with contextlib.suppress(SciMLError):
            record.close("interrupted" if isinstance(error, KeyboardInterrupt) else "failed", entry)
        raise
