"""`sciml data` and `sciml train` as a person runs them: simulate, train, stop, go on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sciml_kernel import records
from sciml_kernel.config.digest import canonical_json

pytestmark = [pytest.mark.slow, pytest.mark.mpi, pytest.mark.tf, pytest.mark.horovod, pytest.mark.timeout(300)]

# The shell of a CI job may have told its children to ignore Ctrl-C.
PROGRAM = [
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from sciml_kernel.cli import main; main()",
]
SMALL = ["network=compact", "channels=(4,)", "dense=(8,)", "batch_size=4", "data.validation_fraction=0.25"]


def sciml(*words: str) -> Any:
    """The JSON that a command prints."""
    answer = subprocess.run([*PROGRAM, *words, "--json"], capture_output=True, text=True, timeout=200, check=False)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


@pytest.fixture(scope="module")
def universes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data") / "u"
    box = ["--out", str(out), "--n-sims", "16", "--grid", "8", "--box-mpc-h", "64"]
    assert sciml("data", "simulate", "cosmology", *box)["samples"] == 16
    return out


def settings(**more: object) -> list[str]:
    assignments = [*SMALL, *(f"{name}={value}" for name, value in more.items())]
    return [word for assignment in assignments for word in ("--set", assignment)]


def test_what_was_simulated_can_be_inspected(universes: Path) -> None:
    found = sciml("data", "inspect", str(universes))
    assert (found["samples"], found["shape"], found["box_size_mpc_h"]) == (16, [8, 8, 8, 1], 64.0)
    assert list(found["parameters"]) == ["omega_m", "sigma_8", "n_s"]
    file = sciml("data", "inspect", str(universes / found["files"][0]["name"]))
    assert file["format"] == "tfrecord"


@pytest.mark.parametrize(
    ("number", "code", "status"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "cancelled")],
    ids=["interrupt", "terminate"],
)
def test_a_stopped_training_leaves_a_checkpoint_and_goes_on(
    universes: Path, number: signal.Signals, code: int, status: str
) -> None:
    words = ["train", "cosmoflow", "--data", str(universes), "-n", "2", *settings(epochs=100_000)]
    with subprocess.Popen([*PROGRAM, *words], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("epoch"):
                process.send_signal(number)
                break
        process.stdout.read()
        assert process.wait(100) == code
    (run_id,) = [path.name for path in records.runs_root().iterdir()]
    record = records.find(run_id)
    assert record.read()["status"] == status
    assert any(record.checkpoints_dir.iterdir())
    assert sciml("pool", "list") == []
    if number == signal.SIGINT:
        again = sciml("train", "cosmoflow", "--resume", run_id, "-n", "2", "--set", "epochs=1")
        assert again["status"] == "completed"
        assert records.find(again["id"]).read()["extra"]["resumed_from"] == run_id


def test_resuming_with_other_data_or_another_recipe_is_refused(universes: Path, tmp_path: Path) -> None:
    record = records.create("cosmoflow", canonical_json({"data": {"path": str(universes)}, "recipe": "cosmoflow"}))
    for words, message in {
        ("cosmoflow_mlperf",): "is of recipe 'cosmoflow'",
        ("cosmoflow", "--data", str(tmp_path)): "leave out --data",
    }.items():
        command = [*PROGRAM, "train", *words, "--resume", record.id]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert answer.returncode == 2
        assert message in answer.stderr
