"""What every `contracts.Collective` must do, on any number of ranks.

In one process: derive a class from `CollectiveContract` and override the fixture `collective`. Over ranks: run this
module on each of them, `mpiexec -n 2 python -m sciml_kernel.testing.collective_suite --collective horovod --out DIR`;
rank r writes `rank-<r>.json`: {check: "" or the traceback}. A check that fails on one rank may leave the others
waiting, so give it a time limit.

Each check takes the collective. Expected values are closed forms in rank r and size n: sum of (r + 1) is n (n + 1) / 2.
"""

from __future__ import annotations

import argparse
import json
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sciml_kernel.contracts import Collective
from sciml_kernel.errors import DataError

__all__ = ["CHECKS", "CollectiveContract", "run_all"]


def fulfils_the_protocol(collective: Collective) -> None:
    assert isinstance(collective, Collective)
    assert 0 <= collective.rank < collective.size
    assert 0 <= collective.local_rank <= collective.rank


def averages_gradients_of_all_ranks(collective: Collective) -> None:
    import tensorflow as tf

    r, n = collective.rank, collective.size
    rows = tf.reshape(tf.range(6.0), (2, 3))

    @tf.function(autograph=False)
    def averaged() -> Any:
        return collective.average_gradients([rows * (r + 1), tf.constant(float(r)), tf.fill([4], float(r * r))])

    matrix, scalar, vector = averaged()
    np.testing.assert_allclose(matrix, rows * (n + 1) / 2, rtol=1e-6)  # mean of r + 1
    np.testing.assert_allclose(scalar, (n - 1) / 2, rtol=1e-6)  # mean of r
    np.testing.assert_allclose(vector, np.full(4, (n - 1) * (2 * n - 1) / 6), rtol=1e-6)  # mean of r^2
    assert matrix.shape == (2, 3)
    assert scalar.shape == ()


def keeps_dtypes_of_gradients(collective: Collective) -> None:
    import tensorflow as tf

    @tf.function(autograph=False)
    def averaged() -> Any:
        return collective.average_gradients(
            [tf.fill([3], tf.cast(collective.rank, dtype)) for dtype in (tf.float64, tf.float32, tf.float64)]
        )

    found = averaged()
    assert [tensor.dtype for tensor in found] == [tf.float64, tf.float32, tf.float64]
    for tensor in found:
        np.testing.assert_allclose(tensor, (collective.size - 1) / 2)


def averages_sparse_gradients_as_dense_ones(collective: Collective) -> None:
    import tensorflow as tf

    @tf.function(autograph=False)
    def averaged() -> Any:
        # row r of a table of n rows, as the gradient of a look-up gives it
        rows = tf.constant([collective.rank])
        return collective.average_gradients(
            [tf.IndexedSlices(tf.ones((1, 2)), rows, tf.constant([collective.size, 2]))]
        )

    np.testing.assert_allclose(averaged()[0], np.full((collective.size, 2), 1 / collective.size), rtol=1e-6)


def average_of_no_gradients_is_none(collective: Collective) -> None:
    assert collective.average_gradients([]) == []


def sums_in_the_graph(collective: Collective) -> None:
    import tensorflow as tf

    n = collective.size

    @tf.function(autograph=False)
    def summed(x: Any) -> Any:
        return collective.sum_in_graph(x), collective.sum_in_graph(x * 10.0)

    for i_call in range(3):  # the second call runs the same graph again
        ones, tens = summed(tf.constant([collective.rank + 1.0, i_call]))
        np.testing.assert_allclose(ones, [n * (n + 1) / 2, n * i_call])
        np.testing.assert_allclose(tens, [5 * n * (n + 1), 10 * n * i_call])


def keeps_the_order_inside_a_graph(collective: Collective) -> None:
    """Different collectives between which no data flows are not mixed up: same order on all ranks, or by name."""
    import tensorflow as tf

    n = collective.size

    @tf.function(autograph=False)
    def mixed() -> Any:
        one = tf.constant(float(collective.rank))
        return [
            collective.sum_in_graph(one),
            *collective.average_gradients([one + 1, one + 2]),
            collective.sum_in_graph(one + 3),
            *collective.average_gradients([one + 4]),
        ]

    base = (n - 1) / 2  # mean of r
    for _ in range(10):
        found = [float(value) for value in mixed()]
        np.testing.assert_allclose(found, [n * base, base + 1, base + 2, n * (base + 3), base + 4], rtol=1e-6)


def broadcasts_the_values_of_rank_0(collective: Collective) -> None:
    import keras
    import tensorflow as tf

    r = collective.rank
    variables = [
        keras.Variable(np.full((2, 2), r + 5.0, np.float32)),
        keras.Variable(np.array([1 << 40, r]), dtype="int64", trainable=False),
        keras.Variable(float(r), dtype="float32"),
        tf.Variable([r + 0.5], dtype=tf.float64),
    ]
    collective.broadcast_variables(variables)
    np.testing.assert_array_equal(variables[0], np.full((2, 2), 5.0))
    np.testing.assert_array_equal(variables[1], [1 << 40, 0])
    np.testing.assert_array_equal(variables[2], 0.0)
    np.testing.assert_array_equal(variables[3], [0.5])
    collective.broadcast_variables([])


