"""Layers that Keras lacks."""

from __future__ import annotations

from typing import Any

import keras

__all__ = ["CountScaling", "Scale"]


@keras.saving.register_keras_serializable("sciml_kernel")
class CountScaling(keras.layers.Layer):
    """Particle counts (batch, z, y, x, channel), integer or real, to network input of the compute dtype.

    mode "mean": divide each sample by its own mean (arXiv 1808.04728). mode "log1p": (log(1 + x) - mean) / std, with
    mean and std of log(1 + x) over the training samples. The counts travel to the device as int16, a quarter of the
    bytes of two float32; the arithmetic is in float32 whatever the compute dtype, since bfloat16 holds counts only to
    256 exactly.
    """

    def __init__(self, mode: str, mean: float = 0.0, std: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.mode, self.mean, self.std = mode, mean, std

    def call(self, counts: Any) -> Any:
        x = keras.ops.cast(counts, "float32")
        if self.mode == "mean":
            average = keras.ops.mean(x, axis=tuple(range(1, len(x.shape))), keepdims=True)
            x = x / keras.ops.maximum(average, 1e-6)  # an empty volume stays empty
        else:
            x = (keras.ops.log1p(x) - self.mean) / self.std
        return keras.ops.cast(x, self.compute_dtype)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "mode": self.mode, "mean": self.mean, "std": self.std}


@keras.saving.register_keras_serializable("sciml_kernel")
class Scale(keras.layers.Layer):
    """Multiply by a constant."""

    def __init__(self, factor: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.factor = factor

    def call(self, x: Any) -> Any:
        return x * self.factor

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "factor": self.factor}
