"""The optimizer that the loop uses: LARC, then a Keras optimizer with its step size by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from sciml_kernel.config import OptimConfig
from sciml_kernel.optim.larc import clip
from sciml_kernel.optim.schedules import StepSize

__all__ = ["Optimizer"]


class Optimizer:
    """Adam (momentum, 0.999) or SGD with momentum.

    `variables` is all of its state, for a checkpoint; `learning_rate` the size of the next step.
    """

    def __init__(self, config: OptimConfig, *, steps_per_epoch: int, epochs: int) -> None:
        self.config = config
        schedule = StepSize(
            config, warmup_steps=round(config.warmup_epochs * steps_per_epoch), total_steps=steps_per_epoch * epochs
        )
        if config.optimizer == "adam":
            self._inner = keras.optimizers.Adam(schedule, beta_1=config.momentum, beta_2=0.999)
        else:
            self._inner = keras.optimizers.SGD(schedule, momentum=config.momentum)

    def build(self, variables: Sequence[Any]) -> None:
        self._inner.build(variables)

    def apply(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """One step. gradients: averaged over the ranks, in the order of the variables."""
        if self.config.larc:
            gradients = clip(gradients, variables, eta=self.config.larc_eta)
        self._inner.apply(gradients, variables)

    @property
    def variables(self) -> list[Any]:
        return list(self._inner.variables)

    @property
    def learning_rate(self) -> float:
        return float(self._inner.learning_rate)
