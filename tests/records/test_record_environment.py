from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from sciml_kernel.records import git_state, lock_hash, versions

NOTHING = {"commit": None, "dirty": None, "diff_sha256": None}


def git(folder: Path, *arguments: str) -> bytes:
    identity = ["-c", "user.name=n", "-c", "user.email=e@x", "-c", "init.defaultBranch=main"]
    return subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "a.txt").write_text("one\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder


def test_outside_a_repository_all_is_null(tmp_path: Path) -> None:
    assert git_state(tmp_path) == NOTHING
    assert git_state(tmp_path / "missing") == NOTHING


def test_a_clean_repository_has_its_commit_and_no_diff(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD").decode().strip()
    assert git_state(repository) == {"commit": commit, "dirty": False, "diff_sha256": None}


def test_a_changed_file_makes_it_dirty_with_the_hash_of_the_diff(repository: Path) -> None:
    (repository / "a.txt").write_text("two\n")
    diff = git(repository, "diff", "--binary", "HEAD")
    state = git_state(repository)
    assert state["dirty"] is True
    assert state["diff_sha256"] == hashlib.sha256(diff).hexdigest()
    git(repository, "add", ".")  # staged or not, the code that runs is the same
    assert git_state(repository) == state


def test_an_untracked_file_makes_it_dirty_and_an_ignored_one_does_not(repository: Path) -> None:
    (repository / ".git" / "info" / "exclude").write_text("ignored\n")
    (repository / "ignored").write_text("")
    assert git_state(repository)["dirty"] is False
    (repository / "new.py").write_text("")
    state = git_state(repository)
    assert state["dirty"] is True
    assert state["diff_sha256"] == hashlib.sha256(b"?? new.py\0").hexdigest()


def test_a_repository_without_a_commit_has_none(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert git_state(tmp_path) == {"commit": None, "dirty": False, "diff_sha256": None}


def test_the_variables_of_a_git_hook_do_not_point_elsewhere(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(repository))
    other = tmp_path / "other"
    other.mkdir()
    assert git_state(other) == NOTHING


def test_a_git_that_hangs_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {tmp_path}/child\nwait\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:/usr/bin:/bin")
    began = time.monotonic()
    assert git_state(tmp_path, timeout_s=1.0) == NOTHING
    assert time.monotonic() - began < 5
    child = Path(f"/proc/{(tmp_path / 'child').read_text().strip()}/stat")
    deadline = time.monotonic() + 10
    while runs(child):  # the signal is sent; the kernel needs a moment
        assert time.monotonic() < deadline
        time.sleep(0.01)


def runs(stat: Path) -> bool:
    """False when the process is gone, or has ended and waits to be reaped by the one that inherited it."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_without_git_all_is_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path) == NOTHING


def test_versions_are_those_of_the_metadata_under_normal_names() -> None:
    found = versions()
    assert found["numpy"] == version("numpy")
    assert found["import-linter"] == version("import_linter")
    assert list(found) == sorted(found)


def test_versions_import_nothing() -> None:
    code = (
        "import sys; from sciml_kernel.records import versions; v = versions(); print('numpy' in v)\n"
        "print([m for m in ('tensorflow', 'pandas', 'mpi4py') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.split("\n")[:2] == ["True", "[]"]


def test_the_lock_hash_is_what_the_set_up_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert lock_hash() is None
    noted = tmp_path / "etc" / "sciml" / "environment.json"
    noted.parent.mkdir(parents=True)
    for text in ("{", "[]", '{"lock": null}', '{"lock": {"sha256": 3}}'):
        noted.write_text(text)
        assert lock_hash() is None
    noted.write_text(json.dumps({"lock": {"sha256": "ab12"}}))
    assert lock_hash() == "ab12"
