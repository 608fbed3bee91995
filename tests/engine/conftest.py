"""Makes `import toy` work, here and in the ranks that the tests start; pools that have the toy as a recipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import toy  # noqa: E402

from sciml_kernel.pool import Pool  # noqa: E402
from sciml_kernel.pool.processes import marked_pids  # noqa: E402


@pytest.fixture(scope="module")
def home_of_pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pool")


@pytest.fixture(scope="module")
def pool_of_module(home_of_pool: Path, request: pytest.FixtureRequest) -> Iterator[Pool]:
    """Two ranks for all tests of a module: each leaves them ready. The module's STALL_S, if it has one, is the time
    after which Horovod gives up waiting."""
    recipes = home_of_pool / "recipes"
    recipes.mkdir()
    path = os.pathsep.join([str(toy.install(recipes)), str(HERE), os.environ.get("PYTHONPATH", "")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(home_of_pool))
        variables = {"PYTHONPATH": path.rstrip(os.pathsep)}
        if hasattr(request.module, "STALL_S"):
            variables["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"] = str(request.module.STALL_S)
        pool = Pool.start(n=2, oversubscribe=True, env=variables)
    mark = pool._spec().id
    yield pool
    pool.stop()
    assert marked_pids(mark) == []


@pytest.fixture
def pool(pool_of_module: Pool, home_of_pool: Path, monkeypatch: pytest.MonkeyPatch) -> Pool:
    """The module's pool; the toy is a recipe here too."""
    monkeypatch.setenv("XDG_STATE_HOME", str(home_of_pool))
    monkeypatch.syspath_prepend(str(home_of_pool / "recipes"))
    return pool_of_module
