"""Samples by number: right, thread-safe, and every fault named with file and place."""

from __future__ import annotations

import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from sciml_kernel.cosmology import make_universes
from sciml_kernel.data.manifest import Manifest
from sciml_kernel.data.readers.framing import read_records
from sciml_kernel.data.readers.tfrecord import decode_sample
from sciml_kernel.data.stats import Moments, count_moments
from sciml_kernel.data.universe import UniverseShards
from sciml_kernel.errors import DataError

FIRST = "universes-00000-of-00003.tfrecord"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_universes(tmp_path / "u", n_sims=7, grid=4, box_size_mpc_h=32.0, samples_per_file=3, workers=1)
    return tmp_path / "u"


def test_every_number_is_the_sample_that_a_plain_read_gives(folder: Path) -> None:
    plain = [decode_sample(data) for path in sorted(folder.glob("*.tfrecord")) for data in read_records(path)]
    shards = UniverseShards(folder)
    assert (shards.n, len(shards), shards.shape) == (7, 7, (4, 4, 4, 1))
    for i in (6, 0, 3, 2, 5, 1, 4):
        counts, targets = shards.read(i)
        np.testing.assert_array_equal(counts, plain[i][0])
        np.testing.assert_array_equal(targets, plain[i][1])
        np.testing.assert_array_equal(shards.targets[i], plain[i][1])
    many, _ = shards.read_many([5, 1, 5])
    np.testing.assert_array_equal(many, np.stack([plain[i][0] for i in (5, 1, 5)]))
    for wrong in (-1, 7):
        with pytest.raises(IndexError, match=f"sample {wrong} of 7"):
            shards.read(wrong)


def test_threads_and_copies_read_the_same(folder: Path) -> None:
    shards = UniverseShards(folder)
    expected = [shards.read(i)[0].tobytes() for i in range(7)]
    numbers = np.random.default_rng(0).integers(0, 7, 500)
    with ThreadPoolExecutor(8) as threads:
        got = list(threads.map(lambda i: shards.read(int(i))[0].tobytes(), numbers))
    assert got == [expected[i] for i in numbers]
    assert pickle.loads(pickle.dumps(shards)).read(4)[0].tobytes() == expected[4]


def test_a_truncated_file_is_found_on_opening(folder: Path) -> None:
    size = (folder / FIRST).stat().st_size
    os.truncate(folder / FIRST, size - 1)
    with pytest.raises(DataError, match=rf"{FIRST} is truncated: it ends at byte {size - 1}.*record 2 of 3"):
        UniverseShards(folder)


def test_a_missing_or_longer_file_is_found_on_opening(folder: Path) -> None:
    with open(folder / FIRST, "ab") as stream:
        stream.write(b"x")
    with pytest.raises(DataError, match=f"{FIRST} is too long"):
        UniverseShards(folder)
    (folder / FIRST).unlink()
    with pytest.raises(DataError, match=f"{FIRST}, which manifest.json names, can't be read: No such file"):
        UniverseShards(folder)


def test_damage_is_found_when_the_sample_is_read(folder: Path) -> None:
    shards = UniverseShards(folder)
    record = (folder / FIRST).stat().st_size // 3
    raw = bytearray((folder / FIRST).read_bytes())
    raw[record + 60] ^= 1
    (folder / FIRST).write_bytes(raw)
    shards.read(0)
    with pytest.raises(DataError, match=f"{FIRST}, record 1 at byte {record}: checksum of the data"):
        shards.read(1)
    with pytest.raises(DataError, match=f"{FIRST}, record 1 at byte {record}: checksum of the data"):
        shards.check_files()
    UniverseShards(folder, verify=False).read(1)


def test_missing_folders_and_manifests_are_named(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(DataError, match="there is no data folder"):
        UniverseShards(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"holds no manifest\.json"):
        UniverseShards(tmp_path / "empty")
    with pytest.raises(DataError, match="is a file"):
        UniverseShards(folder / FIRST)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m.pop("grid"), "'grid' is missing"),
        (lambda m: m.update(schema="other/9"), "schema is 'other/9'"),
        (lambda m: m["targets"].pop(), "the files hold 7 samples, targets says 6"),
        (lambda m: m.update(n_samples=8), "n_samples says 8"),
        (lambda m: m["files"][0].update(name="../../etc/passwd"), "in the folder itself"),
        (lambda m: m["files"][0].update(colour="red"), "colour"),
        (lambda m: m["targets"][0].pop(), "has not 3 values"),
    ],
)
def test_a_manifest_that_does_not_fit_together_is_refused(folder: Path, change, said: str) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match=said):
        UniverseShards(folder)


def test_a_manifest_that_is_no_json_is_refused(folder: Path) -> None:
    (folder / "manifest.json").write_text("{")
    with pytest.raises(DataError, match="is not JSON"):
        UniverseShards(folder)


def test_manifest_numbers_survive_json_exactly(folder: Path) -> None:
    manifest = UniverseShards(folder).manifest
    assert Manifest.from_json(json.loads(json.dumps(manifest.to_json()))).targets == manifest.targets


def test_moments_in_parts_are_the_moments_of_all() -> None:
    values = np.random.default_rng(1).normal(1e4, 1.0, 1000)  # large mean: a plain sum of squares would lose digits
    parts = [Moments.of(part) for part in np.split(values, [0, 1, 10, 700])]
    total = sum(parts, Moments())
    assert total.count == 1000
    assert total.mean == pytest.approx(np.mean(values), rel=1e-14)
    assert total.std == pytest.approx(np.std(values), rel=1e-9)
    assert Moments.from_json(json.loads(json.dumps(total.to_json()))) == total
    assert np.isnan(Moments().std)


def test_count_moments_are_those_of_the_chosen_samples(folder: Path) -> None:
    shards = UniverseShards(folder)
    expected = np.log1p(shards.read_many([1, 4])[0].astype(np.float64))
    got = count_moments(shards, [1, 4])
    assert got.count == expected.size
    assert got.mean == pytest.approx(expected.mean(), rel=1e-6)
    assert got.std == pytest.approx(expected.std(), rel=1e-6)
