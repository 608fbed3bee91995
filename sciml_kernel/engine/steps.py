"""The two compiled steps, and the state that they change."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from sciml_kernel.contracts import Collective, Task
from sciml_kernel.errors import ConfigError, DataError

__all__ = ["Steps", "check_shapes"]

_SEED_STRIDE = 1_000_003
MOST_TIMED_RANKS = 1024
"""Above so many ranks nobody is timed: the times travel in the vector that each step sums."""


class Steps:
    """Model, optimizer and collective of one rank as two `tf.function`s.

    Nothing is done to a gradient before it is the mean over the ranks: a norm (LARC), a clip or a lag of a rank's own
    gradient would depend on the number of ranks.
    """

    def __init__(self, task: Task, optimizer: Any, collective: Collective) -> None:
        self.task, self.optimizer, self.collective = task, optimizer, collective
        self.model = task.model
        optimizer.build(self.model.trainable_variables)
        weights = {id(variable) for variable in self.model.weights}
        self._seeds = [v for v in self.model.variables if id(v) not in weights and v.dtype in ("int64", "uint32")]
        self.timed = 1 < collective.size <= MOST_TIMED_RANKS
        # On a GPU a call returns before its step is over: the step itself then notes when its all-reduce was.
        self._averaged_at = tf.Variable(0.0, dtype=tf.float64) if tf.config.list_logical_devices("GPU") else None
        self._train, self._validate = _compiled(self._train_step), _compiled(self._validate_step)

    @property
    def variables(self) -> list[Any]:
        """All that a step reads and changes and that is equal on all ranks: weights and optimizer state."""
        return [*self.model.weights, *self.optimizer.variables]

    @property
    def seeds(self) -> list[Any]:
        """State of the model's random generators (dropout): (2,), integers [seed, counter] each. A rank's own."""
        return list(self._seeds)

    def share(self) -> None:
        """Give every rank the state of rank 0; then part the random generators, so that masks differ by rank."""
        self.collective.broadcast_variables([*self.variables, *self._seeds])
        for variable in self._seeds:
            state = np.array(variable.numpy())
            state[0] += self.collective.rank * _SEED_STRIDE
            variable.assign(state)

    def train(self, x: Any, y: Any, stop: bool, since: float) -> Any:
        """One optimizer step. Returns a tensor, float32: mean loss over all ranks, number of ranks asked to stop, and,
        where ranks are timed, the seconds that each was busy before its gradients were ready, by rank.

        It is not read here: that would wait for the device. since: Unix time from which this rank counts as busy: when
        the call before returned, or when the wait for the data began.
        """
        return self._train(
            tf.convert_to_tensor(x),
            tf.convert_to_tensor(y),
            tf.constant(float(stop)),
            tf.constant(since, dtype=tf.float64),
        )

    def validate(self, x: Any, y: Any, weight: Any, stop: bool) -> tuple[dict[str, np.ndarray], Any, bool]:
        """One batch in inference mode: this rank's sums (float64 or int64, to add up many), its predictions, a tensor
        (batch, ...), float32, and whether a rank was asked to stop."""
        sums, prediction, stops = self._validate(
            tf.convert_to_tensor(x), tf.convert_to_tensor(y), tf.convert_to_tensor(weight), tf.constant(float(stop))
        )
        return {name: _wide(value.numpy()) for name, value in sums.items()}, prediction, float(stops) > 0

    def learning_rate(self) -> float:
        """The optimizer's step size now."""
        return float(self.optimizer.learning_rate)

    def average_statistics(self) -> None:
        """Average the moving statistics (batch normalisation) over the ranks: each rank's have seen its share only."""
        moving = [v for v in self.model.non_trainable_weights if str(v.dtype).startswith("float")]
        if self.collective.size == 1 or not moving:
            return
        total = self.collective.sum_arrays({str(i): np.asarray(v.numpy(), np.float64) for i, v in enumerate(moving)})
        for i, variable in enumerate(moving):
            variable.assign(total[str(i)] / self.collective.size)

    def _train_step(self, x: Any, y: Any, stop: Any, since: Any) -> Any:
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            prediction = self.model(x, training=True)
            check_shapes(y, prediction)
            loss = self.task.loss(y, prediction)
            if loss.shape.rank != 0:
                raise ConfigError(f"the task's loss has shape {tuple(loss.shape)}; it must be one number a batch")
            objective = tf.add_n([loss, *(tf.cast(term, loss.dtype) for term in self.model.losses)])
        gradients = tape.gradient(objective, variables)
        lost = [v.path for v, gradient in zip(variables, gradients, strict=True) if gradient is None]
        if lost:
            raise ConfigError(f"the loss does not depend on {', '.join(lost)}; leave these weights out of the model")
        busy = self._busy(since, after=[loss, *gradients]) if self.timed else None
        gradients = self.collective.average_gradients(gradients)
        if busy is not None and self._averaged_at is not None:
            self._averaged_at.assign(_time_after(gradients))
        self.optimizer.apply(gradients, variables)
        # one sum for all that the ranks tell each other: the times cost no collective of their own
        mine = tf.stack([tf.cast(loss, tf.float32), stop])
        sums = self.collective.sum_in_graph(mine if busy is None else tf.concat([mine, busy], axis=0))
        return tf.concat([[sums[0] / self.collective.size], sums[1:]], axis=0)

    def _busy(self, since: Any, after: list[Any]) -> Any:
        """(size,), float32: this rank's busy seconds at its own place, else 0."""
        begin = since if self._averaged_at is None else tf.maximum(since, self._averaged_at.read_value())
        # clocks may be set back
        seconds = tf.cast(tf.maximum(_time_after(after) - begin, 0.0), tf.float32)
        return seconds * tf.one_hot(self.collective.rank, self.collective.size, dtype=tf.float32)

    def _validate_step(self, x: Any, y: Any, weight: Any, stop: Any) -> tuple[dict[str, Any], Any, Any]:
        prediction = self.model(x, training=False)
        check_shapes(y, prediction)
        sums = self.task.validation_sums(y, prediction, weight)
        return sums, tf.cast(prediction, tf.float32), self.collective.sum_in_graph(stop)


