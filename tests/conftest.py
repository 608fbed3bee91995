"""Every test is alone: own HOME, state, runs root and Jupyter folders. In CI `env/test` makes a skip a failure."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sciml_kernel.testing.notebooks import kernel_path

# Two cores, several processes: without this every process starts a thread per core in BLAS and in TensorFlow.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


@pytest.fixture(autouse=True)
def _alone(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path_factory.mktemp("home")
    for name, folder in {
        "HOME": home,
        "XDG_STATE_HOME": home / "state",
        "XDG_CACHE_HOME": home / "cache",
        "XDG_CONFIG_HOME": home / "config",
        "IPYTHONDIR": home / "ipython",
        "JUPYTER_CONFIG_DIR": home / "jupyter-config",
        "JUPYTER_DATA_DIR": home / "jupyter-data",
        "JUPYTER_RUNTIME_DIR": home / "jupyter-runtime",
        "MPLCONFIGDIR": home / "matplotlib",
        "SCIML_RUNS": home / "runs",
    }.items():
        Path(folder).mkdir(parents=True, exist_ok=True, mode=0o700)
        monkeypatch.setenv(name, str(folder))
    for name in ("SCIML_PARENT_RUN", "SCIML_BATCH_RUN", "SCIML_BATCH_OWNER", "SCIML_SITE_CONFIG", "SCIML_MPI"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True, scope="module")
def _no_zombies() -> Iterator[None]:
    """A process that has ended must not stay in the table until this one ends, as it would in a notebook's kernel."""
    yield
    zombies = [child for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE]
    assert zombies == []


@pytest.fixture
def kernel(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The `sciml` kernel of this Python, found by Jupyter."""
    monkeypatch.setenv("JUPYTER_PATH", kernel_path(tmp_path_factory.mktemp("prefix")))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory of the test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
