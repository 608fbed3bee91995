"""Parameters and floating-point operations of a Keras graph, by layer and in total.

One multiply-add is two flops. Counted are convolutions and dense layers, at full kernel for each output (zeros of the
border included, as the papers and the hardware do); bias, activation, normalisation and pooling are left out, below one
per cent together.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import keras

__all__ = ["LayerCost", "ModelCost", "count"]


@dataclass(frozen=True, slots=True)
class LayerCost:
    """One layer, one sample. output: shape without the batch. flops_training: forward, weight gradient and, except in
    the first layer with weights, input gradient."""

    name: str
    kind: str
    output: tuple[int, ...]
    parameters: int
    flops_forward: int
    flops_training: int


@dataclass(frozen=True, slots=True)
class ModelCost:
    """A network, one sample. flops_training_padded: with the zeros that a dilated convolution done by space-to-batch
    multiplies too; equal to flops_training where nothing is dilated."""

    name: str
    input_shape: tuple[int, ...]
    parameters: int
    flops_forward: int
    flops_training: int
    flops_training_padded: int
    layers: tuple[LayerCost, ...]

    def to_json(self, *, layers: bool = False) -> dict[str, Any]:
        data = asdict(self)
        if not layers:
            del data["layers"]
        return data


def count(model: keras.Model, *, name: str | None = None) -> ModelCost:
    """Count a functional model with one input of known shape. Raises ValueError for an unknown size."""
    input_shape = tuple(int(n) for n in model.input_shape[1:])
    costs: list[LayerCost] = []
    first = True
    for layer in model.layers:
        forward = _forward(layer)
        training = 0
        if forward:
            # nobody asks for the gradient with respect to the data
            training = forward * (2 if first else 3)
            first = False
        shape = tuple(int(n) for n in layer.output.shape[1:])
        costs.append(LayerCost(layer.name, type(layer).__name__, shape, int(layer.count_params()), forward, training))
    total = sum(cost.flops_training for cost in costs)
    return ModelCost(
        name=name or model.name,
        input_shape=input_shape,
        parameters=sum(cost.parameters for cost in costs),
        flops_forward=sum(cost.flops_forward for cost in costs),
        flops_training=total,
        flops_training_padded=total,
        layers=tuple(costs),
    )


def _forward(layer: keras.layers.Layer) -> int:
    if isinstance(layer, keras.layers.Dense):
        return 2 * int(layer.kernel.shape[0]) * layer.units * math.prod(layer.output.shape[1:-1])
    if isinstance(layer, (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)):
        if max(layer.dilation_rate) > 1:
            raise ValueError(f"layer {layer.name} is dilated: its padded flops are not counted yet")
        outputs = math.prod(int(n) for n in layer.output.shape[1:-1])
        return 2 * math.prod(int(n) for n in layer.kernel.shape) * outputs
    return 0
