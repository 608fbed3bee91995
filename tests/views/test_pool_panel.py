"""The live card of a pool: it follows what happens, costs little, and says so when it no longer does."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sciml_kernel as sk
from sciml_kernel.contracts import RankReport
from sciml_kernel.errors import NotFoundError
from sciml_kernel.pool import FakePool, Pool
from sciml_kernel.pool.files import now_utc, write_json
from sciml_kernel.pool.health import Health
from sciml_kernel.pool.processes import ProcessId
from sciml_kernel.pool.spec import PoolDir
from sciml_kernel.testing.pool_suite import HERE
from sciml_kernel.views import LivePool, pool_panel, shown

SOON_S = 20.0
QUICK = {"look_s": 0.01, "renew_s": 1000.0, "renew_busy_s": 1000.0}


class Output:
    """A cell's output that keeps all that it showed."""

    def __init__(self) -> None:
        self.bundles: list[dict[str, Any]] = []
        self.shown = 0

    def show(self, bundle: dict[str, Any]) -> None:
        self.shown += 1
        self.bundles.append(bundle)

    def update(self, bundle: dict[str, Any]) -> None:
        self.bundles.append(bundle)

    @property
    def html(self) -> str:
        return str(self.bundles[-1]["text/html"])


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.005)


@pytest.fixture
def outputs() -> Iterator[list[Output]]:
    made: list[Output] = []

    def factory() -> Output:
        made.append(Output())
        return made[-1]

    shown.register_display(factory)
    yield made
    for view in list(pool_panel._live):
        view.close()
    shown.register_display(None)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("watch ")], "one still watches"


@pytest.fixture
def pool() -> Iterator[FakePool]:
    with FakePool.start(2) as pool:
        yield pool


def test_it_follows_a_pool_in_one_place(outputs: list[Output], pool: FakePool) -> None:
    view = LivePool(pool, **QUICK)
    (output,) = outputs
    assert "ready</span>" in output.html
    call = pool.submit(f"{HERE}:sleep", 30)
    until(lambda: "busy</span>" in output.html and output.html.count(">sleep, ") == 2)
    assert f"{HERE}:sleep" in output.html
    pool.interrupt()
    assert call.wait(5.0)
    until(lambda: "ready</span>" in output.html)
    pool.lose_rank(1, "SIGKILL")
    until(lambda: "dead</span>" in output.html)
    assert "rank 1 @ " in output.html
    assert "was ended by SIGKILL" in output.html
    assert "pool.restart()" in output.html
    pool.restart()
    until(lambda: "ready</span>" in output.html)
    pool.stop()
    view.wait(SOON_S)
    assert "stopped</span>" in output.html
    assert "no longer updated: the pool was stopped" in output.html
    assert output.shown == 1
    assert len(outputs) == 1


