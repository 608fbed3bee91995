"""Memory of client, controller and ranks over many cells that print a lot."""

from __future__ import annotations

from pathlib import Path

import pytest

from sciml_kernel.pool import Pool
from sciml_kernel.pool.processes import marked_pids
from sciml_kernel.testing.kernels import KernelSession

pytestmark = [pytest.mark.mpi, pytest.mark.slow, pytest.mark.timeout(300)]

N_RANKS, N_CELLS = 2, 500
LINES, LINE = 2_000, "x" * 100  # of each rank in each cell: 202 kB, so the cells after the first 100 print 160 MB
CELL = f"%%ranks\nfor k in range({LINES}):\n    print({LINE!r})"
GROWTH_MB = 25  # of any of the processes, while it handles 80 MB (a rank) or 160 MB (client, controller)


def memory_mb(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


def words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return "kernel"  # it is over


def test_output_of_500_cells_is_kept_by_no_process(kernel: None, folder: Path) -> None:
    with Pool.start(N_RANKS, oversubscribe=True) as pool:
        session = KernelSession()
        kept = dict[int, dict[int, float]]()
        try:
            for n in range(1, N_CELLS + 1):
                status, text, _, _ = session.run(CELL)
                assert status == "ok", text
                if n in (100, N_CELLS):
                    kept[n] = {pid: memory_mb(pid) for pid in (session.pid, *marked_pids(pool._spec().id))}
        finally:
            session.close()
        assert kept[100].keys() == kept[N_CELLS].keys()
        growth = {f"{pid} {words(pid)}": kept[N_CELLS][pid] - before for pid, before in kept[100].items()}
        print({name[-80:]: round(grown, 1) for name, grown in growth.items()})
        assert len(growth) > N_RANKS + 2  # kernel, keeper, controller, ranks
        assert max(growth.values()) < GROWTH_MB, growth
        # Nothing was lost on the way to the log, which is on disk.
        for rank in range(N_RANKS):
            assert pool.logs(rank).count(LINE) == N_CELLS * LINES
