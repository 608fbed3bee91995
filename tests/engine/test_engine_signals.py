"""SIGINT, the fast road of metrics, reports, rank logs and threads: all that needs no TensorFlow."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from sciml_kernel.contracts import Metric, MetricEvent, Sink
from sciml_kernel.engine import collective as collectives
from sciml_kernel.engine import device, rank_log
from sciml_kernel.engine.checkpoint import Position
from sciml_kernel.engine.interrupt import StopFlag, listening
from sciml_kernel.engine.publish import DataPublisher
from sciml_kernel.engine.report import Reporter
from sciml_kernel.errors import EnvironmentNotFitError, RunError


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_first_sigint_sets_the_flag_and_the_old_handler_comes_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with listening(StopFlag()) as flag:
        os.kill(os.getpid(), signal.SIGINT)
        assert flag.requested
    assert signal.getsignal(signal.SIGINT) is before


def _press_twice(clock: Clock) -> None:
    with listening(StopFlag(clock)):
        os.kill(os.getpid(), signal.SIGINT)
        clock.now += 1.0
        os.kill(os.getpid(), signal.SIGINT)


def test_second_sigint_is_hard_and_the_old_handler_comes_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="interrupted twice"):
        _press_twice(Clock())
    assert signal.getsignal(signal.SIGINT) is before


def test_one_press_that_arrives_twice_is_one() -> None:
    clock = Clock()
    with listening(StopFlag(clock)) as flag:
        os.kill(os.getpid(), signal.SIGINT)
        clock.now += 0.01
        os.kill(os.getpid(), signal.SIGINT)
        assert flag.requested


def test_sigterm_is_left_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with listening(StopFlag()):
        assert signal.getsignal(signal.SIGTERM) is before


def test_outside_the_main_thread_the_handler_is_not_touched() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def inside() -> None:
        with listening(StopFlag()):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [before]


def _event(value: float) -> MetricEvent:
    return MetricEvent("run", 0, 1, 0, "train/loss", value, "", 0.0)


def test_fast_road_sends_at_most_every_half_second_and_the_rest_on_close() -> None:
    sent: list[dict[str, Any]] = []
    clock = Clock()
    sink = DataPublisher(send=sent.append, clock=clock)
    assert isinstance(sink, Sink)
    for value in (1.0, 2.0, 3.0):
        sink.publish([_event(value)])
        clock.now += 0.2
    assert [[event["value"] for event in message["events"]] for message in sent] == [[1.0]]
    sink.publish([_event(4.0)])  # 0.6 s after the first
    assert [event["value"] for event in sent[-1]["events"]] == [1.0, 2.0, 3.0, 4.0]
    sink.publish([_event(5.0)])
    sink.close()
    sink.close()
    assert len(sent) == 3
    assert sent[-1]["events"][-1]["value"] == 5.0


def test_fast_road_keeps_the_newest_200_events() -> None:
    sent: list[dict[str, Any]] = []
    sink = DataPublisher(send=sent.append, every_s=0.0)
    sink.publish([_event(float(i)) for i in range(500)])
    assert [event["value"] for event in sent[-1]["events"]] == [float(i) for i in range(300, 500)]


def test_fast_road_that_fails_is_no_reason_to_stop() -> None:
    def broken(_: dict[str, Any]) -> None:
        raise OSError("socket is closed")

    sink = DataPublisher(send=broken, every_s=0.0)
    sink.publish([_event(1.0)])
    sink.close()


def test_fast_road_is_silent_outside_an_engine_and_makes_no_shell() -> None:
    sink = DataPublisher()
    sink.publish([_event(1.0)])
    sink.close()
    code = (
        "import ipykernel.zmqshell as z; from sciml_kernel.engine.publish import DataPublisher; "
        "DataPublisher().close(); assert not z.ZMQInteractiveShell.initialized()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


class ListSink:
    def __init__(self) -> None:
        self.events: list[MetricEvent] = []

    def publish(self, events: Any) -> None:
        self.events += events

    def close(self) -> None:
        pass


def _reporter(rank: int = 0, every_s: float = 2.0) -> tuple[Reporter, ListSink, Clock, list[str]]:
    sink, clock, said = ListSink(), Clock(), []
    reporter = Reporter("run", rank=rank, sinks=[sink], every_s=every_s, n_per_step=8, say=said.append, clock=clock)
    reporter.begin(Position())
    return reporter, sink, clock, said


def test_reports_come_at_most_every_two_seconds_with_the_mean_since_the_last() -> None:
    reporter, sink, clock, _ = _reporter()
    for step in range(1, 7):  # a step a second, losses 1, 2, 3, ...
        clock.now += 1.0
        reporter.step(Position(0, step, step), float(step), lambda: 0.1)
    losses = [(event.step, event.value) for event in sink.events if event.name == "train/loss"]
    assert losses == [(2, 1.5), (4, 3.5), (6, 5.5)]
    rates = [event.value for event in sink.events if event.name == "train/samples_per_s"]
    assert rates == [8.0, 8.0, 8.0]
    assert {event.unit for event in sink.events if event.name.startswith("train/samples")} == {"1/s"}


def test_what_is_left_at_the_end_of_an_epoch_is_reported() -> None:
    reporter, sink, clock, _ = _reporter()
    clock.now += 0.5
    reporter.step(Position(0, 1, 1), 4.0, lambda: 0.1)
    assert sink.events == []
    reporter.flush(lambda: 0.1)
    reporter.flush(lambda: 0.1)
    assert [event.value for event in sink.events if event.name == "train/loss"] == [4.0]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_loss_that_is_not_finite_is_reported_before_it_ends_the_run(loss: float) -> None:
    reporter, sink, _, _ = _reporter(every_s=1000.0)
    reporter.step(Position(0, 1, 1), 1.0, lambda: 0.1)
    with pytest.raises(RunError, match=r"at step 2 \(epoch 1\)"):
        reporter.step(Position(0, 2, 2), loss, lambda: 0.1)
    assert not math.isfinite([event.value for event in sink.events if event.name == "train/loss"][-1])
    assert reporter.position.step == 2


def test_only_rank_0_speaks() -> None:
    reporter, sink, clock, said = _reporter(rank=1)
    clock.now += 5
    reporter.step(Position(0, 1, 1), 1.0, lambda: 0.1)
    reporter.epoch(Position(0, 1, 1), 1, [Metric("val/loss", 1.0)])
    reporter.say("hello")
    assert sink.events == []
    assert said == []


def test_rank_log_keeps_what_is_printed_and_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "logs" / "rank-3.log"
    for text in ("first", "second"):
        with rank_log.kept(path):
            print(text)
            print("oh", file=sys.stderr)
    assert path.read_text() == "first\noh\nsecond\noh\n"
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("first\nsecond\n", "oh\noh\n")


def test_threads_are_as_told_else_this_ranks_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert device.threads_per_rank(4) == 2
    assert device.threads_per_rank(16) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert device.threads_per_rank(4) == 3
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "5")
    assert device.threads_per_rank(4) == 5


def test_single_in_a_world_of_several_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    monkeypatch.setenv("PMI_SIZE", "4")
    with pytest.raises(EnvironmentNotFitError, match="would train 4 separate models; write collective='horovod'"):
        collectives.make("single")


def test_rank_is_known_from_the_launcher_before_any_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    monkeypatch.setenv("PMI_RANK", "3")
    assert collectives.launch_rank() == 3


def test_engine_modules_that_the_pool_names_load_no_tensorflow() -> None:
    code = "import sys, sciml_kernel.engine.entry; assert not {'tensorflow', 'keras', 'mpi4py'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
