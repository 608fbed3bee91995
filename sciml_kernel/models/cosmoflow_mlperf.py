"""CosmoFlow as in MLPerf HPC: five SAME convolutions, 8,907,556 parameters at 128^3 x 4 and 4 targets."""

from __future__ import annotations

import keras

from sciml_kernel.errors import ConfigError
from sciml_kernel.models.layers import Scale

__all__ = ["mlperf"]

_BLOCKS = (32, 64, 128, 256, 512)
_DENSE = (128, 64)


def mlperf(
    grid: int = 128,
    channels: int = 4,
    n_targets: int = 4,
    *,
    dropout: float = 0.5,
    scaling: keras.layers.Layer | None = None,
    seed: int = 1,
) -> keras.Model:
    """5 x [3^3 convolution, leaky ReLU 0.3, max pooling 2^3], dense 128 and 64 with dropout, 1.2 tanh.

    Input (batch, grid, grid, grid, channels), int16 counts with `scaling` as first layer, else float32. Output
    (batch, n_targets), float32 in (-1.2, 1.2). Raises ConfigError for a grid that is not divisible by 32.
    """
    if grid % 32 or grid < 32:
        raise ConfigError(
            f"cosmoflow_mlperf needs a grid divisible by 32, got {grid}; use {max(32, -(-grid // 32) * 32)}"
        )
    inputs = keras.Input((grid, grid, grid, channels), dtype="float32" if scaling is None else "int16", name="counts")
    x = inputs if scaling is None else scaling(inputs)
    seeds = [seed * 1009 + i for i in range(16)]
    for i, filters in enumerate(_BLOCKS, start=1):
        initial = keras.initializers.GlorotUniform(seed=seeds.pop())
        x = keras.layers.Conv3D(filters, 3, padding="same", kernel_initializer=initial, name=f"conv{i}")(x)
        x = keras.layers.LeakyReLU(negative_slope=0.3, name=f"relu{i}")(x)
        x = keras.layers.MaxPooling3D(2, name=f"pool{i}")(x)
    x = keras.layers.Flatten(name="flatten")(x)
    for i, units in enumerate(_DENSE, start=1):
        initial = keras.initializers.GlorotUniform(seed=seeds.pop())
        x = keras.layers.Dense(units, kernel_initializer=initial, name=f"dense{i}")(x)
        x = keras.layers.LeakyReLU(negative_slope=0.3, name=f"dense_relu{i}")(x)
        if dropout:
            x = keras.layers.Dropout(dropout, seed=seeds.pop(), name=f"dropout{i}")(x)
    initial = keras.initializers.GlorotUniform(seed=seeds.pop())
    x = keras.layers.Dense(n_targets, activation="tanh", kernel_initializer=initial, dtype="float32", name="targets")(x)
    return keras.Model(inputs, Scale(1.2, dtype="float32", name="scale")(x), name="cosmoflow_mlperf")
