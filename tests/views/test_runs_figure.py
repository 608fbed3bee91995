from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from view_helpers import dataset, event, nothing_cut_off, training

from sciml_kernel.errors import UsageError
from sciml_kernel.views import compare_runs, grid_results


def test_the_curves_of_each_run_are_there_with_their_numbers() -> None:
    long, short = dataset(*training(6, 2)), dataset(*training(4, 2))
    plot = compare_runs({"a": long, "b": short})
    assert [axes.get_title(loc="left") for axes in plot.axes] == ["val/loss", "train/loss"]
    first, second = plot.axes[1].lines
    np.testing.assert_allclose(first.get_ydata(), [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 6])
    np.testing.assert_array_equal(second.get_xdata(), [1, 2, 3, 4])
    assert [text.get_text() for text in plot.legends[0].get_texts()] == ["a", "b"]
    assert "val/loss: a 1, b 1" in plot.alt_text
    nothing_cut_off(plot)


def test_a_run_that_lacks_a_metric_has_no_line_there_and_ranks_are_averaged() -> None:
    ranks = [event("train/loss", value, step=1, rank=rank) for rank, value in enumerate((1.0, 3.0))]
    ranks += [event("train/loss", 4.0, step=2, rank=rank) for rank in range(2)]
    plot = compare_runs({"a": dataset(*ranks), "b": dataset(event("val/loss", 1.0))}, ["train/loss"])
    (line,) = plot.axes[0].lines
    np.testing.assert_allclose(line.get_ydata(), [2.0, 4.0])


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(UsageError, match="the 1 runs have no metric of these to draw"):
        compare_runs({"a": dataset(*training())}, ["val/missing"])


def test_the_results_of_a_grid_are_points_with_their_means() -> None:
    table = pd.DataFrame({"x": [1, 1, 2, 2, 3], "y": [1.0, 3.0, 5.0, 7.0, np.nan], "seed": [1, 2, 1, 2, 1]})
    plot = grid_results(table, "x", "y", title="Results")
    points, line = plot.axes[0].lines
    np.testing.assert_array_equal(points.get_ydata(), [1, 3, 5, 7])
    np.testing.assert_array_equal(line.get_ydata(), [2, 6])
    assert plot.axes[0].get_title(loc="left") == "Results (1 of 5 variants have no result)"
    assert "1 -> 2, 2 -> 6" in plot.alt_text
    nothing_cut_off(plot)
    two = grid_results(table, "x", "y", by="seed")
    assert [text.get_text() for text in two.axes[0].get_legend().get_texts()] == ["seed = 1", "seed = 2"]
    for wrong, words in (({"x": "z"}, "no column 'z'"), ({"x": "x", "y": "y", "by": "sed"}, "did you mean 'seed'")):
        with pytest.raises(UsageError, match=words):
            grid_results(table, **{"y": "y", **wrong})
    with pytest.raises(UsageError, match="none of the 1 variants"):
        grid_results(table.tail(1), "x", "y")
