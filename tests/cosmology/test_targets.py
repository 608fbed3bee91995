"""Priors, scaling, error and baselines against closed forms."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sciml_kernel.cosmology import check_data, make_universes, targets
from sciml_kernel.data.universe import UniverseShards
from sciml_kernel.errors import ConfigError, DataError, UsageError


def drawn(n: int, seed: int = 1) -> np.ndarray:
    return np.array([list(targets.draw(seed, i)[0].values()) for i in range(n)])


def test_parameters_fill_the_priors_evenly() -> None:
    # Uniform on [a, b]: mean (a + b) / 2, variance (b - a)^2 / 12; each decile holds n/10 +- 4 sqrt(n * 0.09).
    values = drawn(4000)
    assert [prior.name for prior in targets.PRIORS] == ["omega_m", "sigma_8", "n_s"]
    for column, (low, high) in zip(values.T, [(0.25, 0.35), (0.78, 0.95), (0.9, 1.0)], strict=True):
        assert low <= column.min()
        assert column.max() <= high
        share, _ = np.histogram(column, bins=10, range=(low, high))
        assert np.all(np.abs(share - 400) < 4 * np.sqrt(4000 * 0.09))
    assert np.all(np.abs(np.corrcoef(values.T)[np.triu_indices(3, 1)]) < 4 / np.sqrt(4000))


def test_no_two_universes_share_their_phases() -> None:
    seeds = {targets.draw(seed, i)[1] for seed in (1, 2) for i in range(500)}
    assert len(seeds) == 1000


def test_predicting_the_mean_has_the_error_of_its_closed_form() -> None:
    # x uniform on [a, b], m the middle: E|x - m|/x = m / (b - a) * ln(m^2 / (a b)). That is 0.0845, 0.0493, 0.0263
    # for the three priors (FACTS says 0.084, 0.049, 0.026 for finite samples).
    values = drawn(6000)
    error = targets.relative_error(values, targets.predict_the_mean(values, len(values)))
    for got, (a, b) in zip(error, [(0.25, 0.35), (0.78, 0.95), (0.9, 1.0)], strict=True):
        m = (a + b) / 2
        assert got == pytest.approx(m / (b - a) * np.log(m**2 / (a * b)), rel=0.03)


def test_relative_error_is_the_mean_of_ratios() -> None:
    true = np.array([[1.0, 2.0], [2.0, 4.0]])
    predicted = np.array([[1.1, 2.0], [1.6, 5.0]])
    np.testing.assert_allclose(targets.relative_error(true, predicted), [(0.1 + 0.2) / 2, 0.125])
    assert np.isnan(targets.relative_error(true, np.where(true == 4, np.nan, true))).tolist() == [False, True]


def test_shapes_that_would_broadcast_are_refused() -> None:
    for predicted in (np.ones((1, 3)), np.ones(3), np.ones((64, 4, 3))):
        with pytest.raises(UsageError, match="must both be"):
            targets.relative_error(np.ones((4, 3)), predicted)


def test_scaling_is_the_papers_in_the_order_asked_for() -> None:
    mean, std = targets.z_scale(["sigma_8", "omega_m", "n_s"])
    np.testing.assert_array_equal(mean, [0.8628, 0.3, 0.95])
    np.testing.assert_array_equal(std, [0.04887, 0.02853, 0.028])
    with pytest.raises(DataError, match="h_0 have no published scaling"):
        targets.z_scale(["omega_m", "h_0"])


def test_ridge_finds_a_linear_law_and_ignores_noise() -> None:
    # y = X w + c with 200 samples: the prediction is exact up to the noise of 1e-3.
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 10)) * np.logspace(-3, 3, 10)
    y = np.stack([x[:, 0] * 2e3 + 0.3, x[:, 9] / 2e3 - 1.0], axis=1) + rng.normal(0, 1e-3, (300, 2))
    predicted = targets.ridge(x[:200], y[:200], x[200:])
    assert predicted.shape == (100, 2)
    np.testing.assert_allclose(predicted, y[200:], atol=6e-3)
    # Nothing to learn: the penalty grows until it is about the mean (a plain fit of 10 features would scatter more).
    noise = targets.ridge(x[:50], rng.normal(size=(50, 1)), x[200:])
    assert noise.std() < 0.25


def test_features_are_the_log_power_of_each_channel() -> None:
    from sciml_kernel.cosmology import power_spectrum

    counts = np.random.default_rng(2).poisson(3.0, (8, 8, 8, 2)).astype(np.int16)
    features = targets.log_power_features(counts, box_size_mpc_h=32.0)
    assert features.shape == (8,)
    second = power_spectrum(counts[..., 1], box_size_mpc_h=32.0)["power"]
    np.testing.assert_allclose(features[4:], np.log(second))
    assert np.all(np.isfinite(targets.log_power_features(np.ones((4, 4, 4, 1), dtype=np.int16), box_size_mpc_h=1.0)))


@pytest.mark.slow
def test_ridge_on_simulated_universes_beats_the_mean_for_sigma_8(tmp_path: Path) -> None:
    make_universes(tmp_path / "u", n_sims=240, grid=32, n_particles=32, box_size_mpc_h=128.0, workers=1)
    shards = UniverseShards(tmp_path / "u")
    train, test = range(180), range(180, 240)
    predicted = targets.ridge_predictions(shards, train=train, test=test)
    true = shards.targets[180:]
    mean = targets.predict_the_mean(shards.targets[:180], 60)
    ridge, trivial = targets.relative_error(true, predicted), targets.relative_error(true, mean)
    assert ridge[1] < 0.7 * trivial[1]
    assert np.all(ridge < 1.1 * trivial)


def config(path: Path, **changed: object) -> SimpleNamespace:
    data = SimpleNamespace(
        path=str(path), validation_fraction=0.2, data_seed=1, batch_size=changed.get("batch_size", 4)
    )
    model = SimpleNamespace(network=changed.get("network", "compact"), channels=changed.get("channels", (4, 8)))
    return SimpleNamespace(recipe=changed.get("recipe", "cosmoflow"), data=data, model=model)


def test_data_are_checked_before_a_run(tmp_path: Path) -> None:
    make_universes(tmp_path / "u", n_sims=10, grid=4, box_size_mpc_h=32.0, workers=1)
    check_data(config(tmp_path / "u"))
    with pytest.raises(DataError, match="8 training samples"):
        check_data(config(tmp_path / "u", batch_size=9))
    with pytest.raises(ConfigError, match="at least 108"):
        check_data(config(tmp_path / "u", network="paper"))
    with pytest.raises(ConfigError, match="not divisible by 8"):
        check_data(config(tmp_path / "u", channels=(4, 8, 16)))
    with pytest.raises(ConfigError, match="not divisible by 32"):
        check_data(config(tmp_path / "u", recipe="cosmoflow_mlperf", network=None))
    with pytest.raises(DataError, match="no data folder"):
        check_data(config(tmp_path / "nowhere"))
    make_universes(tmp_path / "one", n_sims=1, grid=4, box_size_mpc_h=32.0, workers=1)
    with pytest.raises(DataError, match="at least two simulations"):
        check_data(config(tmp_path / "one"))
