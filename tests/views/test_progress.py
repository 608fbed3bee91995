"""Lines of progress: seldom, with a sound guess, and always the last."""

from __future__ import annotations

import pytest

from sciml_kernel.views import ProgressLines


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_line_at_most_every_interval_and_the_last(clock: Clock) -> None:
    lines: list[str] = []
    progress = ProgressLines("universes", interval_s=2.0, write=lines.append, clock=clock)
    for done in range(1, 11):
        clock.now += 0.5
        progress(done, 10)
    # 4 after 2 s: 0.5 s each, 6 to go; 8 after 4 s; 10 is the last
    assert lines == ["universes 4/10, about 3 s to go", "universes 8/10, about 1 s to go", "universes 10/10, 5 s"]


def test_work_of_an_earlier_run_does_not_flatter_the_guess(clock: Clock) -> None:
    lines: list[str] = []
    progress = ProgressLines("universes", interval_s=2.0, write=lines.append, clock=clock)
    clock.now += 1.0
    progress(901, 1000)  # 900 were there
    clock.now += 1.0
    progress(902, 1000)
    assert lines == ["universes 902/1000, about 98 s to go"]  # 2 in 2 s


def test_lines_are_printed_where_nothing_else_is_said(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    progress = ProgressLines("universes", clock=clock)
    progress(1, 1)
    assert capsys.readouterr().out == "universes 1/1, 0 s\n"
