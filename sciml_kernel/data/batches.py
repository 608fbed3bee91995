"""From samples by number to batches of tensors. The door between numpy on disk and TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from sciml_kernel.contracts import ShardPlan

__all__ = ["Batches", "batches"]

Read = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class Batches:
    """Iterates over a tf.data.Dataset whose samples come from Python. An exception of `read` comes out as it was
    raised: tf.data would make it a tf.errors.OpError with the traceback as its text."""

    def __init__(self, dataset: tf.data.Dataset, failures: list[BaseException]) -> None:
        self.dataset, self._failures = dataset, failures

    def __len__(self) -> int:
        return int(self.dataset.cardinality())

    def __iter__(self) -> Iterator[Any]:
        self._failures.clear()
        try:
            yield from self.dataset
        except tf.errors.OpError:
            if self._failures:
                raise self._failures[0] from None
            raise


def batches(
    read: Read,
    plan: ShardPlan,
    *,
    spec: tuple[tf.TensorSpec, tf.TensorSpec],
    weighted: bool = False,
    parallel: int = 2,
    prefetch: int = 2,
) -> Batches:
    """The batches of one rank and epoch, in the plan's order, read ahead by a few threads.

    read: sample numbers (batch,), int64 -> x (batch, ...), y (batch, ...) as numpy, of the dtypes and shapes in `spec`.
    It is called from several threads, and must be a function of the numbers alone. weighted: give (x, y, weight) with
    weight (batch,), float32, 0 for padding. parallel: threads. prefetch: batches kept ready.
    """
    x_spec, y_spec = spec
    failures: list[BaseException] = []

    def noted(indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        try:
            return read(indices)
        except BaseException as error:
            failures.append(error)
            raise

    def load(indices: Any, weights: Any) -> tuple[Any, ...]:
        # stateful=False: where operations must be deterministic, tf.data runs a stateful function on one thread only
        x, y = tf.numpy_function(noted, [indices], (x_spec.dtype, y_spec.dtype), stateful=False)
        # numpy_function loses the shapes, and a network wants to know its input
        x.set_shape([plan.indices.shape[1], *x_spec.shape[1:]])
        y.set_shape([plan.indices.shape[1], *y_spec.shape[1:]])
        return (x, y, weights) if weighted else (x, y)

    dataset = tf.data.Dataset.from_tensor_slices((plan.indices, plan.weights.astype(np.float32)))
    dataset = dataset.map(load, num_parallel_calls=parallel, deterministic=True)
    return Batches(dataset.prefetch(prefetch), failures)
