from __future__ import annotations

from pathlib import Path

import pytest

from sciml_kernel.testing.notebooks import kernel_path


@pytest.fixture
def kernel(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The `sciml` kernel of this Python, found by Jupyter."""
    monkeypatch.setenv("JUPYTER_PATH", kernel_path(tmp_path_factory.mktemp("prefix")))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory of the test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
