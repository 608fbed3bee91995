"""The toy on a pool of two ranks, as a notebook would train it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sciml_kernel as sk
from sciml_kernel.pool import Pool

SETTINGS: dict[str, Any] = {
    "optimizer": "sgd",
    "schedule": "constant",
    "learning_rate": 0.05,
    "report_every_s": 0.0,
    "epochs": 2,
}


def until(condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not in {timeout_s:g} s: {what}"
        time.sleep(0.01)


def train(pool: Pool, folder: Path, fault: str = "", **settings: Any) -> sk.Run:
    """Six steps an epoch; the fault is rank 1's unless `fault_rank` says otherwise."""
    return sk.train("toy", data=folder, pool=pool, fault=fault, **{"fault_rank": 1} | SETTINGS | settings)


def runs_again(pool: Pool, folder: Path) -> None:
    """The next training, on the same pool object, without a word."""
    assert train(pool, folder).wait(timeout=90, progress=False).status == "completed"


def pids(pool: Pool) -> list[int]:
    return [*pool.run("os:getpid")]
