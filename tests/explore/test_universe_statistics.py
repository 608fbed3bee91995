"""One-point statistics of universes, against loops over voxels."""

from __future__ import annotations

import statistics

import dask.array as da
import numpy as np
import pytest
import xarray as xr

from sciml_kernel.errors import UsageError
from sciml_kernel.explore import count_statistics

DIMS = ("sample", "z", "y", "x", "channel")


def universes(density: object) -> xr.Dataset:
    return xr.Dataset({"density": (DIMS, density)})


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("channel", [0, 1])
def test_mean_contrast_and_voids_of_each_universe(lazy: bool, channel: int) -> None:
    counts = np.random.default_rng(8).poisson(1.5, (3, 4, 5, 6, 2)).astype(np.int16)
    found = count_statistics(
        universes(da.from_array(counts, chunks=(1, 2, 5, 6, 1)) if lazy else counts), channel=channel
    )
    assert set(found.sizes) == {"sample"}
    assert all((found[name].chunks is not None) is lazy for name in found)  # lazy in, lazy out
    for sample in range(3):
        voxels = [int(count) for count in counts[sample, ..., channel].ravel()]
        mean = statistics.fmean(voxels)
        assert float(found.mean_counts[sample]) == pytest.approx(mean)
        assert float(found.contrast_std[sample]) == pytest.approx(statistics.pstdev(voxels) / mean)
        assert float(found.empty_fraction[sample]) == pytest.approx(voxels.count(0) / len(voxels))
    assert all(found[name].dtype == np.float64 for name in found)


def test_large_counts_do_not_overflow_and_a_uniform_universe_has_no_contrast() -> None:
    found = count_statistics(universes(np.full((1, 8, 8, 8, 1), 30_000, dtype=np.int16)))
    assert float(found.mean_counts[0]) == 30_000.0
    assert float(found.contrast_std[0]) == 0.0
    assert float(found.empty_fraction[0]) == 0.0
    assert found.mean_counts.attrs["units"] == "counts per voxel"


def test_large_counts_have_the_right_contrast() -> None:
    counts = np.zeros((1, 8, 8, 8, 1), dtype=np.int16)
    counts[0, :4] = 30_000  # half of the voxels: counts / mean is 0 or 2, its standard deviation 1
    found = count_statistics(universes(counts))
    assert float(found.contrast_std[0]) == pytest.approx(1.0)
    assert float(found.empty_fraction[0]) == 0.5


def test_targets_go_along() -> None:
    ds = universes(np.ones((2, 2, 2, 2, 1), dtype=np.int16))
    ds["targets"] = (("sample", "parameter"), np.array([[0.3], [0.4]]))
    np.testing.assert_array_equal(count_statistics(ds).targets, [[0.3], [0.4]])


@pytest.mark.parametrize("dims", [("sample", "z", "y", "x"), None])
def test_other_data_are_refused(dims: tuple[str, ...] | None) -> None:
    ds = xr.Dataset({"density": (dims, np.zeros((1, 1, 1, 1)))}) if dims else xr.Dataset({"other": 1})
    with pytest.raises(UsageError, match=r"needs density \(sample, z, y, x, channel\)"):
        count_statistics(ds)
