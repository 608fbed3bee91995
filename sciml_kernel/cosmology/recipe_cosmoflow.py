"""The two CosmoFlow recipes on a rank: universes in, parameters out. Imports TensorFlow; its parameters: `config`.

Held out are whole simulations, so that no sub-volume of a training universe is ever validated on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from sciml_kernel.config import RunConfig
from sciml_kernel.contracts import Collective, Metric, ShardPlan
from sciml_kernel.cosmology import targets
from sciml_kernel.cosmology.config import CosmoFlowConfig
from sciml_kernel.cosmology.split import Split, split_by_simulation
from sciml_kernel.cosmology.symmetry import turned
from sciml_kernel.data.batches import batches
from sciml_kernel.data.stats import count_moments
from sciml_kernel.data.universe import UniverseShards
from sciml_kernel.errors import DataError
from sciml_kernel.models import cosmoflow
from sciml_kernel.models.cosmoflow_mlperf import mlperf
from sciml_kernel.models.layers import CountScaling

__all__ = ["RECIPE", "RECIPE_MLPERF", "UniverseTask"]

N_STATISTICS = 256
"""Training samples from which mean and spread of log(1 + counts) are taken: 256 of 32^3 are 8 million voxels."""
N_RIDGE = 4096
"""Most training samples of the ridge regression: a power spectrum each, and a few dozen features need no more."""


class UniverseTask:
    """Universes made ready for one run on one rank; fulfils `contracts.Task`.

    x: (batch, z, y, x, channel), int16, counts per voxel. y: (batch, parameter), float32, scaled targets:
    y = (physical - centre) / width. loss: "mae" or "mse" on scaled targets, mean over batch and parameters.
    ridge: (validation sample, parameter), physical units: answers of the ridge regression; None: too few samples.
    """

    def __init__(
        self,
        config: RunConfig,
        shards: UniverseShards,
        split: Split,
        model: keras.Model,
        *,
        centre: np.ndarray,
        width: np.ndarray,
        loss: str,
        ridge: np.ndarray | None = None,
    ) -> None:
        self.config, self.shards, self.split, self.model = config, shards, split, model
        self.n_train, self.n_validation = len(split.train), len(split.validation)
        self._centre, self._width = centre.astype(np.float32), width.astype(np.float32)
        self._loss = loss
        self._ridge = ridge
        self.input_spec = (
            tf.TensorSpec((None, *shards.shape), tf.int16),
            tf.TensorSpec((None, len(shards.parameters)), tf.float32),
        )

    def train_batches(self, plan: ShardPlan) -> Any:
        """(x, y) by batch; with `data.augment` each sample turned by a symmetry of the cube, drawn for
        (seed, epoch, sample): the same for any number of ranks."""
        seed, epoch = self.config.train.seed, plan.epoch
        augment = self.config.data.augment

        def read(indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            samples = self.split.train[indices]
            x, y = self.shards.read_many(samples)
            if augment:
                x = np.stack(
                    [turned(one, seed=seed, epoch=epoch, sample=int(i)) for one, i in zip(x, samples, strict=True)]
                )
            return x, (y - self._centre) / self._width

        return batches(read, plan, spec=self.input_spec)

    def validation_batches(self, plan: ShardPlan) -> Any:
        def read(indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            x, y = self.shards.read_many(self.split.validation[indices])
            return x, (y - self._centre) / self._width

        return batches(read, plan, spec=self.input_spec, weighted=True)

    def loss(self, target: Any, prediction: Any) -> Any:
        return tf.reduce_mean(self._sample_loss(target, prediction))

    def validation_sums(self, target: Any, prediction: Any, weight: Any) -> dict[str, Any]:
        """Sums over samples: loss, count, and for each parameter |predicted - true| / true in physical units."""
        true, predicted = (scaled * self._width + self._centre for scaled in (target, tf.cast(prediction, tf.float32)))
        relative = tf.abs(predicted - true) / tf.abs(true)
        return {
            "loss": tf.reduce_sum(self._sample_loss(target, prediction) * weight),
            "count": tf.reduce_sum(weight),
            "rel_error": tf.reduce_sum(relative * weight[:, None], axis=0),
        }

    def validation_metrics(self, sums: Mapping[str, np.ndarray]) -> list[Metric]:
        """`val/loss`, and `val/rel_error/<parameter>`: mean of |predicted - true| / true; 0 is best."""
        count = float(sums["count"])
        errors = zip(self.shards.parameters, sums["rel_error"], strict=True)
        return [
            Metric("val/loss", float(sums["loss"]) / count),
            *(Metric(f"val/rel_error/{name}", float(total) / count) for name, total in errors),
        ]

    def baselines(self) -> list[Metric]:
        """`baseline/mean/<p>`: the training targets' mean for every sample. `baseline/ridge/<p>`: ridge regression on
        log P(k), fitted on the same training samples. Both are relative errors on the same held-out samples."""
        y = self.shards.targets.astype(np.float64)
        train, true = y[self.split.train], y[self.split.validation]
        answers = {"mean": targets.predict_the_mean(train, len(true))}
        if self._ridge is not None:
            answers["ridge"] = self._ridge
        found = []
        for kind, predicted in answers.items():
            errors = targets.relative_error(true, predicted)
            found += [
                Metric(f"baseline/{kind}/{p}", float(e)) for p, e in zip(self.shards.parameters, errors, strict=True)
            ]
        return found

    def prediction_table(self, indices: np.ndarray, prediction: np.ndarray) -> dict[str, list[Any]]:
        samples = self.split.validation[indices]
        predicted = prediction * self._width + self._centre
        columns: dict[str, list[Any]] = {
            "sample": samples.tolist(),
            "simulation": self.shards.simulation[samples].tolist(),
        }
        for i, name in enumerate(self.shards.parameters):
            columns[f"true_{name}"] = self.shards.targets[samples, i].tolist()
            columns[f"predicted_{name}"] = predicted[:, i].tolist()
            if self._ridge is not None:
                columns[f"ridge_{name}"] = self._ridge[indices, i].tolist()
        return columns

    def _sample_loss(self, target: Any, prediction: Any) -> Any:
        """(batch,), float32: mean over the parameters."""
        distance = tf.cast(prediction, tf.float32) - target
        return tf.reduce_mean(tf.abs(distance) if self._loss == "mae" else tf.square(distance), axis=-1)


class _CosmoFlow:
    """arXiv 1808.04728: MAE on z-scored targets, mean and spread of the paper's priors."""

    def prepare(self, config: RunConfig, *, collective: Collective) -> UniverseTask:
        model: CosmoFlowConfig = config.model
        shards, split = _open(config)
        scaling = _scaling(model.input_scaling, shards, split)
        grid, channels, n_targets = shards.shape[0], shards.shape[-1], len(shards.parameters)
        common: dict[str, Any] = {"dropout": model.dropout, "scaling": scaling, "seed": config.train.seed}
        if model.network == "paper":
            net = cosmoflow.paper(grid, channels, n_targets, **common)
        else:
            net = cosmoflow.compact(grid, channels, n_targets, blocks=model.channels, dense=model.dense, **common)
        centre, width = targets.z_scale(shards.parameters)
        ridge = _ridge(shards, split, collective)
        return UniverseTask(config, shards, split, net, centre=centre, width=width, loss="mae", ridge=ridge)


