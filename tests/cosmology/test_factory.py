"""Data sets of universes: the same bytes whoever makes them, restartable, never half there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from sciml_kernel.cosmology import crew, factory, make_universes, simulate, worker
from sciml_kernel.cosmology.targets import PRIORS
from sciml_kernel.data.manifest import Manifest, read_manifest, sha256_of
from sciml_kernel.data.universe import UniverseShards
from sciml_kernel.errors import DataError, SciMLError, UsageError

TINY = {"n_sims": 5, "grid": 4, "box_size_mpc_h": 32.0, "samples_per_file": 2, "workers": 1}
NAMES = [f"universes-0000{i}-of-00003.tfrecord" for i in range(3)]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_holds_what_its_manifest_says(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    manifest = make_universes(tmp_path / "u", **TINY, seed=3, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(i, 5) for i in range(1, 6)]
    assert sorted(content(tmp_path / "u")) == ["manifest.json", *NAMES]
    assert os.listdir(tmp_path) == ["u"]
    assert read_manifest(tmp_path / "u") == manifest
    assert Manifest.from_json(json.loads(json.dumps(manifest.to_json()))) == manifest
    assert [file.n_samples for file in manifest.files] == [2, 2, 1]
    for file in manifest.files:
        assert file.bytes == (tmp_path / "u" / file.name).stat().st_size
        assert file.sha256 == sha256_of(tmp_path / "u" / file.name)
    assert manifest.grid == 4
    assert manifest.n_particles == 8
    assert manifest.voxel_size_mpc_h == 8.0
    assert manifest.simulations == (0, 1, 2, 3, 4)


def test_each_sample_can_be_simulated_again_from_the_manifest(tmp_path: Path) -> None:
    manifest = make_universes(tmp_path / "u", **TINY, seed=3)
    shards = UniverseShards(tmp_path / "u")
    for i in range(5):
        counts, targets = shards.read(i)
        parameters = dict(zip(manifest.parameter_names, manifest.targets[i], strict=True))
        again = simulate(**parameters, n_particles=8, grid=4, box_size_mpc_h=32.0, seed=manifest.seeds[i])
        np.testing.assert_array_equal(counts[..., 0], again)
        np.testing.assert_array_equal(targets, np.array(manifest.targets[i], dtype=np.float32))
        for prior in PRIORS:
            assert prior.low <= parameters[prior.name] <= prior.high


def test_one_worker_and_two_write_the_same_bytes(tmp_path: Path) -> None:
    seen: list[int] = []
    make_universes(tmp_path / "one", **TINY)
    make_universes(tmp_path / "two", **(TINY | {"workers": 2}), progress=lambda done, _: seen.append(done))
    assert content(tmp_path / "one") == content(tmp_path / "two")
    assert seen == [1, 2, 3, 4, 5]
    assert not psutil.Process().children()


def test_a_larger_data_set_begins_with_the_same_universes(tmp_path: Path) -> None:
    small = make_universes(tmp_path / "small", **TINY)
    large = make_universes(tmp_path / "large", **(TINY | {"n_sims": 8, "samples_per_file": 3}))
    assert large.targets[:5] == small.targets
    np.testing.assert_array_equal(
        UniverseShards(tmp_path / "large").read_many(range(5))[0],
        UniverseShards(tmp_path / "small").read_many(range(5))[0],
    )
    assert make_universes(tmp_path / "other", **TINY, seed=2).targets != small.targets


def test_a_finished_data_set_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = make_universes(tmp_path / "u", **TINY)
    monkeypatch.setattr(factory, "run_jobs", lambda *_, **__: pytest.fail("nothing is to be simulated"))
    seen: list[tuple[int, int]] = []
    assert make_universes(tmp_path / "u", **TINY, progress=lambda *done: seen.append(done)) == first
    assert seen == [(5, 5)]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupt_leaves_finished_files_and_the_next_call_goes_on(tmp_path: Path, workers: int) -> None:
    make_universes(tmp_path / "whole", **TINY)
    asked = TINY | {"workers": workers}

    def interrupt(done: int, _: int) -> None:
        # Three files, two workers: when the first is finished a sample of the third is still to come.
        if any((tmp_path / "u.partial").glob("universes-*")):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_universes(tmp_path / "u", **asked, progress=interrupt)
    assert not (tmp_path / "u").exists()
    left = content(tmp_path / "u.partial")
    assert not any(".tmp-" in name for name in left)
    assert set(NAMES) & set(left)
    assert "manifest.json" not in left
    assert not psutil.Process().children()
    seen: list[int] = []
    make_universes(tmp_path / "u", **asked, progress=lambda done, _: seen.append(done))
    assert seen[0] >= 2  # the finished files count at once
    assert content(tmp_path / "u") == content(tmp_path / "whole")
    assert not (tmp_path / "u.partial").exists()


def test_a_killed_call_is_taken_up_and_its_half_written_file_goes(tmp_path: Path) -> None:
    script = (
        "import os, signal; from sciml_kernel.cosmology import make_universes\n"
        f"make_universes({str(tmp_path / 'u')!r}, **{TINY!r}, progress=lambda done, _: done == 3 and "
        "os.kill(os.getpid(), signal.SIGKILL))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
    assert not (tmp_path / "u").exists()
    assert any(".tmp-" in name for name in content(tmp_path / "u.partial"))
    make_universes(tmp_path / "u", **TINY)
    make_universes(tmp_path / "whole", **TINY)
    assert content(tmp_path / "u") == content(tmp_path / "whole")


def test_a_damaged_file_of_an_earlier_call_is_made_again(tmp_path: Path) -> None:
    make_universes(tmp_path / "whole", **TINY)

    def stop(done: int, _: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_universes(tmp_path / "u", **TINY, progress=stop)
    raw = bytearray((tmp_path / "u.partial" / NAMES[0]).read_bytes())
    raw[50] ^= 1
    (tmp_path / "u.partial" / NAMES[0]).write_bytes(raw)
    make_universes(tmp_path / "u", **TINY)
    assert content(tmp_path / "u") == content(tmp_path / "whole")


def test_a_full_disk_is_named_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(worker, "write_records", full)
    with pytest.raises(DataError, match=r"can't write .*u\.partial.*No space left on device"):
        make_universes(tmp_path / "u", **TINY)
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_really_full_device_is_named(tmp_path: Path) -> None:
    job = worker.Job(str(tmp_path), "file", 0, 1, 1, 8, 4, 32.0, "2lpt")
    (tmp_path / f".file.tmp-{os.getpid()}").symlink_to("/dev/full")
    with pytest.raises(DataError, match="No space left on device"):
        worker.run_job(job)
    assert os.listdir(tmp_path) == []


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"can't write .*file/u\.partial: (File exists|Not a directory)"):
        make_universes(tmp_path / "file" / "u", **TINY)
    if os.getuid() != 0:  # root may write anywhere
        (tmp_path / "locked").mkdir(mode=0o500)
        with pytest.raises(DataError, match="Permission denied"):
            make_universes(tmp_path / "locked" / "u", **TINY)


def test_a_worker_that_is_killed_ends_the_call_by_name(tmp_path: Path) -> None:
    def kill(done: int, _: int) -> None:
        if done == 1:
            for child in psutil.Process().children():
                child.kill()

    # Files of many samples: the workers are inside one when they are killed.
    with pytest.raises(SciMLError, match=r"worker died \(signal SIGKILL"):
        make_universes(tmp_path / "u", **(TINY | {"n_sims": 400, "samples_per_file": 200, "workers": 2}), progress=kill)
    assert not psutil.Process().children()
    assert os.listdir(tmp_path) == []


def test_an_error_in_a_worker_comes_back_as_it_is(tmp_path: Path) -> None:
    jobs = [worker.Job(str(tmp_path / "nowhere"), f"f{i}", i, i + 1, 1, 8, 4, 32.0, "2lpt") for i in range(2)]
    with pytest.raises(DataError, match=r"can't write .*nowhere/f\d: No such file"):
        crew.run_jobs(jobs, workers=2, after_sample=lambda: None)
    assert not psutil.Process().children()


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("precious")
    for overwrite in (False, True):
        with pytest.raises(DataError, match="not empty and no data set of universes"):
            make_universes(tmp_path / "thesis", **TINY, overwrite=overwrite)
    (tmp_path / "plain").write_text("a file")
    with pytest.raises(DataError, match="is a file"):
        make_universes(tmp_path / "plain", **TINY)
    (tmp_path / "u.partial").mkdir()
    (tmp_path / "u.partial" / "mine.txt").write_text("precious")
    with pytest.raises(DataError, match="in the way"):
        make_universes(tmp_path / "u", **TINY)
    assert (tmp_path / "u.partial" / "mine.txt").read_text() == "precious"
    assert os.listdir(tmp_path / "thesis") == ["chapter1.tex"]


def test_another_data_set_is_replaced_only_when_asked(tmp_path: Path) -> None:
    out = tmp_path / "u"
    make_universes(out, **TINY)
    before = content(out)
    with pytest.raises(DataError, match="holds another data set"):
        make_universes(out, **TINY, seed=2)
    (out / "notes.txt").write_text("precious")
    with pytest.raises(DataError, match=r"notes\.txt"):
        make_universes(out, **TINY, seed=2, overwrite=True)
    (out / "notes.txt").unlink()
    assert content(out) == before
    assert make_universes(out, **TINY, seed=2, overwrite=True).seed == 2
    assert content(out) != before
    assert os.listdir(tmp_path) == ["u"]


def test_a_truncated_data_set_is_not_taken_for_finished(tmp_path: Path) -> None:
    out = tmp_path / "u"
    make_universes(out, **TINY)
    os.truncate(out / NAMES[0], 100)
    with pytest.raises(DataError, match="truncated"):
        make_universes(out, **TINY)
    make_universes(out, **TINY, overwrite=True)
    UniverseShards(out).check_files()


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "u").mkdir()
    make_universes(tmp_path / "u", **TINY)
    assert len(UniverseShards(tmp_path / "u")) == 5


def test_two_calls_for_one_folder_do_not_meet(tmp_path: Path) -> None:
    def second(done: int, _: int) -> None:
        if done == 1:
            with pytest.raises(DataError, match="another process is making"):
                make_universes(tmp_path / "u", **TINY)

    make_universes(tmp_path / "u", **TINY, progress=second)
    assert len(UniverseShards(tmp_path / "u")) == 5


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"n_sims": 0}, "n_sims"),
        ({"n_sims": -3}, "n_sims"),
        ({"n_sims": 2.5}, "n_sims"),
        ({"grid": -4}, "grid"),
        ({"grid": 0}, "grid"),
        ({"box_size_mpc_h": -1.0}, "box_size_mpc_h"),
        ({"n_particles": 2}, "n_particles"),
        ({"seed": -1}, "seed"),
        ({"method": "cola"}, "method"),
        ({"fmt": "hdf5"}, "fmt"),
        ({"samples_per_file": 0}, "samples_per_file"),
        ({"workers": 0}, "workers"),
    ],
)
def test_a_wrong_argument_is_named_and_nothing_is_made(tmp_path: Path, changed: dict, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make_universes(tmp_path / "u", **(TINY | changed))
    assert os.listdir(tmp_path) == []
