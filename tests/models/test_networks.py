"""The published networks, by their published numbers; costs against a count by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sciml_kernel.errors import ConfigError, NotFoundError, UsageError

pytestmark = pytest.mark.tf


def test_the_published_networks_have_their_published_size_and_cost() -> None:
    # 1808.04728: 7,041,443 parameters from the layer table, 21.3 GF forward, 62.2 GF for a training step without the
    # input gradient of the first convolution; MLPerf HPC: 8,907,556, 68.9 GF, 192 GF.
    from sciml_kernel.models import catalogue

    paper = catalogue.describe("cosmoflow")
    assert paper.parameters == 7_041_443
    assert paper.flops_forward == pytest.approx(21.29e9, rel=1e-3)
    assert paper.flops_training == pytest.approx(62.2e9, rel=1e-3)
    by_name = {layer.name: layer for layer in paper.layers}
    table = {"conv1": 448, "conv2": 32_800, "conv3": 131_136, "conv4": 221_312, "conv5": 884_992, "conv6": 524_544,
             "conv7": 524_544, "dense1": 4_196_352, "dense2": 524_544, "targets": 771}  # fmt: skip
    assert {name: by_name[name].parameters for name in table} == table
    assert [by_name[f"conv{i}"].output[0] for i in range(1, 8)] == [126, 60, 27, 6, 4, 3, 2]
    mlperf = catalogue.describe("cosmoflow_mlperf")
    assert mlperf.parameters == 8_907_556
    assert mlperf.flops_forward == pytest.approx(68.9e9, rel=1e-3)
    assert mlperf.flops_training == pytest.approx(192e9, rel=1e-3)


def test_flops_are_those_of_a_loop_over_every_multiply_add() -> None:
    import keras

    from sciml_kernel.models.flops import count

    inputs = keras.Input((5, 4, 6, 2))
    x = keras.layers.Conv3D(3, (2, 3, 1), strides=(2, 1, 1), padding="valid", name="conv")(inputs)
    x = keras.layers.Dense(7, name="dense")(keras.layers.Flatten()(x))
    cost = count(keras.Model(inputs, x))
    multiply_adds = 0
    for z, y, _x in itertools.product(range(0, 5 - 2 + 1, 2), range(4 - 3 + 1), range(6)):
        for _ in itertools.product(range(z, z + 2), range(y, y + 3), range(1), range(2), range(3)):
            multiply_adds += 1
    by_name = {layer.name: layer for layer in cost.layers}
    assert by_name["conv"].flops_forward == 2 * multiply_adds
    assert by_name["dense"].flops_forward == 2 * (2 * 2 * 6 * 3) * 7
    assert cost.flops_training == 2 * by_name["conv"].flops_forward + 3 * by_name["dense"].flops_forward


def test_counts_are_scaled_as_numpy_does_it_and_stay_integers_until_the_first_layer() -> None:
    from sciml_kernel.models.cosmoflow import compact
    from sciml_kernel.models.layers import CountScaling

    counts = np.random.default_rng(3).poisson(8.0, size=(2, 8, 8, 8, 1)).astype(np.int16)
    divided = np.asarray(CountScaling("mean")(counts))
    np.testing.assert_allclose(divided, counts / counts.mean(axis=(1, 2, 3, 4), keepdims=True), rtol=1e-5)
    logged = np.asarray(CountScaling("log1p", mean=2.0, std=0.5)(counts))
    np.testing.assert_allclose(logged, (np.log1p(counts.astype(float)) - 2.0) / 0.5, rtol=1e-5, atol=1e-5)
    assert float(np.abs(np.asarray(CountScaling("mean")(counts * 0))).max()) == 0.0
    model = compact(8, blocks=(4, 8, 8), scaling=CountScaling("mean"))
    assert model.inputs[0].dtype == "int16"
    assert model(counts).shape == (2, 3)


def test_the_seed_decides_the_initial_weights_and_layers_differ() -> None:
    from sciml_kernel.models.cosmoflow import compact

    def weights(seed: int) -> list[np.ndarray]:
        return [np.asarray(w) for w in compact(8, blocks=(4, 4, 4), dense=(8, 8), seed=seed).trainable_weights]

    one, again, other = weights(1), weights(1), weights(2)
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not np.array_equal(one[0], other[0])
    kernels = [w for w in one if w.shape == (3, 3, 3, 4, 4)]
    assert len(kernels) == 2
    assert not np.array_equal(*kernels)


def test_a_grid_that_a_network_can_not_take_is_refused_with_one_that_it_can() -> None:
    from sciml_kernel.models import catalogue
    from sciml_kernel.models.cosmoflow import SMALLEST_GRID, compact, paper

    with pytest.raises(ConfigError, match=r"at least 108 voxels a side, got 64; use network='compact'"):
        paper(64)
    assert paper(SMALLEST_GRID).output_shape == (None, 3)
    with pytest.raises(ValueError, match=r"negative|dimension"):  # one less leaves nothing: 108 is the smallest
        _unchecked_paper(SMALLEST_GRID - 1)
    with pytest.raises(ConfigError, match="4 blocks need a grid divisible by 16, got 24; use 32"):
        compact(24)
    with pytest.raises(ConfigError, match="divisible by 32, got 48; use 64"):
        catalogue.describe("cosmoflow_mlperf", (48, 48, 48, 4))
    with pytest.raises(NotFoundError, match="did you mean 'cosmoflow'"):
        catalogue.describe("cosmoflo")
    with pytest.raises(UsageError, match="takes cubes"):
        catalogue.describe("cosmoflow", (128, 128, 64, 1))


def _unchecked_paper(grid: int) -> None:
    from sciml_kernel.models import cosmoflow

    smallest, cosmoflow.SMALLEST_GRID = cosmoflow.SMALLEST_GRID, 0
    try:
        cosmoflow.paper(grid)
    finally:
        cosmoflow.SMALLEST_GRID = smallest
