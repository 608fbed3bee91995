"""The loop on one rank, against a loop in numpy that knows nothing of it."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import toy

from sciml_kernel.contracts import ShardPlan
from sciml_kernel.data.sharding import plan_epoch
from sciml_kernel.errors import ConfigError, DataError, RunError

pytestmark = pytest.mark.tf


def _numpy_descent(weights: list[np.ndarray], batches: np.ndarray, rate: float) -> tuple[list[np.ndarray], list[float]]:
    """Gradient descent on the mean over batch and targets of (x W + b - y)^2, float64.

    With e = x W + b - y and m entries in e: dL/dW = 2 x^T e / m, dL/db = 2 sum(e) / m.
    """
    x, y = (array.astype(np.float64) for array in toy.data())
    w, b = (array.astype(np.float64) for array in weights)
    losses = []
    for batch in batches:
        e = x[batch] @ w + b - y[batch]
        losses.append(float(np.mean(e**2)))
        w, b = w - rate * 2 * x[batch].T @ e / e.size, b - rate * 2 * e.sum(0) / e.size
    return [w, b], losses


def _batches(epochs: int, batch_size: int = 8, seed: int = 1) -> np.ndarray:
    plans = [
        plan_epoch(toy.N_TRAIN, batch_size=batch_size, rank=0, size=1, seed=seed, epoch=epoch)
        for epoch in range(epochs)
    ]
    return np.concatenate([plan.indices for plan in plans])


def test_training_equals_gradient_descent_in_numpy(tmp_path: Path) -> None:
    start = toy.fit(tmp_path / "0", toy.make_config(epochs=0))
    fitted = toy.fit(tmp_path / "3", toy.make_config(epochs=3))
    expected, losses = _numpy_descent(start.weights, _batches(3), rate=0.05)
    for got, wanted in zip(fitted.weights, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(fitted.values("train/loss"), losses, rtol=2e-5)  # one report a step: every_s is 0
    assert [event.step for event in fitted.events if event.name == "train/loss"] == list(range(1, 19))


def test_descent_on_all_samples_ends_in_the_least_squares_solution(tmp_path: Path) -> None:
    config = toy.make_config(epochs=400, batch_size=toy.N_TRAIN, learning_rate=0.5, checkpoint_every_epochs=400)
    x, y = (array[: toy.N_TRAIN] for array in toy.data())
    solution = np.linalg.lstsq(np.column_stack([x, np.ones(len(x))]), y, rcond=None)[0]
    w, b = toy.fit(tmp_path, config).weights
    np.testing.assert_allclose(np.vstack([w, b]), solution, atol=2e-5)


def test_validation_counts_each_sample_once_though_13_fill_no_batch_of_8(tmp_path: Path) -> None:
    fitted = toy.fit(tmp_path, toy.make_config(epochs=2))
    assert fitted.values("val/count") == [13, 13]
    w, b = fitted.weights
    x, y = (array[toy.N_TRAIN :] for array in toy.data())
    np.testing.assert_allclose(fitted.values("val/loss")[-1], np.mean((x @ w + b - y) ** 2), rtol=1e-5)
    assert [(e.epoch, e.step) for e in fitted.events if e.name == "val/loss"] == [(0, 6), (1, 12)]


def test_predictions_hold_each_validation_sample_once_in_order(tmp_path: Path) -> None:
    fitted = toy.fit(tmp_path, toy.make_config(epochs=1))
    with (tmp_path / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["sample"]) for row in rows] == list(range(13))
    w, b = fitted.weights
    x, y = (array[toy.N_TRAIN :] for array in toy.data())
    np.testing.assert_allclose([float(row["predicted_0"]) for row in rows], (x @ w + b)[:, 0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose([float(row["true_0"]) for row in rows], y[:, 0], rtol=1e-6)
    assert [path.name for path in tmp_path.iterdir() if path.name != "checkpoints"] == ["predictions.csv"]


def test_no_epochs_only_validates(tmp_path: Path) -> None:
    fitted = toy.fit(tmp_path, toy.make_config(epochs=0))
    assert fitted.outcome.status == "completed"
    assert fitted.task.seen == []
    assert fitted.values("train/loss") == []
    assert len(fitted.values("val/loss")) == 1
    assert (tmp_path / "predictions.csv").exists()
    assert not (tmp_path / "checkpoints").exists()


def test_max_steps_ends_in_the_middle_of_an_epoch_with_a_validation(tmp_path: Path) -> None:
    fitted = toy.fit(tmp_path, toy.make_config(epochs=5, max_steps=8))
    assert fitted.outcome.position.step == 8
    assert fitted.outcome.position.epoch == 1
    assert len(fitted.values("val/loss")) == 2
    assert (tmp_path / "checkpoints" / "step-00000008.npz").exists()
    assert (tmp_path / "predictions.csv").exists()


def test_baselines_come_once_and_before_the_first_step(tmp_path: Path) -> None:
    fitted = toy.fit(tmp_path, toy.make_config(epochs=2))
    names = [event.name for event in fitted.events]
    assert names[0] == "baseline/mean/y"
    assert names.count("baseline/mean/y") == 1


def test_learning_rate_and_rates_stand_beside_each_loss(tmp_path: Path) -> None:
    fitted = toy.fit(tmp_path, toy.make_config(epochs=1))
    n = len(fitted.values("train/loss"))
    for name in ("train/samples_per_s", "train/samples_per_s_avg", "train/learning_rate"):
        assert len(fitted.values(name)) == n
    np.testing.assert_allclose(fitted.values("train/learning_rate"), 0.05, rtol=1e-6)
    assert min(fitted.values("train/samples_per_s_avg")) > 0


def test_one_line_is_said_an_epoch(tmp_path: Path) -> None:
    said = toy.fit(tmp_path, toy.make_config(epochs=2)).said
    assert len(said) == 2
    assert said[0].startswith("epoch 1/2  step 6  train/loss ")
    assert "val/loss" in said[1]


def test_target_of_another_shape_is_refused_before_the_first_step(tmp_path: Path) -> None:
    # (8, 1) against (8, 2) broadcasts: a loss would come out
    with pytest.raises(DataError, match=r"network predicts \(8, 2\) but the target is \(8, 1\)"):
        toy.fit(tmp_path, toy.make_config(fault="shape"))
    assert not (tmp_path / "checkpoints").exists()


def test_class_numbers_against_scores_are_no_mismatch() -> None:
    import tensorflow as tf

    from sciml_kernel.engine.steps import check_shapes

    check_shapes(tf.zeros((2, 4, 6), tf.int32), tf.zeros((2, 4, 6, 3)))
    with pytest.raises(DataError, match="broadcast"):
        check_shapes(tf.zeros((2, 4, 6), tf.int32), tf.zeros((2, 4, 5, 3)))
    with pytest.raises(DataError, match="broadcast"):  # scores against a float map are a mistake
        check_shapes(tf.zeros((2, 4, 6)), tf.zeros((2, 4, 6, 3)))


def test_batch_sizes_unknown_to_the_graph_are_compared_when_it_runs() -> None:
    # the published fault: 64 rows a sample, known to the graph only as "some"
    import tensorflow as tf

    from sciml_kernel.engine.steps import check_shapes

    @tf.function(input_signature=[tf.TensorSpec((None, 3)), tf.TensorSpec((None, 3))], autograph=False)
    def checked(y: tf.Tensor, prediction: tf.Tensor) -> tf.Tensor:
        check_shapes(y, prediction)
        return tf.reduce_sum(y) + tf.reduce_sum(prediction)

    checked(tf.zeros((2, 3)), tf.zeros((2, 3)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="shapes of target and prediction differ"):
        checked(tf.zeros((1, 3)), tf.zeros((64, 3)))


def test_loss_that_is_not_finite_stops_the_run_and_names_the_step(tmp_path: Path) -> None:
    # sample 24 is NaN: the step that reads it is known from the order
    step = 1 + int(np.argwhere(_batches(1) == 24)[0, 0])
    with pytest.raises(RunError, match=rf"train/loss is nan at step {step} \(epoch 1\)"):
        toy.fit(tmp_path, toy.make_config(fault="nan"))


def test_too_few_training_samples_for_a_batch_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="48 samples do not fill one batch of 64"):
        toy.fit(tmp_path, toy.make_config(batch_size=64))


def test_recipe_that_gives_fewer_batches_than_planned_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="gave 5 of 6 batches"):
        toy.fit(tmp_path, toy.make_config(fault="few_batches"))


def test_weight_that_the_loss_does_not_reach_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy.ToyTask, "loss", lambda self, target, prediction: target[0, 0] * 0.0)
    with pytest.raises(ConfigError, match=r"loss does not depend on .*kernel"):
        toy.fit(tmp_path, toy.make_config())


def test_loss_per_sample_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy.ToyTask, "loss", lambda self, target, prediction: (prediction - target)[:, 0])
    with pytest.raises(ConfigError, match=r"loss has shape \(8,\)"):
        toy.fit(tmp_path, toy.make_config())


def test_dropout_and_batch_norm_are_off_in_validation(tmp_path: Path) -> None:
    # the same weights give the same answer twice; with dropout of 0.9 on they would not
    config = toy.make_config(epochs=0, dropout=0.9, normalise=True)
    first, second = (toy.fit(tmp_path / name, config) for name in "ab")
    assert first.values("val/loss") == second.values("val/loss")
    w, b = first.weights[-2:]
    x, y = (array[toy.N_TRAIN :] for array in toy.data())
    # fresh batch normalisation: mean 0, variance 1, epsilon 1e-3
    np.testing.assert_allclose(first.values("val/loss"), [np.mean((x / np.sqrt(1.001) @ w + b - y) ** 2)], rtol=1e-5)


def test_prediction_tables_of_two_ranks_are_merged_by_sample(tmp_path: Path) -> None:
    from sciml_kernel.engine.predictions import Predictions

    class Rank0:
        rank, size = 0, 2

        def gather_json(self, value: dict[str, object]) -> list[dict[str, object]]:
            return [value, {"samples": [], "columns": {}}, {"samples": [0, 2], "columns": {"sample": [0, 2]}}]

    class Task:
        n_validation = 4

        def prediction_table(self, indices: np.ndarray, prediction: np.ndarray) -> dict[str, list[int]]:
            return {"sample": list(indices)}

    table = Predictions(Task())  # type: ignore[arg-type]
    table.add(np.array([3, 1, 1]), np.array([1.0, 1.0, 0.0]), np.zeros((3, 1)))
    table.write(tmp_path / "p.csv", Rank0())  # type: ignore[arg-type]
    assert (tmp_path / "p.csv").read_text() == "sample\n0\n1\n2\n3\n"
    table.add(np.array([3]), np.array([1.0]), np.zeros((1, 1)))
    with pytest.raises(DataError, match="4 different validation samples in 5 rows"):
        table.write(tmp_path / "q.csv", Rank0())  # type: ignore[arg-type]
    assert not (tmp_path / "q.csv").exists()


def test_plans_reach_the_recipe_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[ShardPlan] = []
    original = toy.ToyTask.train_batches

    def noted(self: toy.ToyTask, plan: ShardPlan):  # type: ignore[no-untyped-def]
        plans.append(plan)
        return original(self, plan)

    monkeypatch.setattr(toy.ToyTask, "train_batches", noted)
    toy.fit(tmp_path, toy.make_config(epochs=2))
    assert [plan.epoch for plan in plans] == [0, 1]
    np.testing.assert_array_equal(np.concatenate([plan.indices for plan in plans]), _batches(2))
