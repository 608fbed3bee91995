"""`sciml models` in a process of its own: it imports TensorFlow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tf


def test_models_are_counted_at_their_papers_size() -> None:
    program = str(Path(sys.executable).with_name("sciml"))
    answer = subprocess.run([program, "models", "--json"], capture_output=True, text=True, timeout=100, check=True)
    found = {entry["name"]: entry for entry in json.loads(answer.stdout)}
    # Published: 7.04 million parameters (arXiv 1808.04728), 8,907,556 of MLPerf HPC.
    assert found["cosmoflow"]["parameters"] == 7_041_443
    assert found["cosmoflow_mlperf"]["parameters"] == 8_907_556
    assert set(found["cosmoflow"]) == {
        "name", "input_shape", "parameters", "flops_forward", "flops_training", "flops_training_padded",
    }  # fmt: skip
