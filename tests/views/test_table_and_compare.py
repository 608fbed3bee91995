"""How far the network is off: numbers worked out by hand, and the figure of the same."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from view_helpers import dataset, event, nothing_cut_off

from sciml_kernel.errors import UsageError
from sciml_kernel.views import error_table, predicted_against_true


@pytest.fixture
def history() -> xr.Dataset:
    return dataset(
        event("val/rel_error/sigma_8", 0.5, step=5, epoch=0),
        event("val/rel_error/sigma_8", 0.03, step=10, epoch=1),
        event("val/rel_error/omega_m", 0.4, step=5, epoch=0),
        event("val/rel_error/omega_m", 0.12, step=10, epoch=1),
        event("baseline/mean/sigma_8", 0.06, step=10, epoch=1),
        event("baseline/mean/omega_m", 0.10, step=10, epoch=1),
        event("baseline/ridge/sigma_8", 0.02, step=10, epoch=1),
    )


@pytest.fixture
def predictions() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "sample": [0, 1, 2],
            "simulation": [0, 0, 1],
            "true_omega_m": [1.0, 2.0, 0.5],
            "predicted_omega_m": [1.1, 1.4, 0.7],  # off by 0.1, 0.3 and 0.4 of the truth
            "true_sigma_8": [1.0, 1.0, 1.0],
            "predicted_sigma_8": [1.0, 1.0, 1.0],
        }
    )


def test_the_last_epoch_counts_beside_the_trivial_answers(history: xr.Dataset, predictions: pd.DataFrame) -> None:
    table = error_table(history, predictions)
    assert list(table.index) == ["omega_m", "sigma_8"]  # as in the predictions
    assert table.index.name == "parameter"
    assert list(table.columns) == ["network", "standard_error", "ridge", "predict_the_mean", "network_over_mean"]
    # simulations: (0.1 + 0.3)/2 = 0.2 and 0.4; standard deviation sqrt(2)/10, over sqrt(2): 0.1
    np.testing.assert_allclose(table.loc["omega_m"], [0.12, 0.1, np.nan, 0.10, 1.2])
    np.testing.assert_allclose(table.loc["sigma_8"], [0.03, 0.0, 0.02, 0.06, 0.5])


def test_without_predictions_there_is_no_scatter(history: xr.Dataset) -> None:
    table = error_table(history)
    assert list(table.columns) == ["network", "ridge", "predict_the_mean", "network_over_mean"]


def test_one_simulation_says_nothing_of_the_scatter(history: xr.Dataset, predictions: pd.DataFrame) -> None:
    table = error_table(history, predictions[predictions["simulation"] == 0])
    assert table["standard_error"].isna().all()


def test_without_a_validation_there_is_no_table() -> None:
    with pytest.raises(UsageError, match="was there a validation"):
        error_table(dataset(event("train/loss", 1.0)))


def test_panels_show_each_answer_at_its_truth(history: xr.Dataset, predictions: pd.DataFrame) -> None:
    predictions["ridge_sigma_8"] = [0.9, 1.0, 1.1]
    table = error_table(history, predictions)
    plot = predicted_against_true(predictions, table, title="Held out")
    omega, sigma = plot.axes
    points = {line.get_label(): line.get_xydata() for line in omega.lines}
    np.testing.assert_allclose(points["network"], [[1.0, 1.1], [2.0, 1.4], [0.5, 0.7]])
    assert "ridge on log P(k)" not in points
    diagonal = points["exact"]
    np.testing.assert_allclose(diagonal[:, 0], diagonal[:, 1])
    np.testing.assert_allclose(points["predict-the-mean"][:, 1], 3.5 / 3)
    ridge = next(line for line in sigma.lines if line.get_label() == "ridge on log P(k)")
    np.testing.assert_allclose(ridge.get_ydata(), [0.9, 1.0, 1.1])
    assert "network 12.00%, mean 10.00%" in omega.get_title(loc="left")
    assert "network 3.00%, ridge 2.00%, mean 6.00%" in sigma.get_title(loc="left")
    assert "sigma_8 network 3.00%, ridge 2.00%, predict-the-mean 6.00%" in plot.alt_text
    assert "3 samples" in plot.alt_text


def test_the_legend_names_every_kind_of_answer(history: xr.Dataset, predictions: pd.DataFrame) -> None:
    predictions["ridge_sigma_8"] = predictions["true_sigma_8"]  # and none for omega_m, the first panel
    plot = predicted_against_true(predictions, error_table(history, predictions))
    (legend,) = plot.legends
    assert {text.get_text() for text in legend.get_texts()} == {
        "exact",
        "predict-the-mean",
        "ridge on log P(k)",
        "network",
    }


def test_three_panels_with_long_titles_fit() -> None:
    names = ["omega_m", "sigma_8", "n_s"]
    rng = np.random.default_rng(1)
    columns = {f"{kind}_{name}": rng.uniform(0.8, 1, 100) for name in names for kind in ("true", "predicted", "ridge")}
    errors = pd.DataFrame(
        {"network": 0.1234, "ridge": 0.1111, "predict_the_mean": 0.1999}, index=pd.Index(names, name="parameter")
    )
    plot = predicted_against_true(pd.DataFrame(columns), errors)
    nothing_cut_off(plot)
    (alone,) = predicted_against_true(pd.DataFrame(columns), errors.loc[["n_s"]]).axes
    assert alone.get_xlabel().startswith("true")


def test_missing_columns_are_named(history: xr.Dataset, predictions: pd.DataFrame) -> None:
    table = error_table(history, predictions)
    with pytest.raises(UsageError, match=r"lack the columns \['predicted_sigma_8'\]"):
        predicted_against_true(predictions.drop(columns="predicted_sigma_8"), table)
