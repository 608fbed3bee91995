"""Step size as a function of the optimizer step, counted from 0.

With w warm-up steps and n steps in all, base step size a and final step size b:

- step < w:          a (step + 1) / w
- constant:          a
- linear, cosine:    with p = (step - w) / max(1, n - 1 - w), clipped to 0..1, so that the last step uses b exactly:
  b + (a - b) (1 - p),  b + (a - b) (1 + cos(pi p)) / 2
"""

from __future__ import annotations

import math
from typing import Any

import keras

from sciml_kernel.config import OptimConfig

__all__ = ["StepSize", "step_size"]


def step_size(config: OptimConfig, step: int, *, warmup_steps: int, total_steps: int) -> float:
    """The formula above in plain Python."""
    base, final = config.learning_rate, config.final_learning_rate
    if step < warmup_steps:
        return base * (step + 1) / warmup_steps
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - 1 - warmup_steps))
    if config.schedule == "constant":
        return base
    if config.schedule == "linear":
        return final + (base - final) * (1 - progress)
    return final + (base - final) * (1 + math.cos(math.pi * progress)) / 2


class StepSize(keras.optimizers.schedules.LearningRateSchedule):
    """The same in the graph."""

    def __init__(self, config: OptimConfig, *, warmup_steps: int, total_steps: int) -> None:
        super().__init__()
        self.config, self.warmup_steps, self.total_steps = config, warmup_steps, total_steps

    def __call__(self, step: Any) -> Any:
        ops, config = keras.ops, self.config
        step = ops.cast(step, "float32")
        base, final = config.learning_rate, config.final_learning_rate
        span = float(max(1, self.total_steps - 1 - self.warmup_steps))
        progress = ops.clip((step - self.warmup_steps) / span, 0.0, 1.0)
        if config.schedule == "constant":
            after = ops.ones_like(step) * base
        elif config.schedule == "linear":
            after = final + (base - final) * (1 - progress)
        else:
            after = final + (base - final) * (1 + ops.cos(math.pi * progress)) / 2
        if not self.warmup_steps:
            return after
        return ops.where(step < self.warmup_steps, base * (step + 1) / self.warmup_steps, after)

    def get_config(self) -> dict[str, Any]:
        return {"warmup_steps": self.warmup_steps, "total_steps": self.total_steps}
