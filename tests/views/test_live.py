"""The live figure: new numbers are shown, soon but not too often, and it never breaks a run."""

from __future__ import annotations

import base64
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import xarray as xr
from view_helpers import dataset, event, pixels

from sciml_kernel.metrics.history import HistoryReader
from sciml_kernel.views import LivePlot, live, shown

SOON_S = 20.0


class FakeDisplay:
    def __init__(self) -> None:
        self.bundles: list[dict[str, Any]] = []
        self.at: list[float] = []
        self.shown = 0

    def show(self, bundle: dict[str, Any]) -> None:
        self.shown += 1
        self._take(bundle)

    def update(self, bundle: dict[str, Any]) -> None:
        self._take(bundle)

    def _take(self, bundle: dict[str, Any]) -> None:
        self.at.append(time.monotonic())
        self.bundles.append(bundle)


class FakeRun:
    """A run that the test moves on. Counts how often it was asked."""

    def __init__(self, n_steps: int = 1) -> None:
        self.n_steps = n_steps
        self.over = False
        self.reads = self.asked = 0
        self.error: Exception | None = None
        self.grows = False

    def history(self) -> xr.Dataset:
        self.reads += 1
        if self.error is not None:
            raise self.error
        self.n_steps += self.grows
        return dataset(*(event("train/loss", 1.0 / step, step=step) for step in range(1, self.n_steps + 1)))

    def is_over(self) -> bool:
        self.asked += 1
        return self.over


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.005)


@pytest.fixture
def displays(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeDisplay]]:
    """Displays that were made. Drawing may take all the time it wants, so that tests are quick."""
    made: list[FakeDisplay] = []

    def factory() -> FakeDisplay:
        made.append(FakeDisplay())
        return made[-1]

    monkeypatch.setattr(live, "_MAX_SHARE", 1e9)
    shown.register_display(factory)
    yield made
    shown.register_display(None)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("plot ")], "a plot still follows"


@pytest.fixture
def run() -> FakeRun:
    return FakeRun()


def follow(run: FakeRun, **options: Any) -> LivePlot:
    options = {"title": "run-1", "min_interval_s": 0.02} | options
    return LivePlot(run.history, run.is_over, **options)


def ended(plot: LivePlot, run: FakeRun) -> None:
    run.over = True
    plot.wait(SOON_S)
    plot.close()


def test_it_shows_itself_at_once_and_in_the_same_place_afterwards(displays: list[FakeDisplay], run: FakeRun) -> None:
    plot = follow(run)
    (display,) = displays
    assert display.shown == 1
    assert display.bundles[0]["text/plain"] == "run-1 (running): step 1: train loss 1 (first 1)"
    run.n_steps = 4
    until(lambda: len(display.bundles) > 1)
    ended(plot, run)
    assert display.shown == 1
    assert [bundle["text/plain"] for bundle in display.bundles[1:]] == [
        "run-1 (running): step 4: train loss 0.25 (first 1)",
        "run-1 (over): step 4: train loss 0.25 (first 1)",
    ]
    pictures = [base64.b64decode(bundle["image/png"]) for bundle in display.bundles]
    assert len({pixels(picture).tobytes() for picture in pictures}) == 3


def test_without_new_numbers_nothing_is_redrawn(displays: list[FakeDisplay], run: FakeRun) -> None:
    plot = follow(run)
    reads = run.reads
    until(lambda: run.reads >= reads + 5)
    assert plot.n_drawn == 1
    assert len(displays[0].bundles) == 1
    ended(plot, run)
    assert plot.n_drawn == 2  # the last figure says that the run is over


def test_a_second_metric_of_the_same_step_is_new(displays: list[FakeDisplay]) -> None:
    events = [event("train/loss", 1.0), event("train/samples_per_s", 10.0), event("train/loss", 0.5, step=2)]
    over = threading.Event()
    plot = LivePlot(lambda: dataset(*events), over.is_set, title="run-1", min_interval_s=0.02)
    events.append(event("train/samples_per_s", 20.0, step=2))  # no new step, no new variable
    until(lambda: plot.n_drawn == 2)
    assert "20 samples/s now" in plot.text
    over.set()
    plot.wait(SOON_S).close()


