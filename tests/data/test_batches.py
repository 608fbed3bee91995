"""The batches of a plan: what, in which order, and what a faulty read looks like."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from sciml_kernel.data.sharding import plan_epoch
from sciml_kernel.errors import DataError

pytestmark = pytest.mark.tf

X = np.random.default_rng(2).integers(0, 300, size=(11, 4, 4, 4, 1)).astype(np.int16)
Y = np.arange(22, dtype=np.float32).reshape(11, 2)


def _read(indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return X[indices], Y[indices]


def _spec() -> Any:
    import tensorflow as tf

    return tf.TensorSpec((None, 4, 4, 4, 1), tf.int16), tf.TensorSpec((None, 2), tf.float32)


def _plan(**kwargs: Any) -> Any:
    return plan_epoch(11, batch_size=4, rank=1, size=2, seed=5, epoch=3, **kwargs)


def test_batches_come_in_the_order_of_the_plan_as_integers_on_the_device() -> None:
    from sciml_kernel.data.batches import batches

    plan = _plan()
    made = batches(_read, plan, spec=_spec(), parallel=4)
    seen = list(made)
    assert len(seen) == len(made) == len(plan.indices) == 2
    for (x, y), indices in zip(seen, plan.indices, strict=True):
        assert (x.dtype.name, x.shape, y.dtype.name) == ("int16", (2, 4, 4, 4, 1), "float32")
        np.testing.assert_array_equal(x.numpy(), X[indices])
        np.testing.assert_array_equal(y.numpy(), Y[indices])
    assert len(list(made)) == 2  # a second pass starts anew


def test_padding_has_weight_zero_and_every_real_sample_counts_once() -> None:
    from sciml_kernel.data.batches import batches

    rows = []
    for rank in (0, 1):
        plan = plan_epoch(11, batch_size=4, rank=rank, size=2, seed=5, epoch=0, shuffle=False, padded=True)
        for _, y, weight in batches(_read, plan, spec=_spec(), weighted=True):
            rows += list(y.numpy()[weight.numpy() > 0, 0])
    assert sorted(rows) == list(Y[:, 0])


def test_an_error_in_a_read_comes_out_as_it_was_raised() -> None:
    from sciml_kernel.data.batches import batches

    plan = _plan()
    bad = int(plan.indices[1, 0])

    def read(indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if bad in indices:
            raise DataError("/data/a.tfrecord, record 3 at byte 99: checksum differs")
        return _read(indices)

    stream = iter(batches(read, plan, spec=_spec()))
    next(stream)
    with pytest.raises(DataError, match=r"a\.tfrecord, record 3 at byte 99"):
        next(stream)


def test_reads_go_on_side_by_side_also_where_operations_must_be_deterministic() -> None:
    import tensorflow as tf

    from sciml_kernel.data.batches import batches

    # Each read waits for the other: on one thread the barrier breaks.
    barrier = threading.Barrier(2, timeout=20)

    def read(indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        barrier.wait()
        return _read(indices)

    # The switch can't be turned back without TensorFlow's internals; every training of this package sets it on CPUs.
    tf.config.experimental.enable_op_determinism()
    tf.random.set_seed(1)
    assert len(list(batches(read, _plan(), spec=_spec(), parallel=2))) == 2
