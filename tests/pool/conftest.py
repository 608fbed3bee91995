"""Pools for these tests: each is ended, and it is asserted that no process of it is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sciml_kernel.pool import Pool, control
from sciml_kernel.pool.plan import known_pools
from sciml_kernel.pool.processes import marked_pids


@pytest.fixture(autouse=True)
def _nothing_left(_alone: None) -> Iterator[None]:
    """Whatever a test started, under this test's own state directory, is gone afterwards."""
    yield
    left: list[int] = []
    for directory, spec in known_pools():
        control.end(directory)
        left += marked_pids(spec.id) if spec else []
        assert not directory.path.exists()
    assert left == []


@pytest.fixture
def start() -> Iterator[Callable[..., Pool]]:
    """Start a pool that ends with the test."""
    pools: list[tuple[Pool, str]] = []

    def begin(n: int = 2, **options: Any) -> Pool:
        pool = Pool.start(n, oversubscribe=True, **options)
        pools.append((pool, pool._spec().id))
        return pool

    yield begin
    for pool, mark in pools:
        pool.stop()
        assert marked_pids(mark) == []
        assert not pool.path.exists()
