"""A training in a notebook: the stop button, the next cell, a restart of the kernel in the middle."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sciml_kernel.cosmology.factory import make_universes
from sciml_kernel.testing.kernels import KernelSession

pytestmark = [
    pytest.mark.notebook,
    pytest.mark.mpi,
    pytest.mark.tf,
    pytest.mark.horovod,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture
def session(kernel: None) -> Iterator[KernelSession]:
    session = KernelSession()
    yield session
    session.close()


def test_a_training_is_interrupted_resumed_and_goes_on_through_a_restart_of_the_kernel(
    session: KernelSession, tmp_path: Path
) -> None:
    make_universes(tmp_path / "u", n_sims=16, grid=8, box_size_mpc_h=64.0, seed=1, workers=1)
    session.do("import sciml_kernel as sk\npool = sk.Pool.start(2, oversubscribe=True)\npids = pool.run('os:getpid')")
    session.begin(
        f"run = sk.train('cosmoflow', data={str(tmp_path / 'u')!r}, pool=pool, network='compact', channels=(4,),\n"
        "               dense=(8,), batch_size=4, epochs=100_000, checkpoint_every_epochs=1_000_000)\n"
        "run.plot()\nrun.wait()",
        until="epoch   2",
    )
    begin = time.monotonic()
    session.manager.interrupt_kernel()
    content = session.client.get_shell_msg(timeout=30)["content"]
    assert time.monotonic() - begin < 10  # 0.5 s on an idle machine
    assert (content["status"], content["ename"]) == ("error", "RunInterruptedError")
    assert "resume() goes on" in content["evalue"]
    assert session.do("print(run.status, pool.state, pool.run('os:getpid') == pids)") == "interrupted ready True\n"

    session.begin("again = run.resume()\nagain.wait()", until="epoch")
    session.restart()
    session.do("import sciml_kernel as sk\npool, run = sk.Pool.attach(), sk.Run.open()")
    assert session.do("print(run.status, pool.state)") == "running busy\n"
    status, _, shown, _ = session.run("plot = run.plot()")
    assert status == "ok"
    assert any("image/png" in content["data"] for content in shown)
    session.do(
        "import time\nfirst = run.history['val/loss'].sizes['epoch']\n"
        "while run.history['val/loss'].sizes['epoch'] == first: time.sleep(0.05)\n"
    )
    assert "resumed at epoch" in session.do("print(run.logs(0))")
    session.do("run.interrupt()")
    assert session.do("print(run.status, pool.state)") == "interrupted ready\n"
    assert "is stopped" in session.do("%pool stop")