class _CosmoFlowMLPerf:
    """MLPerf HPC: MSE on targets in [-1, 1] over the range of the priors, input log(1 + x)."""

    def prepare(self, config: RunConfig, *, collective: Collective) -> UniverseTask:
        shards, split = _open(config)
        net = mlperf(
            shards.shape[0],
            shards.shape[-1],
            len(shards.parameters),
            dropout=config.model.dropout,
            scaling=CountScaling("log1p"),
            seed=config.train.seed,
        )
        low, high = np.array([(p.low, p.high) for p in shards.manifest.parameters]).T
        centre, width, ridge = (low + high) / 2, (high - low) / 2, _ridge(shards, split, collective)
        return UniverseTask(config, shards, split, net, centre=centre, width=width, loss="mse", ridge=ridge)


def _open(config: RunConfig) -> tuple[UniverseShards, Split]:
    shards = UniverseShards(config.data.path)
    return shards, split_by_simulation(
        shards.simulation, validation_fraction=config.data.validation_fraction, seed=config.data.data_seed
    )


def _scaling(mode: str, shards: UniverseShards, split: Split) -> CountScaling:
    if mode == "mean":
        return CountScaling("mean")
    # every rank reads the same few samples: cheaper than agreeing on statistics, and the same for any rank count
    moments = count_moments(shards, split.train[:N_STATISTICS])
    return CountScaling("log1p", moments.mean, moments.std or 1.0)


def _ridge(shards: UniverseShards, split: Split, collective: Collective) -> np.ndarray | None:
    """Ridge regression on log P(k), the same on every rank; each rank computes its share of the spectra.

    Raises DataError on every rank for a sample that can't be read on one: no rank is left waiting in the sum.
    """
    known = split.train[:: -(-len(split.train) // N_RIDGE)]
    if len(known) < 3:
        return None
    samples = np.concatenate([known, split.validation])
    features = np.zeros((len(samples), shards.shape[0] // 2 * shards.shape[-1]))
    failure = ""
    try:
        for row in range(collective.rank, len(samples), collective.size):
            counts, _ = shards.read(int(samples[row]))
            features[row] = targets.log_power_features(counts, box_size_mpc_h=shards.manifest.box_size_mpc_h)
    except DataError as error:
        failure = str(error)
    failures = [text for text in collective.gather_json(failure) if text]
    if failures:
        raise DataError(failures[0])
    features = collective.sum_arrays({"features": features})["features"]
    return targets.ridge(features[: len(known)], shards.targets[known], features[len(known) :])


RECIPE = _CosmoFlow()
RECIPE_MLPERF = _CosmoFlowMLPerf()
