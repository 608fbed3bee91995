from __future__ import annotations

import math

import pytest

from sciml_kernel.metrics.reduce import RateMeter, over_ranks


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def rates(meter: RateMeter) -> dict[str, float]:
    metrics = meter.metrics()
    assert {metric.unit for metric in metrics} == {"1/s"}
    return {metric.name: metric.value for metric in metrics}


def test_instantaneous_and_average_rate_differ_when_the_pace_changes() -> None:
    clock = Clock()
    meter = RateMeter(clock=clock)
    for _ in range(4):
        meter.add(8)
    clock.now += 2
    assert rates(meter) == {"train/samples_per_s": 16.0, "train/samples_per_s_avg": 16.0}  # 32 in 2 s
    meter.add(8)
    clock.now += 2
    # 8 in the last 2 s; 40 in all 4 s
    assert rates(meter) == {"train/samples_per_s": 4.0, "train/samples_per_s_avg": 10.0}


def test_validation_is_in_the_average_and_not_in_the_instantaneous_rate() -> None:
    clock = Clock()
    meter = RateMeter(clock=clock)
    clock.now += 6  # validation
    meter.mark()
    meter.add(8)
    clock.now += 2
    assert rates(meter) == {"train/samples_per_s": 4.0, "train/samples_per_s_avg": 1.0}


def test_samples_before_a_mark_stay_in_the_average() -> None:
    clock = Clock()
    meter = RateMeter(clock=clock)
    meter.add(8)
    clock.now += 1
    meter.mark()
    meter.add(2)
    clock.now += 1
    assert rates(meter) == {"train/samples_per_s": 2.0, "train/samples_per_s_avg": 5.0}


def test_a_rate_over_no_time_is_nan() -> None:
    assert all(math.isnan(value) for value in rates(RateMeter(clock=Clock())).values())


def test_one_slow_rank_is_found() -> None:
    # mean 2.5, maximum 4 on rank 2: the mean rank waits 4 / 2.5 - 1 = 0.6 of its own time
    spread = over_ranks([1.0, 2.0, 4.0, 3.0])
    assert (spread.mean, spread.minimum, spread.maximum, spread.slowest) == (2.5, 1.0, 4.0, 2)
    assert spread.skew == pytest.approx(0.6)
    assert over_ranks([3.0]).skew == 0.0
    with pytest.raises(ValueError, match="one value a rank"):
        over_ranks([])


def test_a_nan_of_one_rank_is_not_hidden() -> None:
    assert math.isnan(over_ranks([1.0, math.nan]).mean)