def broadcasts_models_whose_layer_names_differ(collective: Collective) -> None:
    import keras

    for _ in range(collective.rank):  # somebody has played on this rank: its names count up
        keras.layers.Dense(1)
    layer = keras.layers.Dense(2, kernel_initializer=keras.initializers.Constant(collective.rank + 1.0))
    layer.build((None, 3))
    collective.broadcast_variables(layer.variables)
    np.testing.assert_array_equal(layer.kernel, np.ones((3, 2)))


def sums_named_arrays(collective: Collective) -> None:
    r, n = collective.rank, collective.size
    arrays = {
        "confusion": np.full((3, 3), r + 1, dtype=np.int64),
        "big": np.array([1 << 53, 1], dtype=np.int64),  # 2^53 + 1 is no float64
        "loss": np.array(0.1 * (r + 1)),
        "empty": np.zeros((0, 2)),
    }
    found = collective.sum_arrays(dict(reversed(arrays.items())) if r else arrays)  # the order of keys is nothing
    np.testing.assert_array_equal(found["confusion"], np.full((3, 3), n * (n + 1) // 2))
    np.testing.assert_array_equal(found["big"], [n << 53, n])
    np.testing.assert_allclose(found["loss"], 0.05 * n * (n + 1), rtol=1e-12)
    assert found["loss"].shape == ()
    assert found["empty"].shape == (0, 2)
    assert found["confusion"].dtype == np.int64
    assert collective.sum_arrays({}) == {}


def does_not_change_what_it_sums(collective: Collective) -> None:
    mine = np.array([1.0, 2.0])
    found = collective.sum_arrays({"a": mine})["a"]
    found += 1
    np.testing.assert_array_equal(mine, [1.0, 2.0])


def refuses_arrays_that_differ_between_ranks(collective: Collective) -> None:
    if collective.size == 1:
        return
    with pytest.raises(DataError, match=r"'a' differs between the ranks: float64 \(2,\) on rank 0"):
        collective.sum_arrays({"a": np.zeros(2 + collective.rank)})
    with pytest.raises(DataError, match=r"'only_here' differs .* absent"):
        collective.sum_arrays({"a": np.zeros(1)} | ({"only_here": np.zeros(1)} if collective.rank == 0 else {}))
    collective.barrier()  # and goes on working


def refuses_a_dtype_that_can_not_be_summed(collective: Collective) -> None:
    with pytest.raises(DataError, match="'flag' is bool"):
        collective.sum_arrays({"flag": np.array([True])})


def gathers_json_by_rank(collective: Collective) -> None:
    r, n = collective.rank, collective.size
    value = {"rank": r, "text": "é\n" * (r + 1), "list": [r] * (1000 * r), "none": None}
    assert collective.gather_json(value) == [
        {"rank": i, "text": "é\n" * (i + 1), "list": [i] * (1000 * i), "none": None} for i in range(n)
    ]


def barrier_waits_for_all(collective: Collective) -> None:
    """After a barrier, what each rank did before it is seen by all."""
    for _ in range(5):
        collective.barrier()


CHECKS: dict[str, Callable[[Collective], None]] = {
    check.__name__: check
    for check in (
        fulfils_the_protocol,
        averages_gradients_of_all_ranks,
        keeps_dtypes_of_gradients,
        averages_sparse_gradients_as_dense_ones,
        average_of_no_gradients_is_none,
        sums_in_the_graph,
        keeps_the_order_inside_a_graph,
        broadcasts_the_values_of_rank_0,
        broadcasts_models_whose_layer_names_differ,
        sums_named_arrays,
        does_not_change_what_it_sums,
        refuses_arrays_that_differ_between_ranks,
        refuses_a_dtype_that_can_not_be_summed,
        gathers_json_by_rank,
        barrier_waits_for_all,
    )
}


class CollectiveContract:
    """Derive from it and override the fixture `collective`."""

    @pytest.fixture
    def collective(self) -> Collective:
        raise NotImplementedError("override the fixture `collective`")

    @pytest.mark.parametrize("check", CHECKS)
    def test_collective(self, collective: Collective, check: str) -> None:
        CHECKS[check](collective)


def run_all(collective: Collective) -> dict[str, str]:
    """Name of each check -> "", or its traceback."""
    found: dict[str, str] = {}
    for name, check in CHECKS.items():
        try:
            check(collective)
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
    return found


def main() -> None:
    from sciml_kernel.engine import collective as collectives
    from sciml_kernel.engine import device

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--collective", required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    device.quiet()
    collective = collectives.make(arguments.collective)
    result = {"size": collective.size, "checks": run_all(collective)}
    (arguments.out / f"rank-{collective.rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
