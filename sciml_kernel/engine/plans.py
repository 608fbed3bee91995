"""Which samples a rank reads next, and what must be the same on all ranks before they read any."""

from __future__ import annotations

import dataclasses
from typing import Any

from sciml_kernel.config import RunConfig
from sciml_kernel.contracts import Collective, ShardPlan, Task
from sciml_kernel.data.sharding import batches_per_epoch, plan_epoch
from sciml_kernel.engine.checkpoint import Position
from sciml_kernel.engine.steps import Steps
from sciml_kernel.errors import DataError

__all__ = ["batches_left", "check_same", "data_order", "train_plan", "validation_plan"]


def train_plan(task: Task, config: RunConfig, collective: Collective, position: Position) -> ShardPlan:
    """This rank's share of what is left of the epoch. Raises DataError if the samples fill no batch."""
    plan = plan_epoch(
        task.n_train,
        batch_size=config.data.batch_size,
        rank=collective.rank,
        size=collective.size,
        seed=config.data.data_seed,
        epoch=position.epoch,
        shuffle=config.data.shuffle,
    )
    rest = slice(position.batch, None)
    return dataclasses.replace(plan, indices=plan.indices[rest], weights=plan.weights[rest])


def validation_plan(task: Task, config: RunConfig, collective: Collective) -> ShardPlan:
    """This rank's share of the validation samples, in their own order, filled up with samples of weight 0."""
    return plan_epoch(
        task.n_validation,
        batch_size=config.data.batch_size,
        rank=collective.rank,
        size=collective.size,
        seed=config.data.data_seed,
        epoch=0,
        shuffle=False,
        padded=True,
    )


def batches_left(task: Task, config: RunConfig, position: Position) -> int:
    """Batches of the position's epoch that are not done yet."""
    return max(0, batches_per_epoch(task.n_train, batch_size=config.data.batch_size) - position.batch)


def data_order(task: Task, config: RunConfig) -> dict[str, Any]:
    """What decides which samples come next. A checkpoint keeps it, and a resume must agree with it."""
    data = config.data
    return {
        "n_train": task.n_train,
        "batch_size": data.batch_size,
        "data_seed": data.data_seed,
        "shuffle": data.shuffle,
        "validation_fraction": data.validation_fraction,
    }


def check_same(task: Task, steps: Steps, collective: Collective) -> None:
    """Compare what must be equal before anything is summed. Raises DataError, on all ranks, naming two that differ."""
    mine = {
        "training samples": task.n_train,
        "validation samples": task.n_validation,
        "weights and optimizer state": [[list(v.shape), str(v.dtype)] for v in steps.variables],
    }
    everyone = collective.gather_json(mine)
    for name in mine:
        for rank, other in enumerate(everyone):
            if other[name] != everyone[0][name]:
                values = "" if isinstance(other[name], list) else f": {everyone[0][name]} and {other[name]}"
                raise DataError(f"{name} differ between rank 0 and rank {rank}{values}; every rank needs the same data")
