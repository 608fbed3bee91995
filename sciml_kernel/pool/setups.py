"""Cells that every engine set runs before it counts as ready.

They lie in the pool's directory, so that whoever replaces the ranks (the keeper by itself, or another process) brings
back what a notebook had set up on them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sciml_kernel.pool.files import read_json, write_json
from sciml_kernel.pool.spec import PoolDir, PoolSpec

__all__ = ["SetUp", "added", "read", "run_all", "start_limit_s", "write"]

PATIENCE = 5.0  # times what a cell took at first: the machine may be busier, and imports no longer cached


@dataclass(frozen=True, slots=True)
class SetUp:
    """code: of the cell. name: what a later version replaces it by; None: its code. seconds: what it took at first."""

    code: str
    name: str | None = None
    seconds: float = 0.0


def added(cells: Sequence[SetUp], new: SetUp) -> list[SetUp]:
    """`cells` with `new` in the place of the one of the same name or the same code, else at the end."""
    same = [i for i, cell in enumerate(cells) if cell.code == new.code or (new.name and cell.name == new.name)]
    if not same:
        return [*cells, new]
    return [new if i == same[0] else cell for i, cell in enumerate(cells) if i == same[0] or i not in same]


def read(directory: PoolDir) -> list[SetUp]:
    found = (read_json(directory.setup_path) or {}).get("cells", [])
    return [SetUp(**cell) for cell in found]


def write(directory: PoolDir, cells: Sequence[SetUp]) -> None:
    write_json(directory.setup_path, {"schema": 1, "cells": [dataclasses.asdict(cell) for cell in cells]})


def start_limit_s(directory: PoolDir, spec: PoolSpec) -> float:
    """Seconds that an engine set may take until it is ready."""
    return spec.timeout_s + PATIENCE * sum(cell.seconds for cell in read(directory))


def run_all(cells: Sequence[SetUp], execute: Callable[[str], str]) -> str:
    """Run them one after the other on this rank; "" or what failed, with its traceback.

    execute: `pool.rank.execute`, or what stands for it.
    """
    for number, cell in enumerate(cells, start=1):
        answer: dict[str, Any] = json.loads(execute(cell.code))
        if not answer["ok"]:
            which = f"{number} ({cell.name})" if cell.name else str(number)
            reason = f"set-up cell {which} failed: {answer['type']}: {answer['message']}"
            return f"{reason}; forget_set_ups() leaves the cells out\n{answer['traceback']}".rstrip()
    return ""
