"""Layer-wise adaptive rate clipping: no layer's gradient is larger than eta times its weights.

g <- g min(eta |w| / |g|, 1), with the norms of arXiv 1808.04728 taken over each tensor (You, Gitman & Ginsburg 2017;
"clip"). The gradients must be averaged over the ranks already: a norm of a rank's own gradient, or of a sum, depends on
the number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

__all__ = ["clip"]


def clip(gradients: Sequence[Any], variables: Sequence[Any], *, eta: float) -> list[Any]:
    """Scale each gradient. A gradient of norm zero stays; a weight of norm zero (a fresh bias) is not frozen by it."""
    ops, clipped = keras.ops, []
    for gradient, variable in zip(gradients, variables, strict=True):
        weight_norm = ops.norm(ops.reshape(ops.cast(variable, "float32"), (-1,)))
        gradient_norm = ops.norm(ops.reshape(ops.cast(gradient, "float32"), (-1,)))
        tiny = 1e-30
        ratio = ops.minimum(eta * weight_norm / ops.maximum(gradient_norm, tiny), 1.0)
        factor = ops.where(weight_norm > 0, ratio, ops.ones_like(ratio))
        clipped.append(gradient * ops.cast(factor, gradient.dtype))
    return clipped
