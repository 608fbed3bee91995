"""Runs once as a smoke test: that it measures and says so, not how long it took."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.bench, pytest.mark.notebook]


def test_the_start_of_both_kernels_is_measured_and_compared() -> None:
    script = Path(__file__).with_name("bench_kernel.py")
    done = subprocess.run([sys.executable, str(script), "1"], capture_output=True, text=True, timeout=100, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        found = re.search(r"python3 ([\d.]+) s .* sciml ([\d.]+) s .* ratio ([\d.]+)", line)
        assert found, line
        plain, ours, ratio = map(float, found.groups())
        assert ratio == pytest.approx(ours / plain, abs=0.02)
