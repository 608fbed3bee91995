"""How weights change: Keras optimizers, step sizes by step, and LARC. Gradients arrive averaged over the ranks.

- `build`       the optimizer of a config
- `schedules`   step size as a function of the step, in the graph and in plain Python
- `larc`        layer-wise clipping of the gradient
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sciml_kernel.config import OptimConfig
    from sciml_kernel.optim.optimizer import Optimizer

__all__ = ["build"]


def build(config: OptimConfig, *, steps_per_epoch: int, epochs: int) -> Optimizer:
    """The optimizer of a config, for a run of `epochs` epochs of `steps_per_epoch` steps. Imports Keras."""
    from sciml_kernel.optim.optimizer import Optimizer

    return Optimizer(config, steps_per_epoch=steps_per_epoch, epochs=epochs)
