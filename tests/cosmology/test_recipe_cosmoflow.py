"""The recipe on real, tiny universes: what goes in, what is summed, what it is compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sciml_kernel.config import Layer, RunConfig, resolve
from sciml_kernel.cosmology.config import COSMOFLOW, COSMOFLOW_MLPERF
from sciml_kernel.cosmology.factory import make_universes
from sciml_kernel.cosmology.symmetry import SYMMETRIES, apply
from sciml_kernel.data.sharding import plan_epoch
from sciml_kernel.errors import DataError

pytestmark = pytest.mark.tf

GRID, N = 16, 30


@pytest.fixture(scope="module")
def universes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data") / "universes"
    make_universes(out, n_sims=N, grid=GRID, box_size_mpc_h=128.0, n_particles=GRID, seed=3, workers=1)
    return out


class Rank:
    """A rank that hears nothing of the others: what it would send is kept."""

    name = "alone"

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size, self.local_rank = rank, size, rank
        self.sent: dict[str, np.ndarray] = {}

    def gather_json(self, value: Any) -> list[Any]:
        return [value]

    def sum_arrays(self, arrays: Any) -> dict[str, np.ndarray]:
        self.sent = {name: array.copy() for name, array in arrays.items()}
        return dict(arrays)


def _config(path: Path, **settings: Any) -> RunConfig:
    values = {"path": str(path), "network": "compact", "channels": (4, 8), "dropout": 0.0, "input_scaling": "log1p"}
    layers = [Layer("recipe", COSMOFLOW.defaults), Layer("test", values | settings)]
    return resolve("cosmoflow", COSMOFLOW.model_type, layers).config


def _task(path: Path, rank: Rank | None = None, **settings: Any) -> Any:
    from sciml_kernel.cosmology.recipe_cosmoflow import RECIPE

    return RECIPE.prepare(_config(path, **settings), collective=rank or Rank())


def test_targets_are_scaled_as_in_the_paper_and_held_out_universes_stay_out(universes: Path) -> None:
    task = _task(universes)
    assert (task.n_train, task.n_validation) == (24, 6)
    assert not set(task.split.train) & set(task.split.validation)
    plan = plan_epoch(24, batch_size=8, rank=0, size=1, seed=1, epoch=0)
    # arXiv 1808.04728: mean (0.3, 0.8628, 0.95), standard deviation (0.02853, 0.04887, 0.028)
    centre, width = np.array([0.3, 0.8628, 0.95]), np.array([0.02853, 0.04887, 0.028])
    for (x, y), indices in zip(task.train_batches(plan), plan.indices, strict=True):
        samples = task.split.train[indices]
        np.testing.assert_allclose(y, (task.shards.targets[samples] - centre) / width, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(x, [task.shards.read(int(i))[0] for i in samples])
        assert x.dtype.name == "int16"


def test_the_input_is_standardised_by_the_training_samples_alone(universes: Path) -> None:
    task = _task(universes)
    logged = np.log1p(np.stack([task.shards.read(int(i))[0] for i in task.split.train]).astype(np.float64))
    layer = next(layer for layer in task.model.layers if type(layer).__name__ == "CountScaling")
    assert (layer.mean, layer.std) == pytest.approx((logged.mean(), logged.std()), rel=1e-5)
    scaled = np.asarray(layer(np.expm1(logged)))
    assert (scaled.mean(), scaled.std()) == pytest.approx((0.0, 1.0), abs=1e-4)


def test_turned_samples_are_symmetric_to_the_files_and_the_same_on_any_number_of_ranks(universes: Path) -> None:
    task = _task(universes, augment=True)

    def epoch(rank: int, size: int, number: int) -> dict[int, np.ndarray]:
        plan = plan_epoch(24, batch_size=8, rank=rank, size=size, seed=1, epoch=number)
        seen = zip(task.train_batches(plan), plan.indices, strict=True)
        return {int(i): one for (x, _), indices in seen for i, one in zip(indices, x.numpy(), strict=True)}

    alone, other_epoch = epoch(0, 1, 0), epoch(0, 1, 1)
    shared = epoch(0, 2, 0) | epoch(1, 2, 0)
    assert alone.keys() == shared.keys()
    assert all(np.array_equal(alone[i], shared[i]) for i in alone)
    assert any(not np.array_equal(alone[i], other_epoch[i]) for i in alone)
    for i, one in alone.items():
        original = task.shards.read(int(task.split.train[i]))[0]
        assert any(np.array_equal(one, apply(original, turn)) for turn in range(len(SYMMETRIES)))


def test_validation_sums_are_those_of_numpy_and_ignore_padding(universes: Path) -> None:
    task = _task(universes)
    random = np.random.default_rng(4)
    target, prediction = random.normal(size=(2, 5, 3)).astype(np.float32)
    weight = np.array([1, 1, 1, 0, 0], np.float32)
    prediction[3:] = np.float32(1e9)
    sums = {name: np.asarray(v) for name, v in task.validation_sums(target, prediction, weight).items()}
    metrics = {metric.name: metric.value for metric in task.validation_metrics(sums)}
    assert next(iter(metrics)) == "val/loss"
    assert metrics["val/loss"] == pytest.approx(np.abs(target - prediction)[:3].mean(), rel=1e-5)
    centre, width = np.array([0.3, 0.8628, 0.95]), np.array([0.02853, 0.04887, 0.028])
    true, predicted = target[:3] * width + centre, prediction[:3] * width + centre
    for i, name in enumerate(("omega_m", "sigma_8", "n_s")):
        expected = np.mean(np.abs(predicted[:, i] - true[:, i]) / true[:, i])
        assert metrics[f"val/rel_error/{name}"] == pytest.approx(expected, rel=1e-4)
    assert float(task.loss(target[:3], prediction[:3])) == pytest.approx(metrics["val/loss"], rel=1e-5)


def test_baselines_and_table_stand_on_the_held_out_universes(universes: Path) -> None:
    task = _task(universes)
    found = {metric.name: metric.value for metric in task.baselines()}
    true = task.shards.targets[task.split.validation].astype(float)
    mean = task.shards.targets[task.split.train].astype(float).mean(axis=0)
    indices = np.arange(6)
    table = task.prediction_table(indices, np.zeros((6, 3), np.float32))
    assert table["sample"] == list(task.split.validation)
    assert table["simulation"] == list(task.shards.simulation[task.split.validation])
    for i, name in enumerate(task.shards.parameters):
        assert found[f"baseline/mean/{name}"] == pytest.approx(np.mean(np.abs(mean[i] - true[:, i]) / true[:, i]))
        np.testing.assert_allclose(table[f"true_{name}"], true[:, i])
        np.testing.assert_allclose(table[f"predicted_{name}"], (0.3, 0.8628, 0.95)[i], rtol=1e-6)  # a z-score of zero
        # the column and the metric are of the same regression
        error = np.mean(np.abs(np.array(table[f"ridge_{name}"]) - true[:, i]) / true[:, i])
        assert found[f"baseline/ridge/{name}"] == pytest.approx(error)


def test_the_ranks_share_the_spectra_of_the_regression(universes: Path) -> None:
    alone, parts = Rank(), [Rank(rank, 3) for rank in range(3)]
    for rank in (alone, *parts):
        _task(universes, rank)
    total = sum(part.sent["features"] for part in parts)
    np.testing.assert_array_equal(total, alone.sent["features"])
    filled = np.array([part.sent["features"].any(axis=1) for part in parts])
    np.testing.assert_array_equal(filled.sum(axis=0), 1)  # each sample on one rank


def test_a_damaged_record_is_named_before_training_starts(universes: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    for file in universes.iterdir():
        (bad / file.name).write_bytes(file.read_bytes())
    victim = min(bad.glob("*.tfrecord"))
    data = bytearray(victim.read_bytes())
    data[5000] ^= 0xFF
    victim.write_bytes(data)
    with pytest.raises(DataError, match=rf"{victim.name}, record 0 at byte 0"):
        _task(bad)


def test_the_mlperf_recipe_scales_targets_to_the_range_of_the_priors(tmp_path: Path) -> None:
    from sciml_kernel.cosmology.recipe_cosmoflow import RECIPE_MLPERF

    out = tmp_path / "universes"
    make_universes(out, n_sims=5, grid=32, box_size_mpc_h=128.0, n_particles=32, seed=3, workers=1)
    layers = [Layer("recipe", COSMOFLOW_MLPERF.defaults), Layer("test", {"path": str(out)})]
    config = resolve("cosmoflow_mlperf", COSMOFLOW_MLPERF.model_type, layers).config
    task = RECIPE_MLPERF.prepare(config, collective=Rank())
    plan = plan_epoch(4, batch_size=4, rank=0, size=1, seed=1, epoch=0, shuffle=False)
    ((x, y),) = task.train_batches(plan)
    physical = task.shards.targets[task.split.train]
    # priors 0.25-0.35, 0.78-0.95, 0.9-1.0 become [-1, 1]
    np.testing.assert_allclose(y, (physical - (0.3, 0.865, 0.95)) / (0.05, 0.085, 0.05), rtol=1e-4, atol=1e-5)
    prediction = task.model(x, training=False)
    assert prediction.shape == (4, 3)
    assert float(np.abs(prediction).max()) < 1.2
    assert float(task.loss(y, prediction)) == pytest.approx(float(np.mean((np.asarray(prediction) - y) ** 2)), rel=1e-5)
