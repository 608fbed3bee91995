"""Slabs of a universe, against loops over voxels."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from view_helpers import nothing_cut_off, pixels

from sciml_kernel.errors import UsageError
from sciml_kernel.views import density_slice
from sciml_kernel.views.fields import slab

BOX = 40.0  # Mpc/h; 4 voxels of 10 along z


@pytest.fixture
def density() -> xr.DataArray:
    counts = np.random.default_rng(5).poisson(3.0, (4, 5, 6)).astype(np.int16)
    return xr.DataArray(counts, dims=("z", "y", "x"))


@pytest.mark.parametrize(
    ("thickness", "centre", "slices"),
    [
        (20.0, None, [1, 2]),  # middle of the box: 10 to 30
        (10.0, 5.0, [0]),
        (20.0, 0.0, [0, 1]),  # moved into the box
        (20.0, 40.0, [2, 3]),
        (0.1, 35.0, [3]),  # never less than a voxel
        (1000.0, None, [0, 1, 2, 3]),  # never more than the box
    ],
)
@pytest.mark.parametrize("lazy", [False, True])
def test_a_slab_is_the_mean_of_its_slices_over_the_mean_of_the_box(
    density: xr.DataArray, thickness: float, centre: float | None, slices: list[int], lazy: bool
) -> None:
    found = slab(
        density.chunk({"z": 1}) if lazy else density, box_size_mpc_h=BOX, thickness_mpc_h=thickness, z_mpc_h=centre
    )
    counts = density.to_numpy()
    total = sum(int(count) for count in counts.ravel())
    for y in range(5):
        for x in range(6):
            column = sum(int(counts[z, y, x]) for z in slices) / len(slices)
            assert found[y, x] == pytest.approx(column / (total / counts.size), rel=1e-12)
    assert found.dims == ("y", "x")
    assert found.dtype == np.float64
    assert found.attrs["z_from_mpc_h"] == slices[0] * 10.0
    assert found.attrs["z_to_mpc_h"] == (slices[-1] + 1) * 10.0
    np.testing.assert_allclose(found.y, [4, 12, 20, 28, 36])  # voxel centres
    np.testing.assert_allclose(found.x, (np.arange(6) + 0.5) * 40 / 6)


def test_a_whole_box_of_large_counts_has_mean_one() -> None:
    counts = np.full((4, 4, 4), 32767, dtype=np.int16)  # a sum in int16 would overflow
    found = slab(xr.DataArray(counts, dims=("z", "y", "x")), box_size_mpc_h=BOX, thickness_mpc_h=BOX)
    np.testing.assert_allclose(found, 1.0, rtol=1e-12)


def test_wrong_questions_are_refused(density: xr.DataArray) -> None:
    with pytest.raises(UsageError, match="select one sample and one channel"):
        slab(density.expand_dims("channel"), box_size_mpc_h=BOX, thickness_mpc_h=10)
    with pytest.raises(UsageError, match="41 is outside the box of 40"):
        slab(density, box_size_mpc_h=BOX, thickness_mpc_h=10, z_mpc_h=41.0)
    with pytest.raises(UsageError, match="mean density must be positive, got 0"):
        slab(density * 0, box_size_mpc_h=BOX, thickness_mpc_h=10)


def test_the_map_has_the_box_as_its_axes_and_says_which_slab(density: xr.DataArray) -> None:
    plot = density_slice(density.transpose("z", "y", "x"), box_size_mpc_h=BOX, thickness_mpc_h=20.0, title="Universe 7")
    axes, bar = plot.axes
    assert axes.get_xlim() == (0, BOX)
    assert axes.get_ylim() == (0, BOX)  # y upwards
    assert "10 < z < 30 Mpc/h" in axes.get_title(loc="left")
    assert axes.get_xlabel() == "x (Mpc/h)"
    assert bar.get_ylabel() == "density / mean density"
    assert plot.alt_text.startswith("Universe 7: map of the dark matter density in a slab of 20 Mpc/h")
    nothing_cut_off(plot)
    plain = {label.get_text() for label in bar.get_yticklabels()}
    assert {"0.5", "1", "2"} <= plain  # ratios as they are read, no powers of ten


def test_a_slab_without_a_particle_is_drawn_as_a_void() -> None:
    counts = np.zeros((4, 4, 4), dtype=np.int16)
    counts[3] = 1
    plot = density_slice(
        xr.DataArray(counts, dims=("z", "y", "x")), box_size_mpc_h=BOX, thickness_mpc_h=10.0, z_mpc_h=5.0
    )
    pixels(plot.png())
