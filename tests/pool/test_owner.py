"""Which pools end with a process, and what the keeper concludes from the owner's note. No ranks are needed for it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sciml_kernel.pool import owner
from sciml_kernel.pool.files import read_json, write_json
from sciml_kernel.pool.owner import GONE_S, OwnerWatch
from sciml_kernel.pool.processes import ProcessId
from sciml_kernel.pool.spec import pools_root


@pytest.fixture
def place() -> Iterator[Path]:
    """The directory of a pool. Afterwards this process owns nothing and is no kernel."""
    path = pools_root() / "p"
    path.mkdir(parents=True)
    yield path
    owner.forget()
    owner.be_kernel("")


@pytest.fixture
def ended() -> ProcessId:
    """A process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = ProcessId.of(process.pid)
    process.communicate()
    return identity


def _note(place: Path, process: ProcessId, connection_file: Path | str) -> None:
    write_json(place / "owner.json", {"process": process.to_json(), "connection_file": str(connection_file)})


def test_a_note_says_who_owns_and_nobody_else_reads_it(place: Path, tmp_path: Path) -> None:
    owner.be_kernel(str(tmp_path / "kernel.json"))
    owner.own(place, "pool")
    assert owner.owned() == ["pool"]
    note = read_json(place / "owner.json")
    assert note == {
        "process": ProcessId.of(os.getpid()).to_json(),
        "connection_file": str(tmp_path / "kernel.json"),
    }
    assert stat.S_IMODE((place / "owner.json").stat().st_mode) == 0o600
    assert owner.left_by(str(tmp_path / "kernel.json")) == ["p"]
    assert owner.left_by(str(tmp_path / "other.json")) == []


def test_what_was_owned_before_the_kernel_was_known_is_noted_too(place: Path, tmp_path: Path) -> None:
    owner.own(place, "pool")
    assert owner.left_by(str(tmp_path / "kernel.json")) == []
    owner.be_kernel(str(tmp_path / "kernel.json"))
    assert owner.left_by(str(tmp_path / "kernel.json")) == ["p"]


def test_a_kept_pool_has_no_owner(place: Path) -> None:
    owner.own(place, "pool")
    owner.release(place)
    assert owner.owned() == []
    assert not (place / "owner.json").exists()


def test_keep_also_frees_a_pool_from_a_kernel_that_has_ended(place: Path, ended: ProcessId, tmp_path: Path) -> None:
    _note(place, ended, tmp_path / "gone.json")
    owner.release(place)
    assert not (place / "owner.json").exists()


def test_keep_leaves_the_note_of_another_living_owner(place: Path, tmp_path: Path) -> None:
    _note(place, ProcessId.of(os.getppid()), tmp_path / "kernel.json")
    owner.release(place)
    assert (place / "owner.json").exists()


def test_a_restart_leaves_the_note_for_the_next_kernel(place: Path, tmp_path: Path) -> None:
    owner.be_kernel(str(tmp_path / "kernel.json"))
    owner.own(place, "pool")
    owner.forget()
    assert owner.owned() == []
    assert owner.left_by(str(tmp_path / "kernel.json")) == ["p"]


def test_a_fork_owns_nothing(place: Path) -> None:
    owner.own(place, "pool")
    code = os.fork()
    if code == 0:
        os._exit(len(owner.owned()))
    assert os.waitpid(code, 0)[1] == 0


def test_a_kernel_that_was_killed_and_put_away_is_gone_after_a_moment(place: Path, ended: ProcessId) -> None:
    """A restart with new ports takes the file away for less than that."""
    _note(place, ended, place / "no.json")
    watch = OwnerWatch(place)
    assert not watch.gone(100.0)
    assert not watch.gone(100.0 + GONE_S - 0.1)
    assert watch.gone(100.0 + GONE_S)


def test_a_file_that_comes_back_in_between_starts_the_wait_anew(place: Path, ended: ProcessId) -> None:
    file = place / "kernel.json"
    _note(place, ended, file)
    watch = OwnerWatch(place)
    assert not watch.gone(100.0)
    file.touch()
    assert not watch.gone(101.0)
    file.unlink()
    assert not watch.gone(102.0)
    assert not watch.gone(102.0 + GONE_S - 0.1)


@pytest.mark.parametrize("case", ["lives", "crashed", "terminal", "another host", "kept", "truncated"])
def test_no_other_owner_counts_as_gone(place: Path, ended: ProcessId, case: str) -> None:
    if case == "lives":
        _note(place, ProcessId.of(os.getpid()), place / "no.json")
    elif case == "crashed":  # Jupyter leaves the file: it may start the kernel again
        (place / "kernel.json").touch()
        _note(place, ended, place / "kernel.json")
    elif case == "terminal":
        _note(place, ended, "")
    elif case == "another host":
        _note(place, ProcessId(ended.pid, ended.start_ticks, "elsewhere"), place / "no.json")
    elif case == "truncated":
        (place / "owner.json").write_text('{"process": {"pid"')
    watch = OwnerWatch(place)
    assert not watch.gone(100.0)
    assert not watch.gone(200.0)
