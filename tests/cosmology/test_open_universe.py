"""Universes as a lazy Dataset: right values, and no payload read before it is used."""

from __future__ import annotations

import gzip
from pathlib import Path

import cloudpickle
import dask
import numpy as np
import pytest
import xarray as xr

import sciml_kernel as sk
from sciml_kernel.cosmology import make_universes, open_universe, worker
from sciml_kernel.data.manifest import MANIFEST, sha256_of
from sciml_kernel.data.readers import framing
from sciml_kernel.data.universe import UniverseShards
from sciml_kernel.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_universes(tmp_path / "u", n_sims=6, grid=4, box_size_mpc_h=32.0, samples_per_file=4, workers=1)
    return tmp_path / "u"


def test_the_dataset_says_what_it_holds(folder: Path) -> None:
    ds = sk.open_universe(folder)
    assert ds["density"].dims == ("sample", "z", "y", "x", "channel")
    assert ds["density"].shape == (6, 4, 4, 4, 1)
    assert ds["density"].dtype == np.int16
    assert dask.is_dask_collection(ds["density"].data)
    assert list(ds["parameter"].values) == ["omega_m", "sigma_8", "n_s"]
    assert ds["targets"].dims == ("sample", "parameter")
    assert float(ds["targets"].sel(parameter="sigma_8").min()) > 0.78
    np.testing.assert_array_equal(ds["simulation"], range(6))
    np.testing.assert_allclose(ds["x"], [4, 12, 20, 28])
    assert ds["z"].attrs["units"] == "Mpc/h"
    assert ds.attrs["box_size_mpc_h"] == 32.0
    assert ds.attrs["voxel_size_mpc_h"] == 8.0


def test_values_are_those_of_the_files_whichever_way_they_are_asked_for(folder: Path) -> None:
    expected, targets = UniverseShards(folder).read_many(range(6))
    ds = open_universe(folder)
    np.testing.assert_array_equal(ds["density"].values, expected)
    np.testing.assert_array_equal(ds["targets"].values, targets)
    np.testing.assert_array_equal(ds["density"][3].values, expected[3])
    np.testing.assert_array_equal(ds["density"].isel(sample=[5, 2], z=1).values, expected[[5, 2], 1])
    np.testing.assert_array_equal(
        ds["density"].isel(sample=slice(4, 1, -1), x=[0, 3]).values, expected[4:1:-1][..., [0, 3], :]
    )
    np.testing.assert_array_equal(ds["density"].sel(x=20.0).sum("z").values, expected[:, :, :, 2].sum(1))
    np.testing.assert_array_equal(open_universe(folder / MANIFEST)["density"].values, expected)


def test_opening_a_thousand_universes_reads_no_payload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "simulate", lambda **_: xr.DataArray(np.ones((4, 4, 4), dtype=np.int16)))
    make_universes(tmp_path / "u", n_sims=1000, grid=4, box_size_mpc_h=32.0, samples_per_file=50, workers=1)
    # Holes of the same size take the place of every file's content: only names and sizes are left to be read.
    for path in (tmp_path / "u").glob("*.tfrecord"):
        size = path.stat().st_size
        with open(path, "wb") as stream:
            stream.truncate(size)
    monkeypatch.setattr(UniverseShards, "read", lambda *_: pytest.fail("payload was read"))
    ds = open_universe(tmp_path / "u")
    assert ds.sizes["sample"] == 1000
    assert len(np.unique(ds["targets"].sel(parameter="n_s"))) > 990
    assert "density" in repr(ds)
    monkeypatch.undo()
    with pytest.raises(DataError, match="record 10 at byte"):  # and the first use finds out
        ds["density"].isel(sample=160).compute()


def test_a_view_reads_only_the_samples_that_it_shows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    original = UniverseShards.read
    monkeypatch.setattr(UniverseShards, "read", lambda self, i: (read.append(i), original(self, i))[1])
    open_universe(folder)["density"].isel(sample=4, z=0).compute()
    assert set(read) == {4}


def test_a_dataset_can_be_sent_to_another_process(folder: Path) -> None:
    ds = open_universe(folder)
    again = cloudpickle.loads(cloudpickle.dumps(ds))
    np.testing.assert_array_equal(again["density"].values, ds["density"].values)


@pytest.mark.parametrize("zipped", [False, True])
def test_one_file_without_a_manifest_opens_through_its_reader(folder: Path, tmp_path: Path, zipped: bool) -> None:
    source = sorted(folder.glob("*.tfrecord"))[1]
    path = tmp_path / "lonely.bin"
    path.write_bytes(gzip.compress(source.read_bytes()) if zipped else source.read_bytes())
    ds = open_universe(path)
    expected, targets = UniverseShards(folder).read_many([4, 5])
    np.testing.assert_array_equal(ds["density"].values, expected)
    np.testing.assert_array_equal(ds["targets"].values, targets)


def test_what_is_no_universe_is_named(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(DataError, match="there is no data folder"):
        open_universe(tmp_path / "nowhere")
    (tmp_path / "text").write_text("not a universe, only a text file")
    with pytest.raises(DataError, match=r"no installed reader knows .*text.*tfrecord"):
        open_universe(tmp_path / "text")


def test_describing_and_opening_do_not_change_the_files(folder: Path) -> None:
    from sciml_kernel.cosmology import describe_data

    found = describe_data(folder)
    assert found["path"] == str(folder)
    assert found["n_samples"] == 6
    assert found["sha256"] == sha256_of(folder / MANIFEST)
    assert found["size"] == sum(path.stat().st_size for path in folder.glob("*.tfrecord"))
    for file in found["files"]:
        assert file["sha256"] == sha256_of(folder / file["path"])
        assert len(framing.index_records(folder / file["path"])) in (2, 4)
