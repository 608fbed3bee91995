from __future__ import annotations

import numpy as np
import pytest
from view_helpers import dataset, event, nothing_cut_off, training

from sciml_kernel.errors import UsageError
from sciml_kernel.views import compare_runs


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
