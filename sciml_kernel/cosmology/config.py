"""Parameters of the two CosmoFlow recipes. No TensorFlow: a notebook checks a config with this alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sciml_kernel.config.schema import check_fields, param
from sciml_kernel.contracts import RecipeSpec
from sciml_kernel.errors import ConfigError

__all__ = ["COSMOFLOW", "COSMOFLOW_MLPERF", "CosmoFlowConfig", "CosmoFlowMLPerfConfig"]


@dataclass(frozen=True)
class CosmoFlowConfig:
    """The network of arXiv 1808.04728, or a smaller one of its family.

    `network="paper"` is the published table (7,041,443 parameters at 128^3 x 1, 3 targets) and takes no other choice.
    `network="compact"` is ours for small boxes: SAME-padded 3^3 convolutions, batch normalisation and pooling, one
    block for each entry of `channels`.

    Settings with which the compact network learns in 45 to 90 s on two ranks of one busy core each, from 800 universes
    (a fifth held out) of 256 Mpc/h, 32^3 voxels and 8 particles a voxel: input_scaling="log1p", dropout=0, augment,
    batch_size 16, epochs 12, learning_rate 4e-3 falling to 4e-5, schedule "cosine", warmup_epochs 1. Relative errors
    over three seeds, beside ridge regression on log P(k) and predict-the-mean:

        omega_m  0.049-0.052   ridge 0.060-0.063   mean 0.078-0.083
        sigma_8  0.010-0.012   ridge 0.018-0.019   mean 0.049-0.053
        n_s      0.022-0.024   ridge 0.023-0.025   mean 0.024-0.027: hardly there

    The validation loss jumps in early epochs, as the moving statistics of batch normalisation lag behind weights that
    move fast; it settles as the step size falls. Boxes of 128 Mpc/h say less: sigma_8 0.018-0.020 in 14 epochs.
    """

    network: str = param("paper", "which member of the family", choices=("paper", "compact"))
    channels: tuple[int, ...] = param((8, 16, 32, 64), "channels of each block (compact)", ge=1)
    dense: tuple[int, ...] = param((64,), "units of the hidden dense layers (compact)", ge=1)
    dropout: float = param(0.5, "share of units dropped before each dense layer", ge=0, lt=1)
    input_scaling: str = param(
        "mean",
        "counts divided by the volume's mean (paper), or log(1 + x) z-scored by training statistics",
        choices=("mean", "log1p"),
    )

    def __post_init__(self) -> None:
        check_fields(self, "model")
        if not self.channels:
            raise ConfigError("model.channels needs at least one block, got (); write channels=(8, 16, 32, 64)")


@dataclass(frozen=True)
class CosmoFlowMLPerfConfig:
    """The network of MLPerf HPC's CosmoFlow (8,907,556 parameters at 128^3 x 4, 4 targets)."""

    dropout: float = param(0.5, "share of units dropped after each hidden dense layer", ge=0, lt=1)

    def __post_init__(self) -> None:
        check_fields(self, "model")


def _check_data(config: Any) -> None:
    from sciml_kernel.cosmology.factory import check_data

    check_data(config)


def _describe_data(path: str | Path) -> dict[str, Any]:
    from sciml_kernel.cosmology.factory import describe_data

    return describe_data(path)


COSMOFLOW = RecipeSpec(
    name="cosmoflow",
    title="CosmoFlow, SC18: 3D CNN from dark-matter volumes to cosmological parameters",
    model_type=CosmoFlowConfig,
    recipe="sciml_kernel.cosmology.recipe_cosmoflow:RECIPE",
    defaults={"optim.learning_rate": 1e-3, "optim.final_learning_rate": 1e-4, "optim.schedule": "linear"},
    check_data=_check_data,
    describe_data=_describe_data,
)

COSMOFLOW_MLPERF = RecipeSpec(
    name="cosmoflow_mlperf",
    title="CosmoFlow as in MLPerf HPC",
    model_type=CosmoFlowMLPerfConfig,
    recipe="sciml_kernel.cosmology.recipe_cosmoflow:RECIPE_MLPERF",
    defaults={"optim.optimizer": "sgd", "optim.learning_rate": 1e-3, "optim.warmup_epochs": 4.0},
    check_data=_check_data,
    describe_data=_describe_data,
)
