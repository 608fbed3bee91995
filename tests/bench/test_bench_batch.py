"""Runs once as a smoke test: that it measures and says so, not how long it took."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.bench, pytest.mark.notebook]


def test_a_batch_run_is_measured_against_bare_papermill() -> None:
    script = Path(__file__).with_name("bench_batch.py")
    command = [sys.executable, str(script), "1", "ten small cells"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    found = re.fullmatch(
        r"ten small cells: papermill ([\d.]+) s, sciml batch ([\d.]+) s, more ([+-][\d.]+) s "
        r"\((?:within|OVER) 3\.\d+ s\), ratio ([\d.]+); 1 tries each\n",
        done.stdout,
    )
    assert found, done.stdout
    plain, ours, more, ratio = map(float, found.groups())
    assert more == pytest.approx(ours - plain, abs=0.02)
    assert ratio == pytest.approx(ours / plain, abs=0.02)
