"""Measured power against theory: the points, their bars and the ratio."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from matplotlib.container import ErrorbarContainer
from view_helpers import nothing_cut_off

from sciml_kernel.errors import UsageError
from sciml_kernel.views import Plot, power_spectra

K = np.geomspace(0.03, 0.5, 12)


def spectrum(power: np.ndarray, modes: np.ndarray | float = 8.0) -> xr.Dataset:
    return xr.Dataset(
        {"power": ("k", power), "modes": ("k", np.broadcast_to(np.asarray(modes, float), power.shape))},
        coords={"k": K[: len(power)]},
    )


def flat(k: np.ndarray) -> np.ndarray:
    return np.full_like(k, 100.0)


def bars(plot: Plot, panel: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """(values, half lengths of the bars) of each series in a panel."""
    found = []
    for container in plot.axes[panel].containers:
        assert isinstance(container, ErrorbarContainer)
        line, _, (collection,) = container
        ends = np.array([segment[:, 1] for segment in collection.get_segments()])
        found.append((np.asarray(line.get_ydata()), (ends[:, 1] - ends[:, 0]) / 2))
    return found


def test_ratio_and_bars_are_those_of_a_gaussian_field() -> None:
    plot = power_spectra({"a": spectrum(np.full(12, 150.0), modes=8)}, {"a": flat})
    ((power, half),) = bars(plot, 0)
    np.testing.assert_allclose(power, 150.0)
    np.testing.assert_allclose(half, 75.0)  # P sqrt(2 / 8)
    ((ratio, half_ratio),) = bars(plot, 1)
    np.testing.assert_allclose(ratio, 1.5)
    np.testing.assert_allclose(half_ratio, 0.75)
    low, high = plot.axes[1].get_ylim()
    assert low == 0
    assert high >= 1.5
    assert "larger scales: a: 1.50" in plot.alt_text


def test_bins_without_modes_or_power_are_left_out() -> None:
    power = np.array([10.0, 20.0, -1.0, 40.0])
    plot = power_spectra({"a": spectrum(power, modes=np.array([4, 0, 4, 4]))}, {"a": flat})
    ((shown, _),) = bars(plot, 0)
    np.testing.assert_allclose(shown, [10.0, 40.0])


@pytest.mark.parametrize("slope", [-1.8, 0.0, 1.8])
def test_the_legend_covers_no_point(slope: float) -> None:
    def law(k: np.ndarray) -> np.ndarray:
        return np.asarray(1e3 * (k / 0.1) ** slope)

    plot = power_spectra(
        {"low sigma_8 = 0.787": spectrum(law(K)), "high sigma_8 = 0.946": spectrum(1.4 * law(K))},
        {"low sigma_8 = 0.787": law, "high sigma_8 = 0.946": lambda k: 1.4 * law(k)},
    )
    nothing_cut_off(plot)
    top = plot.axes[0]
    legend = top.get_legend().get_window_extent(plot.canvas.get_renderer())
    for factor in (1.0, 1.4):
        points = top.transData.transform(np.column_stack([K, factor * law(K)]))
        assert not any(legend.contains(x, y) for x, y in points)
    assert [text.get_text() for text in top.get_legend().get_texts()] == [
        "low sigma_8 = 0.787, linear theory",
        "high sigma_8 = 0.946, linear theory",
        "low sigma_8 = 0.787, measured",
        "high sigma_8 = 0.946, measured",
    ]


def test_each_spectrum_needs_its_theory() -> None:
    with pytest.raises(UsageError, match=r"spectra \['a'\] and theories \['b'\]"):
        power_spectra({"a": spectrum(np.ones(3))}, {"b": flat})
    with pytest.raises(UsageError):
        power_spectra({}, {})
