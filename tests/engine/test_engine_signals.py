"""SIGINT, the fast road of metrics, reports, rank logs and threads: all that needs no TensorFlow."""

from __future__ import annotations

import contextlib
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
from sciml_kernel.engine import device, divergence, rank_log
from sciml_kernel.engine.checkpoint import Position
from sciml_kernel.engine.interrupt import Interruptible, StopFlag, StopRequested, listening
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


def _prepared_with_a_sigint(flag: StopFlag, seen: list[str], *, held: bool) -> None:
    with listening(flag), flag.breaking():
        with flag.held() if held else contextlib.nullcontext():
            with flag.held() if held else contextlib.nullcontext():
                os.kill(os.getpid(), signal.SIGINT)
            seen.append("inside")
        seen.append("went on")


def test_before_the_first_step_a_sigint_ends_python_code_at_once() -> None:
    flag, seen = StopFlag(), []
    with pytest.raises(StopRequested):
        _prepared_with_a_sigint(flag, seen, held=False)
    assert (seen, flag.requested) == ([], True)


def test_a_sigint_from_before_ends_the_preparation_as_well() -> None:
    flag = StopFlag()
    flag.request()
    with pytest.raises(StopRequested), flag.breaking():
        pytest.fail("went on")


def test_a_collective_is_finished_before_a_sigint_ends_the_preparation() -> None:
    seen: list[str] = []
    with pytest.raises(StopRequested):
        _prepared_with_a_sigint(StopFlag(), seen, held=True)
    assert seen == ["inside"]


def test_after_the_preparation_a_sigint_only_sets_the_flag() -> None:
    with listening(StopFlag()) as flag, flag.breaking():
        flag.disarm()
        os.kill(os.getpid(), signal.SIGINT)
    assert flag.requested


class TwoRanks(collectives.SingleCollective):
    """This is rank 0; `other` is what rank 1 sends to each gather."""

    def __init__(self, *other: Any) -> None:
        super().__init__()
        self.size, self.other, self.sent = 2, [*other], []

    def gather_json(self, value: Any) -> list[Any]:
        self.sent.append(value)
        return [value, self.other.pop(0)]


def test_a_rank_that_was_stopped_is_heard_by_those_who_wait_for_it() -> None:
    flag, inner = StopFlag(), TwoRanks({"value": 7}, {})
    with flag.breaking():
        ranks = Interruptible(inner, flag)
        assert ranks.gather_json(5) == [5, 7]
        with pytest.raises(StopRequested) as stopped:
            ranks.settle()
    assert stopped.value.rank == 1  # so this rank has no more to say
    assert inner.other == []


def test_a_rank_that_is_stopped_says_so_in_one_gather() -> None:
    flag, inner = StopFlag(), TwoRanks({"value": 7})
    ranks = Interruptible(inner, flag)
    with pytest.raises(StopRequested) as stopped, flag.breaking():
        flag.request()
    assert stopped.value.rank is None
    ranks.leave()
    assert inner.sent == [{}]


def test_when_all_ranks_are_prepared_a_late_sigint_is_left_to_the_first_step() -> None:
    flag = StopFlag()

    class Late(TwoRanks):
        def gather_json(self, value: Any) -> list[Any]:
            flag.request()  # while the last gather is under way
            return super().gather_json(value)

    with flag.breaking():
        Interruptible(Late({"value": None}), flag).settle()
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


def test_what_is_reported_for_each_rank_does_not_push_the_rest_out() -> None:
    sent: list[dict[str, Any]] = []
    sink = DataPublisher(send=sent.append, every_s=0.0)
    busy = [MetricEvent("run", rank, 1, 0, "train/busy_s", 0.1, "s", 0.0) for rank in range(300)]
    sink.publish([_event(1.0), *busy])
    assert [event["name"] for event in sent[-1]["events"]] == ["train/loss"]


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


@pytest.mark.parametrize(
    ("given", "limits"),
    [
        ({}, ("60", "600")),
        ({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "5"}, ("2", "5")),  # a check after the shutdown would switch it off
        ({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0"}, ("60", "0")),
        ({"HOROVOD_STALL_CHECK_TIME_SECONDS": "9", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "90"}, ("9", "90")),
    ],
)
def test_limits_of_a_stall_are_ours_unless_the_environment_has_others(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], limits: tuple[str, str]
) -> None:
    names = ("HOROVOD_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS")
    for name in names:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    collectives._set_stall_limits()
    assert tuple(os.environ[name] for name in names) == limits


def test_what_the_ranks_brought_is_told_by_tensor_and_rank() -> None:
    def account(*sent: str) -> divergence.Account:
        return divergence.Account("gradients.float32", [*sent], "Mismatched ALLREDUCE tensor shapes: ...", False)

    same, other = account("float32 (3,)", "float32 (4,)"), account("float32 (3,)", "float32 (5,)")
    everyone: dict[int, divergence.Account | None] = {rank: same for rank in range(8)} | {3: other}
    error = divergence.as_error(same, everyone, 8)
    assert str(error).splitlines() == [
        "tensor 'gradients.float32', 2 of 2, differs between the ranks: float32 (4,) on rank 0-2, 4-7; "
        "float32 (5,) on rank 3; all ranks must send the same",
        "Horovod: Mismatched ALLREDUCE tensor shapes: ...",
    ]
    assert not error.engine_spent
    del everyone[5]
    error = divergence.as_error(same, everyone, 8)
    assert str(error).splitlines()[2] == "no word from rank 5"
    assert error.engine_spent


def test_an_error_that_is_none_of_horovod_is_left_as_it_is() -> None:
    sent = divergence.Sent()
    assert sent.account(OSError("the disk is gone")) is None
    assert sent.account(ValueError("Mismatched shapes")) is None
    other = RuntimeError("Incompatible shapes: [3] vs. [4]\n\t [[{{node add}}]] [Op:__inference_f_7]")
    assert sent.account(other) is None


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
