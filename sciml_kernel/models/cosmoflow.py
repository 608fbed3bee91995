"""CosmoFlow (arXiv 1808.04728, SC18): a 3D CNN from dark-matter counts to cosmological parameters.

We build the clean network of the paper's table. The authors' run branches leave the third pooling out, after which a
reshape gives 64 rows a sample that are broadcast against the label; here such a mismatch is an error of the loop.
"""

from __future__ import annotations

from collections.abc import Sequence

import keras

from sciml_kernel.errors import ConfigError

__all__ = ["SMALLEST_GRID", "compact", "paper"]

# channels, kernel, stride, followed by a pooling of 2^3?
_CONVOLUTIONS = ((16, 3, 1, True), (32, 4, 1, True), (64, 4, 1, True), (128, 3, 2, False), (256, 3, 1, False),
                 (256, 2, 1, False), (256, 2, 1, False))  # fmt: skip
_DENSE = (2048, 256)
SMALLEST_GRID = 108
"""Voxels a side below which nothing is left after the seventh convolution."""


def paper(
    grid: int = 128,
    channels: int = 1,
    n_targets: int = 3,
    *,
    dropout: float = 0.5,
    scaling: keras.layers.Layer | None = None,
    seed: int = 1,
) -> keras.Model:
    """The published network: 7,041,443 parameters at 128^3 x 1 and 3 targets.

    Input (batch, grid, grid, grid, channels): int16 counts with `scaling` as first layer, else float32. Output
    (batch, n_targets), float32. VALID padding, bias 0.1, Glorot weights, leaky ReLU of slope 0.01, average pooling.
    dropout: share dropped before each dense layer (the paper keeps 0.5). Raises ConfigError for a grid below 108.
    """
    if grid < SMALLEST_GRID:
        raise ConfigError(
            f"the paper's network needs a grid of at least {SMALLEST_GRID} voxels a side, got {grid}; "
            "use network='compact' for smaller boxes"
        )
    seeds = _seeds(seed)
    inputs = keras.Input((grid, grid, grid, channels), dtype="float32" if scaling is None else "int16", name="counts")
    x = inputs if scaling is None else scaling(inputs)
    for i, (filters, kernel, stride, pooled) in enumerate(_CONVOLUTIONS, start=1):
        x = keras.layers.Conv3D(
            filters,
            kernel,
            strides=stride,
            padding="valid",
            kernel_initializer=keras.initializers.GlorotUniform(seed=seeds.pop()),
            bias_initializer=keras.initializers.Constant(0.1),
            name=f"conv{i}",
        )(x)
        x = keras.layers.LeakyReLU(negative_slope=0.01, name=f"relu{i}")(x)
        if pooled:
            x = keras.layers.AveragePooling3D(2, name=f"pool{i}")(x)
    x = keras.layers.Flatten(name="flatten")(x)
    return keras.Model(inputs, _head(x, _DENSE, n_targets, dropout, seeds), name="cosmoflow")


def compact(
    grid: int,
    channels: int = 1,
    n_targets: int = 3,
    *,
    blocks: Sequence[int] = (8, 16, 32, 64),
    dense: Sequence[int] = (64,),
    dropout: float = 0.0,
    scaling: keras.layers.Layer | None = None,
    seed: int = 1,
) -> keras.Model:
    """A small network of the family, ours: a block is 3^3 convolution (SAME), batch normalisation, leaky ReLU, average
    pooling 2^3. Input and output as `paper`. Batch normalisation is what lets a net of this size learn from hundreds of
    small boxes; the paper has none.

    Raises ConfigError for a grid that the blocks do not halve evenly.
    """
    factor = 2 ** len(blocks)
    if grid % factor or grid < factor:
        upper = -(-grid // factor) * factor
        raise ConfigError(f"{len(blocks)} blocks need a grid divisible by {factor}, got {grid}; use {upper}")
    seeds = _seeds(seed)
    inputs = keras.Input((grid, grid, grid, channels), dtype="float32" if scaling is None else "int16", name="counts")
    x = inputs if scaling is None else scaling(inputs)
    for i, filters in enumerate(blocks, start=1):
        x = keras.layers.Conv3D(
            filters,
            3,
            padding="same",
            use_bias=False,
            kernel_initializer=keras.initializers.GlorotUniform(seed=seeds.pop()),
            name=f"conv{i}",
        )(x)
        # 0.9: the moving statistics must follow within the few hundred steps of a short run
        x = keras.layers.BatchNormalization(momentum=0.9, name=f"norm{i}")(x)
        x = keras.layers.LeakyReLU(negative_slope=0.01, name=f"relu{i}")(x)
        x = keras.layers.AveragePooling3D(2, name=f"pool{i}")(x)
    x = keras.layers.Flatten(name="flatten")(x)
    return keras.Model(inputs, _head(x, dense, n_targets, dropout, seeds), name="cosmoflow_compact")


def _head(x: object, dense: Sequence[int], n_targets: int, dropout: float, seeds: list[int]) -> object:
    """Dropout, dense, leaky ReLU for each hidden layer; dropout and a linear layer in float32 at the end."""
    for i, units in enumerate((*dense, n_targets), start=1):
        last = i > len(dense)
        if dropout:
            x = keras.layers.Dropout(dropout, seed=seeds.pop(), name=f"dropout{i}")(x)
        x = keras.layers.Dense(
            units,
            kernel_initializer=keras.initializers.GlorotUniform(seed=seeds.pop()),
            bias_initializer=keras.initializers.Constant(0.0 if last else 0.1),
            dtype="float32" if last else None,
            name="targets" if last else f"dense{i}",
        )(x)
        if not last:
            x = keras.layers.LeakyReLU(negative_slope=0.01, name=f"dense_relu{i}")(x)
    return x


def _seeds(seed: int, n: int = 64) -> list[int]:
    """Different seeds for the layers: one seed for all would start equal shapes with equal weights."""
    return [seed * 1009 + i for i in range(n)]
