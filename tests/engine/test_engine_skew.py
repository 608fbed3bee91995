"""How long each rank is busy before the others must wait for it: measured, reported by rank, and told in words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import toy
from on_pool import train

from sciml_kernel.engine.checkpoint import Position
from sciml_kernel.engine.report import Reporter
from sciml_kernel.metrics.names import TRAIN_BUSY_S
from sciml_kernel.pool import Pool
from sciml_kernel.views.training import latest


def _reported(n_ranks: int, seconds_a_step: float, n_steps: int) -> list[tuple[int, int, float]]:
    """(step, rank, value) of each report, where rank r is busy for r + 1 + step ms."""
    sink, now = toy.ListSink(), [0.0]
    reporter = Reporter("run", rank=0, sinks=[sink], every_s=2.0, n_per_step=8, clock=lambda: now[0])
    reporter.begin(Position())
    for step in range(1, n_steps + 1):
        now[0] += seconds_a_step
        busy = (np.arange(n_ranks) + 1 + step) / 1000 if step > 1 else ()
        reporter.step(Position(0, step, step), 1.0, lambda: 0.1, busy)
    return [(event.step, event.rank, event.value) for event in sink.events if event.name == TRAIN_BUSY_S]


def test_each_rank_is_reported_with_its_mean_since_the_last_report() -> None:
    # reports at steps 2, 4, 6; nothing is known of the first step
    assert _reported(3, 1.0, 6) == [
        (step, rank, pytest.approx((rank + 1 + np.mean(steps)) / 1000))
        for step, steps in ((2, [2]), (4, [3, 4]), (6, [5, 6]))
        for rank in range(3)
    ]


def test_many_ranks_are_reported_less_often_and_no_step_is_lost() -> None:
    # 160 ranks at 16 events a second: every 10 s, that is at each fifth report
    events = _reported(160, 1.0, 24)
    assert [step for step, rank, _ in events if rank == 7] == [2, 12, 22]
    assert [value for _, rank, value in events if rank == 7][1] == pytest.approx((8 + np.mean(range(3, 13))) / 1000)


@pytest.mark.tf
def test_one_rank_is_not_timed(tmp_path: Path) -> None:
    assert toy.fit(tmp_path, toy.make_config()).values(TRAIN_BUSY_S) == []


@pytest.mark.mpi
@pytest.mark.tf
@pytest.mark.horovod
def test_rank_that_waits_30_ms_for_its_data_is_named_as_the_slowest(pool: Pool, tmp_path: Path) -> None:
    run = train(pool, tmp_path, "slow", report_every_s=0.2, epochs=4)
    found = run.wait(timeout=90, progress=False).history
    busy = found[TRAIN_BUSY_S]
    assert busy.dims == ("step", "rank")
    assert busy.attrs["units"] == "s"
    assert busy["rank"].values.tolist() == [0, 1]
    reported = busy.dropna("step")
    assert reported.sizes["step"] >= 2
    # a sleep of 30 ms takes 30 ms or, on a loaded machine, more; nothing of it may be rank 0's
    lead = float((reported.sel(rank=1) - reported.sel(rank=0)).median())
    assert 0.025 < lead < 0.08
    assert float(reported.sel(rank=0).median()) < 0.025
    assert "rank 1 is the slowest" in latest(found)