def test_redraws_keep_their_distance(displays: list[FakeDisplay], run: FakeRun) -> None:
    run.grows = True  # something new whenever it is asked
    plot = follow(run, min_interval_s=0.25)
    until(lambda: len(displays[0].at) >= 4)
    at = displays[0].at[:4]
    ended(plot, run)
    assert min(later - earlier for earlier, later in itertools.pairwise(at)) >= 0.25


def test_drawing_takes_a_small_share_of_the_time(
    displays: list[FakeDisplay], run: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(range(10_000))
    monkeypatch.setattr(live, "_MAX_SHARE", 0.05)
    clock = SimpleNamespace(monotonic=time.monotonic, thread_time=lambda: float(next(ticks)))  # a drawing takes 1 s
    monkeypatch.setattr(live, "time", clock)
    run.grows = True
    plot = follow(run)
    asked = run.asked
    until(lambda: run.asked >= asked + 10)
    assert plot.n_drawn == 1  # the next is due after 1 s / 0.05 = 20 s
    ended(plot, run)
    assert plot.n_drawn == 2  # the last figure does not wait for that


def test_numbers_that_came_before_the_end_are_in_the_last_figure(displays: list[FakeDisplay], run: FakeRun) -> None:
    plot = follow(run, min_interval_s=60.0)
    run.n_steps = 5
    ended(plot, run)
    assert plot.text == "run-1 (over): step 5: train loss 0.2 (first 1)"
    assert displays[0].bundles[-1]["text/plain"] == plot.text
    assert plot.n_drawn == 2


def test_the_file_holds_the_newest_figure_and_is_replaced_as_a_whole(
    displays: list[FakeDisplay], run: FakeRun, tmp_path: Path
) -> None:
    path = tmp_path / "figures" / "training.png"
    plot = follow(run, png_path=path)
    before = path.read_bytes()
    with path.open("rb") as somebody_reads:
        start = somebody_reads.read(10)
        run.n_steps = 3
        until(lambda: plot.n_drawn == 2)
        assert start + somebody_reads.read() == before  # the old file, untouched
    ended(plot, run)
    assert path.read_bytes() == base64.b64decode(displays[0].bundles[-1]["image/png"])
    assert [entry.name for entry in path.parent.iterdir()] == ["training.png"]


def test_a_failing_history_is_logged_once_and_survived(
    displays: list[FakeDisplay], run: FakeRun, caplog: pytest.LogCaptureFixture
) -> None:
    run.error = OSError("stale file handle")
    plot = follow(run)
    assert displays[0].bundles[0] == {"text/plain": "run-1: stale file handle"}
    until(lambda: run.reads >= 4)
    assert isinstance(plot.error, OSError)
    run.error = None
    until(lambda: plot.n_drawn == 1)
    assert plot.error is None
    ended(plot, run)
    assert [record.message for record in caplog.records] == [
        "plot run-1 could not be drawn: OSError: stale file handle"
    ]
    assert "image/png" in displays[0].bundles[-1]


def test_a_run_that_can_not_be_asked_for_its_end_is_asked_again(displays: list[FakeDisplay], run: FakeRun) -> None:
    answers: Iterator[bool | Exception] = iter([RuntimeError("no answer"), RuntimeError("no answer"), True])

    def is_over() -> bool:
        answer = next(answers, True)
        if isinstance(answer, Exception):
            raise answer
        return answer

    plot = LivePlot(run.history, is_over, title="run-1", min_interval_s=0.02)
    plot.wait(SOON_S).close()
    assert plot.text.startswith("run-1 (over)")


def test_a_broken_display_does_not_stop_the_plot(
    displays: list[FakeDisplay], run: FakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: FakeDisplay, bundle: dict[str, Any]) -> None:
        raise ConnectionError("the browser is gone")

    monkeypatch.setattr(FakeDisplay, "update", broken)
    plot = follow(run, png_path=tmp_path / "training.png")
    first = (tmp_path / "training.png").read_bytes()
    run.n_steps = 2
    ended(plot, run)
    assert (tmp_path / "training.png").read_bytes() != first


def test_waiting_has_a_limit_and_close_ends_the_following(displays: list[FakeDisplay], run: FakeRun) -> None:
    plot = follow(run)
    with pytest.raises(TimeoutError, match=r"plot 'run-1': the run is not over after 0\.05 s"):
        plot.wait(0.05)
    run.n_steps = 7
    plot.close()  # the fixture checks that the thread is gone
    assert plot.text == "run-1 (running): step 7: train loss 0.1429 (first 1)"


def test_shown_again_in_a_later_cell_both_outputs_go_on(
    displays: list[FakeDisplay], run: FakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    plot = follow(run)
    plot._ipython_display_()  # the end of the cell that made it
    assert len(displays) == 1
    monkeypatch.setattr(shown, "_SAME_CELL_S", -1.0)  # as if time had passed
    plot._ipython_display_()
    assert len(displays) == 2
    ended(plot, run)
    assert displays[0].bundles[-1] == displays[1].bundles[-1]
    assert displays[1].bundles[-1]["text/plain"].startswith("run-1 (over)")


def test_without_a_display_there_is_still_a_picture_for_any_front_end(
    displays: list[FakeDisplay], run: FakeRun
) -> None:
    shown.register_display(None)
    plot = follow(run)
    with pytest.raises(NotImplementedError):  # IPython then takes the bundle
        plot._ipython_display_()
    bundle, metadata = plot._repr_mimebundle_()
    assert pixels(base64.b64decode(bundle["image/png"])).std() > 0
    assert metadata["image/png"]["alt"] == plot.text
    assert plot.text in repr(plot)
    ended(plot, run)
    assert displays == []


@pytest.mark.parametrize("status", ["completed", "failed", "interrupted"])
def test_the_last_figure_says_how_the_run_ended(displays: list[FakeDisplay], run: FakeRun, status: str) -> None:
    plot = follow(run, status=lambda: status if run.over else "running")
    assert "(running)" in plot.text
    ended(plot, run)
    assert plot.text.startswith(f"run-1 ({status}): step 1")


def test_a_status_that_can_not_be_read_or_lags_is_no_lie(displays: list[FakeDisplay], run: FakeRun) -> None:
    def unreadable() -> str:
        raise OSError("stale file handle")

    plot, other = follow(run, status=unreadable), follow(run, status=lambda: "running")
    ended(plot, run)
    ended(other, run)
    assert plot.text.startswith("run-1 (over)")
    assert other.text.startswith("run-1 (over)")


def test_whenever_the_file_is_read_it_is_a_whole_picture(
    displays: list[FakeDisplay], run: FakeRun, tmp_path: Path
) -> None:
    run.grows = True
    plot = follow(run, png_path=tmp_path / "training.png")
    seen = set()
    while plot.n_drawn < 6:
        content = (tmp_path / "training.png").read_bytes()
        pixels(content)
        seen.add(content)
    ended(plot, run)
    assert len(seen) >= 4


_TRAINING = """
import sys, time
from pathlib import Path
from sciml_kernel.contracts import MetricEvent
from sciml_kernel.metrics.jsonl import JsonlSink

folder = Path(sys.argv[1])
with JsonlSink(folder / "metrics.jsonl") as sink:
    for step in range(1, 41):
        sink.publish([MetricEvent("run", 0, step, 0, "train/loss", 1.0 / step, "", time.time())])
        if step == 20:
            (folder / "half").touch()
            while not (folder / "go").exists():
                time.sleep(0.005)
        time.sleep(0.005)
(folder / "over").touch()
"""


def test_a_plot_made_by_another_process_shows_all_that_was_and_goes_on_to_the_end(
    displays: list[FakeDisplay], tmp_path: Path
) -> None:
    """As after a kernel restart: the training is a process of its own, this one has only the record's files."""
    path = tmp_path / "figures" / "training.png"
    training = subprocess.Popen([sys.executable, "-c", _TRAINING, str(tmp_path)])
    try:
        until((tmp_path / "half").exists)
        plot = LivePlot(
            HistoryReader(tmp_path / "metrics.jsonl").dataset,
            (tmp_path / "over").exists,
            title="run-1",
            min_interval_s=0.02,
            png_path=path,
        )
        assert plot.text == "run-1 (running): step 20: train loss 0.05 (first 1)"
        (tmp_path / "go").touch()
        plot.wait(SOON_S).close()
    finally:
        (tmp_path / "go").touch()
        assert training.wait(SOON_S) == 0
    assert plot.text == "run-1 (over): step 40: train loss 0.025 (first 1)"
    assert plot.n_drawn >= 2
    assert path.read_bytes() == base64.b64decode(displays[0].bundles[-1]["image/png"])
