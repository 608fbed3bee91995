"""The explorer reads what is looked at, and leaves a picture in a saved notebook."""

from __future__ import annotations

import base64

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from view_helpers import nothing_cut_off, pixels

from sciml_kernel.errors import UsageError
from sciml_kernel.views import quicklook

SHAPE = (5, 4, 6, 6, 1)


@pytest.fixture(scope="module")
def counts() -> np.ndarray:
    return np.random.default_rng(2).poisson(5.0, SHAPE).astype(np.int16)


def universes(density: object, **attrs: float) -> xr.Dataset:
    return xr.Dataset({"density": (("sample", "z", "y", "x", "channel"), density)}, attrs=attrs)


def test_a_view_is_the_slice_asked_for(counts: np.ndarray) -> None:
    look = quicklook(universes(counts, box_size_mpc_h=60.0))
    image = look.widget[3, 1]
    shown = image.dimension_values("counts", flat=False)
    np.testing.assert_allclose(10**shown - 1, counts[3, 1, :, :, 0], atol=1e-9)
    np.testing.assert_allclose(image.dimension_values("x", expanded=False), [5, 15, 25, 35, 45, 55])  # Mpc/h
    assert [dimension.name for dimension in look.widget.kdims] == ["sample", "z"]
    assert [len(dimension.values) for dimension in look.widget.kdims] == [5, 4]


def test_only_what_is_looked_at_is_read(counts: np.ndarray) -> None:
    read: set[tuple[int, int]] = set()

    def load(block_id: tuple[int, ...]) -> np.ndarray:
        read.add(block_id[:2])
        return counts[block_id[0], block_id[1]][None, None]

    lazy = da.map_blocks(
        load, chunks=((1,) * 5, (1,) * 4, (6,), (6,), (1,)), dtype=np.int16, meta=np.empty(0, np.int16)
    )
    look = quicklook(universes(lazy))
    assert read <= {(sample, 2) for sample in range(3)}  # the still: the middle slice of the first three
    read.clear()
    look.widget[4, 0]
    assert read == {(4, 0)}


def test_a_saved_notebook_keeps_a_picture_beside_the_explorer(counts: np.ndarray) -> None:
    look = quicklook(universes(counts, box_size_mpc_h=60.0))
    bundle, metadata = look._repr_mimebundle_()
    png = bundle["image/png"]
    assert pixels(base64.b64decode(png)).std() > 0
    assert f'src="data:image/png;base64,{png}"' in bundle["text/html"]
    assert 'alt="Counts per voxel in the slice z = 2 of the first 3 of 5 samples' in bundle["text/html"]
    assert metadata["image/png"]["alt"] == look.still.alt_text == bundle["text/plain"]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_picture_fits(counts: np.ndarray, n: int) -> None:
    still = quicklook(universes(counts[:n], box_size_mpc_h=60.0)).still
    assert len(still.axes) == min(n, 3) + 1  # and the colour bar
    assert still.axes[0].get_title(loc="left") == "sample 0, z = 37.5 Mpc/h"  # slice 2 of 4 voxels of 15
    nothing_cut_off(still)


def test_a_universe_without_particles_can_be_looked_at() -> None:
    look = quicklook(universes(np.zeros(SHAPE, np.int16)))
    pixels(look.still.png())
    assert look.still.axes[0].get_xlabel() == "x (voxel)"  # no box size known


def test_other_data_are_refused(counts: np.ndarray) -> None:
    with pytest.raises(UsageError, match="quicklook needs a variable 'density'"):
        quicklook(xr.Dataset({"density": (("z", "y", "x"), counts[0, ..., 0])}))
    with pytest.raises(UsageError, match="quicklook needs a variable 'mass'"):
        quicklook(universes(counts), name="mass")


@pytest.mark.slow  # datashader compiles on first use
def test_large_slices_are_rasterised_for_the_screen() -> None:
    density = da.zeros((1, 1, 600, 600, 1), chunks=(1, 1, 600, 600, 1), dtype=np.int16)
    image = quicklook(universes(density)).widget[0, 0]
    height, width = image.dimension_values("counts", flat=False).shape
    assert max(height, width) < 600
