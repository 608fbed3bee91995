"""The notebook that breaks a pool, as it runs."""

from __future__ import annotations

import os
import re
from pathlib import Path

import nbformat
import pytest

import sciml_kernel as sk
from sciml_kernel.batch import run_notebook
from sciml_kernel.testing.notebooks import kernel_path

IPYNB = Path(__file__).parents[2] / "notebooks" / "01_pools.ipynb"
N_RANKS = 3

pytestmark = [pytest.mark.notebook, pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(300)]


def test_each_break_is_named_and_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PATH", kernel_path(tmp_path / "prefix"))
    monkeypatch.chdir(tmp_path)
    record = run_notebook(IPYNB, {"n_ranks": N_RANKS, "n_calls": 20}, timeout_s=240)
    content = record.read()
    assert content["status"] == "completed", content["error"]

    saved = nbformat.read(record.path / "notebook.ipynb", as_version=4)
    cells = [cell for cell in saved.cells if cell.cell_type == "code"]

    def printed(word: str) -> str:
        """What the cell with this word in it printed and showed."""
        (cell,) = [cell for cell in cells if word in cell.source]
        parts = [output.get("text", output.get("data", {}).get("text/plain", "")) for output in cell.outputs]
        return "".join(parts)

    host = os.uname().nodename
    share = {rank: sum(range(rank, 1000, N_RANKS)) for rank in range(N_RANKS)}
    told = printed("np.arange(1000)")
    for rank, total in share.items():
        assert f"[rank {rank}] my part adds up to {total}\n" in told
    assert "all parts to 499500" in told  # 999 * 1000 / 2
    assert "[100, 101, 104]" in printed("square_of_rank")

    raised = printed("half_a_collective")
    assert f"[rank {N_RANKS - 1} @ {host}] FloatingPointError: loss is not finite" in raised
    assert "ready" in raised.splitlines()[-1]  # new ranks, and the set-up cell has run on them
    killed = printed("psutil.Process(victim).kill")
    assert re.search(rf"rank {N_RANKS - 1} @ {host} .*SIGKILL", killed)
    assert "dead" in killed.splitlines()[-1]
    assert "ready" in printed("pool.restart()")
    interrupted = printed("signal.SIGINT")
    assert "stopped; pool" in interrupted
    assert "is ready" in interrupted
    for rank in range(N_RANKS):
        assert f"rank {rank}: {40 + rank}\n" in interrupted
    assert "was ended after 1 s" in printed("timeout=1.0")
    assert "attached in" in printed("subprocess.run")

    (figure,) = (record.path / "figures").glob("*.png")
    assert figure.read_bytes()[-8:-4] == b"IEND"
    words = printed("views.durations")
    assert words.startswith("Seconds, measured beside owed: start ")
    assert words.count("(owed ") == 7
    assert len(sk.Pool.list()) == 0
