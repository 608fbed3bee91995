"""From samples by number to batches of tensors. The door between numpy on disk and TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from sciml_kernel.contracts import ShardPlan

__all__ = ["batches"]

Read = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def batches(
    read: Read,
    plan: ShardPlan,
    *,
    spec: tuple[tf.TensorSpec, tf.TensorSpec],
    weighted: bool = False,
    parallel: int = 2,
    prefetch: int = 2,
) -> tf.data.Dataset:
    """The batches of one rank and epoch, in the plan's order, read ahead by a few threads.

    read: sample numbers (batch,), int64 -> x (batch, ...), y (batch, ...) as numpy, of the dtypes and shapes in `spec`.
    It is called from several threads. weighted: give (x, y, weight) with weight (batch,), float32, 0 for padding.
    An error in `read` ends the iteration with tf.errors.OpError, whose message holds the original one.
    """
    columns: Sequence[np.ndarray] = (plan.indices, plan.weights)
    x_spec, y_spec = spec

    def load(indices: Any, weights: Any) -> tuple[Any, ...]:
        x, y = tf.numpy_function(read, [indices], (x_spec.dtype, y_spec.dtype))
        # numpy_function loses the shapes, and a network wants to know its input
        x.set_shape([plan.indices.shape[1], *x_spec.shape[1:]])
        y.set_shape([plan.indices.shape[1], *y_spec.shape[1:]])
        return (x, y, weights) if weighted else (x, y)

    dataset = tf.data.Dataset.from_tensor_slices((columns[0], columns[1].astype(np.float32)))
    dataset = dataset.map(load, num_parallel_calls=parallel, deterministic=True)
    return dataset.prefetch(prefetch)
