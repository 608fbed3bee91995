"""A training on real ranks goes on when the process that asked for it is gone, and can be taken up by another one."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sciml_kernel.cosmology.factory import make_universes
from sciml_kernel.errors import RunInterruptedError
from sciml_kernel.pool import Pool
from sciml_kernel.session import Run
from sciml_kernel.testing.pool_suite import wait_for

pytestmark = [pytest.mark.mpi, pytest.mark.tf, pytest.mark.horovod, pytest.mark.slow]

START = """
import os, signal, sys, time
import sciml_kernel as sk
pool = sk.Pool.start(2, oversubscribe=True)
run = sk.train("cosmoflow", data=sys.argv[1], pool=pool, network="compact", channels=(4, 8), dense=(8,), batch_size=4,
               epochs=100_000, checkpoint_every_epochs=1_000_000)
while run.status == "created" or sys.argv[2] == "epochs" and "val/loss" not in run.history:
    time.sleep(0.01)
print(run.id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def universes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data") / "universes"
    make_universes(out, n_sims=16, grid=8, box_size_mpc_h=64.0, seed=1, workers=1)
    return out


@pytest.mark.parametrize("killed", ["begun", "epochs"])
@pytest.mark.timeout(240)
def test_a_killed_process_leaves_a_training_that_the_next_one_takes_up(universes: Path, killed: str) -> None:
    """begun: before TensorFlow is imported on the ranks. epochs: in the middle of the training."""
    begun = subprocess.run(
        [sys.executable, "-c", START, str(universes), killed],
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    assert begun.returncode == -signal.SIGKILL
    run = Run.open()
    try:
        assert run.id == begun.stdout.strip()
        assert run.status == "running"
        wait_for(lambda: "val/loss" in run.history, 90)
        seen = int(run.history["val/loss"].sizes["epoch"])
        wait_for(lambda: int(run.history["val/loss"].sizes["epoch"]) > seen, 30)  # it goes on
        assert "epoch 1/" in run.logs(0)
        plot = run.plot()
        drawn = plot.n_drawn
        wait_for(lambda: plot.n_drawn > drawn, 30)
        begin = time.monotonic()
        run.interrupt()
        assert time.monotonic() - begin < 5
        assert run.status == "interrupted"
        assert list(run.record.checkpoints_dir.iterdir())
        with pytest.raises(RunInterruptedError):
            run.wait()
        assert "(interrupted)" in plot.wait(10).text
        pool = Pool.attach()
        assert pool.state == "ready"
        again = run.resume(pool=pool, max_steps=1)
        assert again.wait(60).status == "completed"
    finally:
        Pool.attach().stop()