def _time_after(tensors: list[Any]) -> Any:
    """Unix time, float64, when all the tensors have been computed.

    tf.timestamp is refused where operations must be deterministic, and Python's clock is not. On a GPU an operation is
    over for TensorFlow once its kernels are queued; Python gets a number that is queued behind all of them, and is
    called when that has been copied to the host. (Not exercised on a GPU.)
    """
    with tf.control_dependencies(tensors):
        last = tf.reshape(tensors[0], [-1])[:1]
    now = tf.numpy_function(lambda _: np.float64(time.time()), [last], tf.float64, stateful=True)
    return tf.ensure_shape(now, ())


def _compiled(step: Callable[..., Any]) -> Any:
    function = tf.function(step, autograph=False)
    # each training compiles its own; several in one process look to TensorFlow like one that is compiled in vain
    function._omit_frequent_tracing_warning = True
    return function


def check_shapes(target: Any, prediction: Any) -> None:
    """Refuse a target that would be broadcast against the prediction: (64, 1) against (1, 3) gives a loss, and a wrong
    one. Allowed: equal shapes, or class numbers (integers) against scores with one axis more.

    Called while a step is traced, that is before the first one; what is not known then is checked in each step.

    Raises DataError (tf.errors.InvalidArgumentError from inside a step).
    """
    wanted, got = target.shape, prediction.shape
    if target.dtype.is_integer and wanted.rank is not None and got.rank == wanted.rank + 1:
        got, seen = got[:-1], tf.shape(prediction)[:-1]
    else:
        seen = tf.shape(prediction)
    if wanted.rank != got.rank or not wanted.is_compatible_with(got):
        raise DataError(
            f"the network predicts {_words(prediction.shape)} but the target is {_words(wanted)}: they would be "
            "broadcast against each other; mend the network's output or the data"
        )
    if not (wanted.is_fully_defined() and got.is_fully_defined()):
        tf.debugging.assert_equal(tf.shape(target), seen, message="shapes of target and prediction differ")


def _words(shape: Any) -> str:
    return f"({', '.join('batch' if n is None else str(n) for n in shape)})" if shape.rank is not None else "(unknown)"


def _wide(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, dtype=np.int64 if array.dtype.kind in "iub" else np.float64)
