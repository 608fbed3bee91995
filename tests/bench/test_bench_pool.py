"""Runs once as a smoke test: that it measures, compares and leaves nothing, not how long it took."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.bench, pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_pool_and_plain_ipyparallel_are_measured_and_compared() -> None:
    script = Path(__file__).with_name("bench_pool.py")
    command = [sys.executable, str(script), "1", "-n", "2", "--patience", "4", "--markdown"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=True)
    head, _, *rows = done.stdout.splitlines()
    assert [cell.strip() for cell in head.split("|")[2:6]] == [
        "sciml_kernel",
        "ipyparallel",
        "tuned",
        "tuned / sciml_kernel",
    ]
    table = {row.split("|")[1].strip(): [cell.strip() for cell in row.split("|")[2:6]] for row in rows}
    assert len(table) == 11
    *timed, left = table.items()
    assert left == ("processes left after stop", ["0", left[1][1], left[1][2], ""])
    for what, (ours, plain, tuned, ratio) in timed:
        assert ours.endswith("s"), what
        assert not ours.startswith(">"), what  # whatever breaks, it is known within the 4 s
        assert plain.endswith("s"), what
        expected = seconds(tuned) / seconds(ours)
        assert float(ratio.removeprefix("> ")) == pytest.approx(expected, rel=0.1, abs=0.02), what
        assert ratio.startswith(">") == tuned.startswith(">"), what


def seconds(text: str) -> float:
    number, unit = text.removeprefix("> ").split()
    return float(number) / {"s": 1.0, "ms": 1e3}[unit]
