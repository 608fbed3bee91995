"""Where data sets that a notebook makes by itself lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from sciml_kernel.data.folders import data_root
from sciml_kernel.errors import DataError


def test_the_variable_decides_and_the_folder_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCIML_DATA", str(tmp_path / "scratch" / "sciml"))
    assert data_root() == tmp_path / "scratch" / "sciml"
    assert data_root().is_dir()


def test_a_relative_or_home_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCIML_DATA", "here")
    assert data_root() == tmp_path / "here"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SCIML_DATA", "~/there")
    assert data_root() == tmp_path / "home" / "there"


@pytest.mark.parametrize("value", [None, ""])
def test_without_it_data_lie_in_the_cache_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SCIML_DATA", raising=False)
    if value is not None:
        monkeypatch.setenv("SCIML_DATA", value)
    assert data_root() == tmp_path / "sciml" / "data"
    assert data_root().is_dir()


def test_a_place_that_can_not_be_made_is_named_with_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SCIML_DATA", str(tmp_path / "file" / "data"))
    with pytest.raises(DataError, match=r"no data can be kept in .*file/data: .*set SCIML_DATA"):
        data_root()
