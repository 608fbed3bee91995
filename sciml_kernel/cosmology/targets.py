"""What is predicted: priors, scaling, the error that is reported, and the two baselines beside which it stands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sciml_kernel.cosmology.spectrum import power_spectrum
from sciml_kernel.data.manifest import Parameter
from sciml_kernel.data.universe import UniverseShards
from sciml_kernel.errors import DataError, UsageError

__all__ = [
    "MEAN",
    "PRIORS",
    "STD",
    "draw",
    "log_power_features",
    "predict_the_mean",
    "relative_error",
    "ridge",
    "ridge_predictions",
    "z_scale",
]

Array = NDArray[np.float64]

# arXiv 1808.04728: uniform priors, and the mean and standard deviation by which its targets are z-scored. (The standard
# deviations are those of its data set; of the priors themselves they would be 0.0289, 0.0491, 0.0289.)
PRIORS = (Parameter("omega_m", 0.25, 0.35), Parameter("sigma_8", 0.78, 0.95), Parameter("n_s", 0.9, 1.0))
MEAN = {"omega_m": 0.3, "sigma_8": 0.8628, "n_s": 0.95}
STD = {"omega_m": 0.02853, "sigma_8": 0.04887, "n_s": 0.028}


def draw(seed: int, i_simulation: int) -> tuple[dict[str, float], int]:
    """Parameters of one universe from the priors, and the seed of its initial phases.

    Depends on (seed, i_simulation) alone: a larger data set begins with the same universes, and it does not matter who
    simulates which.
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(i_simulation,)))
    values = {prior.name: prior.low + (prior.high - prior.low) * float(rng.random()) for prior in PRIORS}
    return values, int(rng.integers(2**63))


def z_scale(parameters: Sequence[str]) -> tuple[Array, Array]:
    """Mean and standard deviation, each (parameter,), of the paper: z = (physical - mean) / std.

    Raises DataError for a parameter that the paper does not have.
    """
    unknown = [name for name in parameters if name not in MEAN]
    if unknown:
        raise DataError(f"targets {', '.join(unknown)} have no published scaling; the paper has {', '.join(MEAN)}")
    return np.array([MEAN[name] for name in parameters]), np.array([STD[name] for name in parameters])


def relative_error(true: ArrayLike, predicted: ArrayLike) -> Array:
    """Mean over samples of |predicted - true| / |true|: range 0 to infinity, 0 is best, a NaN anywhere gives NaN.

    true, predicted: (sample, parameter), physical units, the same shape. Returns (parameter,), float64. Raises
    UsageError for unequal shapes (which would broadcast silently) or no samples.
    """
    true, predicted = np.asarray(true, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    if true.shape != predicted.shape or true.ndim != 2 or not len(true):
        raise UsageError(f"true and predicted must both be (sample, parameter), got {true.shape} and {predicted.shape}")
    error: Array = np.mean(np.abs(predicted - true) / np.abs(true), axis=0)
    return error


def predict_the_mean(train: ArrayLike, n: int) -> Array:
    """The trivial answer: the mean of the training targets (sample, parameter) for each of n samples."""
    mean: Array = np.asarray(train, dtype=np.float64).mean(axis=0)
    return np.tile(mean, (n, 1))


def log_power_features(counts: ArrayLike, *, box_size_mpc_h: float) -> Array:
    """log P(k) of one sample, its channels one after the other.

    counts: (z, y, x, channel), particles per voxel. Returns (shell * channel,), float64. Shot noise is left in, so
    that no shell is negative.
    """
    volume = np.asarray(counts)
    spectra = [
        power_spectrum(volume[..., i], box_size_mpc_h=box_size_mpc_h)["power"].values for i in range(volume.shape[-1])
    ]
    # An empty shell (a perfectly even volume) is no reason to fail: it gets a tiny power.
    features: Array = np.log(np.maximum(np.concatenate(spectra), 1e-12))
    return features


def ridge(train_features: ArrayLike, train_targets: ArrayLike, test_features: ArrayLike) -> Array:
    """Ridge regression: the classical answer from the power spectrum.

    train_features: (sample, feature). train_targets: (sample, parameter). test_features: (sample, feature). Features
    are z-scored by the training samples; the penalty of each parameter is chosen from 1e-3 to 1e4 by leave-one-out on
    them. Returns (test sample, parameter), float64.
    """
    from sklearn.linear_model import RidgeCV  # half a second to import
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    y = np.asarray(train_targets, dtype=np.float64)
    if len(y) < 3:
        raise UsageError(f"ridge regression needs at least 3 training samples, got {len(y)}")
    model: Any = make_pipeline(StandardScaler(), RidgeCV(alphas=np.logspace(-3, 4, 29), alpha_per_target=True))
    model.fit(np.asarray(train_features, dtype=np.float64), y)
    return np.asarray(model.predict(np.asarray(test_features, dtype=np.float64))).reshape(len(test_features), -1)  # type: ignore[arg-type]


def ridge_predictions(shards: UniverseShards, *, train: Iterable[int], test: Iterable[int]) -> Array:
    """`ridge` on log P(k) of the samples `train`, for the samples `test`: (test sample, parameter), physical units."""
    box = shards.manifest.box_size_mpc_h

    def features(samples: list[int]) -> Array:
        return np.stack([log_power_features(shards.read(i)[0], box_size_mpc_h=box) for i in samples])

    known, asked = [int(i) for i in train], [int(i) for i in test]
    return ridge(features(known), shards.targets[known], features(asked))
