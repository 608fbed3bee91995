"""The figure of a run says what the history says."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from view_helpers import dataset, event, nothing_cut_off, pixels, training

from sciml_kernel.contracts import MetricEvent
from sciml_kernel.views import Plot, training_curves
from sciml_kernel.views.training import latest, skew_in_words


def panel(plot: Plot, title: str) -> Axes:
    return next(axes for axes in plot.axes if axes.get_title(loc="left").startswith(title))


def curve(axes: Axes, label: str) -> Line2D:
    return next(line for line in axes.lines if str(line.get_label()).startswith(label))


def test_curves_hold_the_reported_numbers_at_their_steps() -> None:
    plot = training_curves(dataset(*training(n_steps=6, n_epochs=2)), title="run-1")
    loss = panel(plot, "Loss")
    each = curve(loss, "training, each report")
    np.testing.assert_array_equal(each.get_xdata(), [1, 2, 3, 4, 5, 6])
    np.testing.assert_allclose(each.get_ydata(), [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 6])
    validation = curve(loss, "validation")
    np.testing.assert_array_equal(validation.get_xdata(), [3, 6])  # the steps done when an epoch was over
    np.testing.assert_allclose(validation.get_ydata(), [2.0, 1.0])
    rate = panel(plot, "Samples per second")
    np.testing.assert_allclose(curve(rate, "last interval").get_ydata(), [10, 11, 12, 13, 14, 15])
    np.testing.assert_allclose(curve(rate, "average so far").get_ydata(), 10.0)
    np.testing.assert_allclose(panel(plot, "Learning rate").lines[0].get_ydata(), 1e-3)
    assert plot.alt_text == (
        "run-1. step 6: train loss 0.1667 (first 1); validation loss 1 after 2 epochs (best 1); "
        "15 samples/s now, 10 on average."
    )


def test_the_smoothed_curve_of_a_constant_is_that_constant() -> None:
    plot = training_curves(dataset(*(event("train/loss", 3.0, step=step) for step in range(1, 400))))
    np.testing.assert_allclose(curve(panel(plot, "Loss"), "training, smoothed").get_ydata(), 3.0)


def test_several_ranks_are_drawn_as_their_mean() -> None:
    events = [event("train/loss", value, step=1, rank=rank) for rank, value in enumerate([1.0, 3.0])]
    line = curve(panel(training_curves(dataset(*events)), "Loss"), "training, each report")
    np.testing.assert_allclose(line.get_ydata(), [2.0])


def test_a_first_single_report_can_be_seen() -> None:
    bare = training_curves(xr.Dataset(), title="t").png()
    plot = training_curves(dataset(event("train/samples_per_s_avg", 50.0)), title="t")
    axes = panel(plot, "Samples per second")
    low, high = axes.get_ylim()
    assert low == 0
    assert high > 50  # not on the edge
    assert curve(axes, "average so far").get_marker() not in ("", "None", None)
    assert (pixels(plot.png()) != pixels(bare)).any()


def test_a_very_long_run_is_thinned_and_keeps_its_newest_point() -> None:
    n = 5001
    plot = training_curves(dataset(*(event("train/loss", 1.0 / step, step=step) for step in range(1, n + 1))))
    line = curve(panel(plot, "Loss"), "training, each report")
    assert len(line.get_xdata()) <= 2000
    assert line.get_xdata()[-1] == n
    assert line.get_ydata()[-1] == pytest.approx(1 / n)


@pytest.mark.parametrize(("last", "scale"), [(0.5, "linear"), (0.01, "log"), (0.0, "linear"), (-1.0, "linear")])
def test_the_loss_is_logarithmic_only_over_decades_of_positive_numbers(last: float, scale: str) -> None:
    plot = training_curves(dataset(event("train/loss", 1.0, step=1), event("train/loss", last, step=2)))
    assert panel(plot, "Loss").get_yscale() == scale
    pixels(plot.png())


def test_without_numbers_the_panels_are_empty_and_say_so() -> None:
    plot = training_curves(xr.Dataset(), title="run-1", note="(waiting for the first numbers)")
    assert plot.alt_text == "run-1. nothing reported yet."
    assert all(not axes.lines for axes in plot.axes)
    nothing_cut_off(plot)


def test_not_a_number_is_left_out() -> None:
    history = dataset(event("train/loss", 1.0, step=1), event("train/loss", float("nan"), step=2))
    assert latest(history) == "step 1: train loss 1 (first 1)"


def test_long_words_are_wrapped_and_nothing_is_cut_off() -> None:
    events = [event("train/loss", value, step=step) for step, value in ((1, 1.2345e-3), (123456, 6.7891e-5))]
    events += [event("val/loss", 6.7892e-5 + 1e-9 * epoch, step=epoch + 1, epoch=epoch) for epoch in range(120)]
    events += [event(name, 1.23e5, step=123456) for name in ("train/samples_per_s", "train/samples_per_s_avg")]
    title = "20261201T120000Z-cosmoflow-with-a-rather-long-name-of-the-run-that-somebody-chose-0123abcd"
    nothing_cut_off(training_curves(dataset(*events), title=title, note="(running)"))


def busy(seconds: list[list[float]]) -> list[MetricEvent]:
    """seconds[i][r]: of rank r at step i + 1."""
    return [
        event("train/busy_s", value, step=i + 1, rank=rank)
        for i, row in enumerate(seconds)
        for rank, value in enumerate(row)
    ]


def test_each_of_a_few_ranks_has_its_line_and_the_slowest_is_named() -> None:
    history = dataset(*training(), *busy([[0.020, 0.050, 0.021], [0.022, 0.048, 0.021]]))
    plot = training_curves(history)
    axes = panel(plot, "Busy time")
    assert axes.get_title(loc="left") == "Busy time: rank 1 is slowest"
    assert axes.get_ylabel() == "ms a step"
    np.testing.assert_allclose([line.get_ydata() for line in axes.lines], [[20, 22], [50, 48], [21, 21]])
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), [1, 2])
    # 49 ms; the mean of 21, 49 and 21 ms is 30.3
    assert "rank 1 is the slowest: busy 49 ms a step, the mean of all is 30.3 ms" in plot.alt_text
    nothing_cut_off(plot)


def test_ranks_that_keep_pace_are_not_blamed() -> None:
    plot = training_curves(dataset(*busy([[1.00, 1.01]])))
    assert panel(plot, "Busy time").get_title(loc="left") == "Busy time: the ranks keep pace"
    assert "the ranks keep pace: busy 1 s a step, the slowest 1.01 s" in plot.alt_text
    assert panel(plot, "Busy time").get_ylabel() == "s a step"


def test_many_ranks_are_a_band_and_the_slowest_line() -> None:
    rows = [[0.02 + 0.001 * (rank == 3) * step for rank in range(16)] for step in (10, 20)]
    plot = training_curves(dataset(*busy(rows)))
    axes = panel(plot, "Busy time: rank 3 is slowest")
    np.testing.assert_allclose(curve(axes, "rank 3").get_ydata(), [30, 40])
    np.testing.assert_allclose(curve(axes, "mean").get_ydata(), [(15 * 20 + 30) / 16, (15 * 20 + 40) / 16])
    assert len(axes.lines) == 2
    (band,) = axes.collections
    assert band.get_datalim(axes.transData).bounds == pytest.approx((1, 20, 1, 20))  # 20 to 40 ms over steps 1 to 2
    nothing_cut_off(plot)


@pytest.mark.parametrize("n_ranks", [2, 8, 9, 64])
def test_legend_of_the_ranks_covers_no_line(n_ranks: int) -> None:
    plot = training_curves(dataset(*training(), *busy([[0.02] * (n_ranks - 1) + [0.05]] * 6)))
    nothing_cut_off(plot)
    axes = panel(plot, "Busy time")
    legend = axes.get_legend().get_window_extent()
    top = axes.transData.transform((0, max(float(np.max(line.get_ydata())) for line in axes.lines)))[1]
    assert legend.y0 > top
    assert legend.x1 <= axes.get_window_extent().x1 + 1


def test_one_rank_has_no_panel_of_ranks_and_the_newest_reports_count() -> None:
    assert [axes.get_title(loc="left") for axes in training_curves(dataset(*training())).axes] == [
        "Loss",
        "Learning rate",
        "Samples per second, all ranks",
    ]
    early, late = [[0.5, 0.1]] * 10, [[0.1, 0.2]] * 5
    assert skew_in_words(dataset(*busy(early + late))).startswith("rank 1 is the slowest: busy 200 ms")