def test_without_a_change_it_is_shown_again_for_its_times_only(
    outputs: list[Output], pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    measure = pool.measure

    def counted() -> Health:
        nonlocal looks
        looks += 1
        return measure()

    monkeypatch.setattr(pool, "measure", counted)
    view = LivePool(pool, **QUICK)
    until(lambda: looks > 20)
    assert view.n_shown == 1
    view.renew_s = 0.05
    until(lambda: view.n_shown >= 3)
    assert outputs[0].shown == 1
    view.close()
    assert "no longer updated: closed" in outputs[0].html


def test_a_card_says_how_often_it_is_renewed_so_that_an_old_one_is_known(outputs: list[Output], pool: FakePool) -> None:
    LivePool(pool, look_s=0.01, renew_s=15.0, renew_busy_s=5.0)
    assert "; renewed every 15 s while it is watched" in outputs[0].html
    pool.submit(f"{HERE}:sleep", 30)
    until(lambda: "; renewed every 5 s while it is watched" in outputs[0].html)
    pool.interrupt()


def test_it_ends_after_a_time_without_a_change_but_not_while_a_call_runs(outputs: list[Output], pool: FakePool) -> None:
    pool.submit(f"{HERE}:sleep", 30)
    until(lambda: pool.measure().state == "busy")
    view = LivePool(pool, **{**QUICK, "renew_busy_s": 0.02}, quiet_s=0.1)
    until(lambda: view.n_shown > 20)  # 0.4 s of the same call
    assert not view.ended
    pool.interrupt()
    view.wait(SOON_S)
    assert view.ended.startswith("nothing changed for ")
    assert "no longer updated: nothing changed" in outputs[0].html


def test_watched_again_the_later_cell_goes_on_alone(outputs: list[Output], pool: FakePool) -> None:
    first = LivePool(pool, **QUICK)
    second = LivePool(pool, **QUICK)
    assert "no longer updated: it is watched in a later cell" in outputs[0].html
    first.wait(SOON_S)
    pool.lose_rank(0)
    until(lambda: "dead</span>" in outputs[1].html)
    assert "ready</span>" in outputs[0].html
    second.close()


def test_the_end_of_the_process_is_said(outputs: list[Output], pool: FakePool) -> None:
    LivePool(pool, **QUICK)
    pool_panel._end_all()  # what atexit calls
    assert "no longer updated: the kernel ended" in outputs[0].html


def test_a_pool_of_the_same_name_is_another_pool(
    outputs: list[Output], pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = LivePool(pool, **QUICK)
    measure = pool.measure
    monkeypatch.setattr(pool, "measure", lambda: dataclasses.replace(measure(), started_utc="2999-01-01T00:00:00Z"))
    view.wait(SOON_S)
    assert "another has its name" in outputs[0].html


def test_a_pool_that_can_not_be_looked_at_is_logged_once_and_tried_again(
    outputs: list[Output], pool: FakePool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    view = LivePool(pool, **QUICK)
    tries = 0

    def broken() -> Health:
        nonlocal tries
        tries += 1
        raise OSError("stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(pool, "measure", broken)
        until(lambda: tries > 5)
        assert isinstance(view.error, OSError)
    pool.lose_rank(0)
    until(lambda: "dead</span>" in outputs[0].html)
    assert [record.message for record in caplog.records] == ["pool fake can't be shown: OSError: stale file handle"]


def test_a_nasty_reason_is_text(outputs: list[Output], pool: FakePool) -> None:
    pool.lose_rank(0)
    pool._reason = "<script>alert(1)</script>"
    LivePool(pool, **QUICK)
    assert "<script" not in outputs[0].html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in outputs[0].html
    assert "<script>alert(1)</script>" in outputs[0].bundles[0]["text/plain"]


def test_at_a_terminal_it_is_said_once(pool: FakePool, capsys: pytest.CaptureFixture[str]) -> None:
    view = sk.watch(pool)  # no display is registered
    said = capsys.readouterr().out
    assert said.startswith("pool 'fake': ready, 2 ranks on ")
    assert "measured at" in said
    assert "renewed" not in said
    assert "renewed" not in repr(view)
    assert view.static
    view.wait(0.0)
    view.close()
    assert capsys.readouterr().out == ""


def test_in_a_batch_run_one_static_card_is_kept(
    outputs: list[Output], pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCIML_PARENT_RUN", "/somewhere")
    sk.watch(pool).wait(0.0)
    assert len(outputs[0].bundles) == 1
    assert "measured at" in outputs[0].html
    assert "renewed" not in outputs[0].html


def test_without_a_pool_watch_says_how_to_start_one() -> None:
    with pytest.raises(NotFoundError, match=r"Pool\.start"):
        sk.watch()
    with pytest.raises(NotFoundError, match="'nothing'"):
        sk.watch("nothing")


@pytest.mark.mpi
def test_a_real_pool_is_followed_to_its_end(outputs: list[Output]) -> None:
    with Pool.start(2, name="watched", oversubscribe=True) as pool:
        view = sk.watch("watched")
        (output,) = outputs
        call = pool.submit(f"{HERE}:wait_in_collective")
        until(lambda: "busy</span>" in output.html and "wait_in_collective" in output.html)
        pid = int(pool.report().loc[1, "pid"])
        os.kill(pid, signal.SIGSTOP)
        until(lambda: "suspended</span>" in output.html)
        os.kill(pid, signal.SIGCONT)
        until(lambda: "suspended</span>" not in output.html)
        begin = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        until(lambda: "dead</span>" in output.html)
        assert time.monotonic() - begin < 2.0
        assert f"(pid {pid}) was ended by SIGKILL" in output.html
        assert "rank 1 @ " in output.html
        assert call.wait(5.0)
    view.wait(SOON_S)
    assert "no longer updated: the pool was stopped" in output.html


@pytest.fixture
def sixteen_ranks(tmp_path: Path) -> Pool:
    """The files of a pool of 16 ranks that run a call, as keeper and ranks write them; this process stands for all."""
    directory, me = PoolDir(tmp_path / "big"), ProcessId.of(os.getpid())
    directory.create()
    calls = directory.generation(1) / "calls"
    calls.mkdir(parents=True)
    versions = dict.fromkeys(
        ("python", "sciml-kernel", "ipyparallel", "mpi4py", "numpy", "tensorflow", "keras"), "1.2.3"
    )
    ranks = []
    for rank in range(16):
        report = RankReport(rank, 16, me.host, me.pid, 2, 64.0, "", versions, "MPICH Version: 5.0.2", now_utc())
        ranks.append({"engine_id": rank, "process": me.to_json(), "report": report.to_json(), "ready": True})
        mark = {"name": "sciml_kernel.engine.entry:train", "rank": rank, "pid": me.pid, "since_utc": now_utc()}
        write_json(calls / f"rank-{rank}.json", mark)
    state = {"state": "ready", "reason": "", "n": 16, "generation": 1, "ranks": ranks, "exits": []}
    write_json(directory.state_path, {**state, "keeper": me.to_json(), "users": [me.to_json()], "ttl_s": 3600.0})
    return Pool(directory)


@pytest.mark.bench
def test_watching_sixteen_ranks_costs_less_than_a_hundredth_of_a_core(
    outputs: list[Output], sixteen_ranks: Pool
) -> None:
    """Processor seconds by the clock of the watching thread: of a look, and of a look that shows the card as well."""
    spent: dict[bool, list[float]] = {False: [], True: []}

    class Timed(LivePool):
        def _look(self) -> None:
            begin, n_shown = time.thread_time(), self.n_shown
            super()._look()
            spent[self.n_shown > n_shown].append(time.thread_time() - begin)

    view = Timed(sixteen_ranks, look_s=0.01, renew_s=0.1, renew_busy_s=0.1)  # 50 times as often as by default
    until(lambda: min(map(len, spent.values())) >= 20)
    view.close()
    look_s, show_s = (sorted(times)[len(times) // 2] for times in spent.values())
    share = look_s / pool_panel.LOOK_S + show_s / pool_panel.RENEW_BUSY_S
    print(f"watching 16 ranks: look {look_s * 1e3:.2f} ms, with showing {show_s * 1e3:.2f} ms: {share:.2%} of a core")
    assert "16 ranks on" in outputs[0].html
    assert share < 0.01
