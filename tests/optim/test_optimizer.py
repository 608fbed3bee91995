"""Step sizes, LARC and the update rules against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sciml_kernel.config import OptimConfig

pytestmark = pytest.mark.tf


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("warmup", [0, 5])
def test_the_graph_and_plain_python_agree_on_the_step_size(schedule: str, warmup: int) -> None:
    from sciml_kernel.optim.schedules import StepSize, step_size

    config = OptimConfig(schedule=schedule, learning_rate=0.4, final_learning_rate=0.04)
    graph = StepSize(config, warmup_steps=warmup, total_steps=40)
    for step in range(45):
        plain = step_size(config, step, warmup_steps=warmup, total_steps=40)
        assert float(graph(step)) == pytest.approx(plain, rel=1e-5), step


def test_the_step_size_starts_ends_and_is_halfway_where_the_formula_says() -> None:
    from sciml_kernel.optim.schedules import step_size

    linear = OptimConfig(schedule="linear", learning_rate=1.0, final_learning_rate=0.0)
    assert [step_size(linear, s, warmup_steps=4, total_steps=13) for s in (0, 3, 4, 8, 12, 20)] == pytest.approx(
        [0.25, 1.0, 1.0, 0.5, 0.0, 0.0]
    )
    cosine = OptimConfig(schedule="cosine", learning_rate=1.0, final_learning_rate=0.2)
    # cos(pi / 4): 0.2 + 0.8 (1 + 1/sqrt 2) / 2
    assert step_size(cosine, 2, warmup_steps=0, total_steps=9) == pytest.approx(0.2 + 0.4 * (1 + 0.5**0.5))
    constant = OptimConfig(schedule="constant", learning_rate=0.3)
    assert step_size(constant, 99, warmup_steps=0, total_steps=10) == 0.3


def test_larc_scales_each_tensor_by_its_own_norms() -> None:
    import keras

    from sciml_kernel.optim.larc import clip

    weights = [np.array([3.0, 4.0], np.float32), np.zeros(2, np.float32), np.array([1.0, 0.0], np.float32)]
    gradients = [np.array([0.0, 2.0], np.float32), np.array([7.0, 0.0], np.float32), np.zeros(2, np.float32)]
    made = clip([keras.ops.convert_to_tensor(g) for g in gradients], [keras.Variable(w) for w in weights], eta=0.002)
    # |w| = 5, |g| = 2: factor 0.002 * 5 / 2; a zero weight is left free; a zero gradient stays zero
    np.testing.assert_allclose(np.asarray(made[0]), gradients[0] * 0.005, rtol=1e-6)
    np.testing.assert_allclose(np.asarray(made[1]), gradients[1])
    np.testing.assert_array_equal(np.asarray(made[2]), 0.0)
    small = clip([keras.ops.convert_to_tensor(gradients[0] * 1e-5)], [keras.Variable(weights[0])], eta=0.002)
    np.testing.assert_allclose(np.asarray(small[0]), gradients[0] * 1e-5, rtol=1e-6)  # never enlarged


def _numpy_sgd(w: Any, gradients: Any, rates: Any, momentum: float) -> Any:
    velocity = np.zeros_like(w)
    for g, rate in zip(gradients, rates, strict=True):
        velocity = momentum * velocity - rate * g
        w = w + velocity
    return w


def _numpy_adam(w: Any, gradients: Any, rates: Any, beta_1: float) -> Any:
    # Kingma & Ba 2015, algorithm 1
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, (g, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        m, v = beta_1 * m + (1 - beta_1) * g, 0.999 * v + 0.001 * g**2
        w = w - rate * (m / (1 - beta_1**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-7)
    return w


@pytest.mark.parametrize(("rule", "momentum"), [("sgd", 0.8), ("adam", 0.9)])
def test_the_update_rules_are_those_of_the_papers(rule: str, momentum: float) -> None:
    import keras

    from sciml_kernel import optim
    from sciml_kernel.optim.schedules import step_size

    config = OptimConfig(optimizer=rule, momentum=momentum, learning_rate=0.1, schedule="cosine", warmup_epochs=0.5)
    random = np.random.default_rng(5)
    start, gradients = random.normal(size=4).astype(np.float32), random.normal(size=(8, 4)).astype(np.float32)
    variable = keras.Variable(start)
    optimizer = optim.build(config, steps_per_epoch=4, epochs=2)
    optimizer.build([variable])
    for step, gradient in enumerate(gradients):
        assert optimizer.learning_rate == pytest.approx(step_size(config, step, warmup_steps=2, total_steps=8))
        optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
    rates = [step_size(config, step, warmup_steps=2, total_steps=8) for step in range(8)]
    expected = (_numpy_sgd if rule == "sgd" else _numpy_adam)(start.astype(float), gradients, rates, momentum)
    np.testing.assert_allclose(np.asarray(variable), expected, rtol=2e-4, atol=1e-5)
