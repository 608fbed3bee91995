"""One run from the notebook's side: checked before it starts, true while it runs, true when it is over."""

from __future__ import annotations

import contextlib
import importlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sciml_kernel import records, registry, session
from sciml_kernel.contracts import RecipeSpec
from sciml_kernel.cosmology.config import CosmoFlowConfig
from sciml_kernel.errors import (
    CancelRequest,
    ConfigError,
    DataError,
    NotFoundError,
    PoolBusyError,
    RemoteError,
    RunCancelledError,
    RunError,
    RunInterruptedError,
    RunTimeoutError,
)
from sciml_kernel.pool.fake import FakePool


def _check_data(config: Any) -> None:
    if Path(config.data.path).name == "missing":
        raise DataError("there is no data folder")


SPEC = RecipeSpec(
    name="cosmoflow",
    title="for tests",
    model_type=CosmoFlowConfig,
    recipe="nowhere:RECIPE",
    defaults={"train.epochs": 3},
    check_data=_check_data,
    describe_data=lambda path: {"path": str(path), "files": []},
)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr(session, "ENTRY", "fake_engine:train")
    monkeypatch.setattr(registry, "recipe_spec", lambda name: SPEC)
    module = importlib.import_module("fake_engine")
    module.started.clear()
    module.hanging.clear()
    return module


@pytest.fixture
def pool(engine: Any) -> Iterator[FakePool]:
    pool = FakePool.start(2)
    yield pool
    pool.stop()


def _n_runs() -> int:
    return len(session.runs())


@contextlib.contextmanager
def _pressed(run: session.Run, *presses: BaseException) -> Iterator[None]:
    """The caller's waits raise these, one after the other: it waits whenever a stop button's signal arrives."""
    wait, left, caller = run._over.wait, list(presses), threading.current_thread()

    def press(timeout: float | None = None) -> bool:
        if left and threading.current_thread() is caller:
            raise left.pop(0)
        return wait(timeout)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run._over, "wait", press)
        yield
    assert not left


def test_a_run_returns_at_once_and_its_record_tells_the_whole_story(pool: FakePool, tmp_path: Path) -> None:
    run = session.train("cosmoflow", data=tmp_path / "fine", pool=pool, batch_size=4, learning_rate=0.01)
    assert run.wait(30) is run
    assert run.status == "completed"
    content = run.record.read()
    assert (content["kind"], content["ranks"], content["name"]) == ("train", 2, "cosmoflow")
    assert content["seeds"] == {"train": 1, "data": 1}
    assert content["data"]["path"] == str(tmp_path / "fine")
    config = json.loads((run.record.path / "config.json").read_text())
    assert config["optim"]["learning_rate"] == 0.01
    assert config["train"]["epochs"] == 3  # the recipe's default
    assert run.history["train/loss"].values.tolist() == pytest.approx([1, 1 / 2, 1 / 3])
    assert run.history["val/loss"].sizes["epoch"] == 3
    assert list(run.predictions["true_sigma_8"]) == [0.9]
    assert session.runs().iloc[0]["status"] == "completed"


def test_each_epoch_is_printed_once_while_waiting(
    pool: FakePool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session.train("cosmoflow", data=tmp_path / "fine", pool=pool).wait(30)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    assert [int(line.split()[1]) for line in lines] == [1, 2, 3]
    assert all("val loss 0.5000" in line for line in lines)
    assert [line.split()[4] for line in lines] == ["1", "0.5", "0.3333"]  # each epoch's own training loss


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"epoch": 1}, ConfigError, "did you mean 'epochs'"),
        ({"batch_size": 9}, ConfigError, "batch_size 9 not divisible by 2 ranks; use 8 or 10"),
        ({"batch_size": 1}, ConfigError, "batch_size 1 not divisible by 2 ranks; use 2"),
        ({"data": "missing"}, DataError, "no data folder"),
        ({"resume": "no-such-run"}, NotFoundError, "no-such-run"),
    ],
)
def test_what_can_not_work_is_refused_before_anything_is_written(
    pool: FakePool, tmp_path: Path, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        session.train("cosmoflow", **{"data": tmp_path / "fine", "pool": pool, **change})
    assert _n_runs() == 0
    assert pool.state == "ready"


def test_a_busy_pool_is_refused_and_leaves_no_record(pool: FakePool, engine: Any, tmp_path: Path) -> None:
    first = session.train("cosmoflow", data=tmp_path / "waits", pool=pool)
    assert engine.started.wait(10)
    with pytest.raises(PoolBusyError):
        session.train("cosmoflow", data=tmp_path / "fine", pool=pool)
    assert _n_runs() == 1
    first.interrupt()


def test_a_failing_rank_fails_the_run_with_its_own_error(pool: FakePool, tmp_path: Path) -> None:
    run = session.train("cosmoflow", data=tmp_path / "raises", pool=pool)
    with pytest.raises(RemoteError, match="ValueError: no such star") as caught:
        run.wait(30)
    assert caught.value.rank in (0, 1)
    content = run.record.read()
    assert content["status"] == "failed"
    assert content["error"]["message"] == "no such star"
    with pytest.raises(RunError, match="left no predictions"):
        _ = run.predictions


def test_a_rank_that_could_not_write_its_end_is_written_down_by_the_notebook(pool: FakePool, tmp_path: Path) -> None:
    run = session.train("cosmoflow", data=tmp_path / "vanishes", pool=pool)
    with pytest.raises(RemoteError, match="gone before it could write"):
        run.wait(30)
    assert (run.status, run.record.read()["error"]["type"]) == ("failed", "OSError")


def test_an_interrupted_run_says_so_and_the_pool_takes_the_next_one(
    pool: FakePool, engine: Any, tmp_path: Path
) -> None:
    run = session.train("cosmoflow", data=tmp_path / "waits", pool=pool)
    assert engine.started.wait(10)
    assert run.status == "running"
    run.interrupt()
    assert run.status == "interrupted"
    with pytest.raises(RunInterruptedError, match="resume"):
        run.wait(10)
    assert session.train("cosmoflow", data=tmp_path / "fine", pool=pool).wait(30).status == "completed"


def test_the_stop_button_interrupts_the_run_and_is_an_error_in_the_cell(
    pool: FakePool, engine: Any, tmp_path: Path
) -> None:
    run = session.train("cosmoflow", data=tmp_path / "waits", pool=pool)
    assert engine.started.wait(10)
    with _pressed(run, KeyboardInterrupt()), pytest.raises(RunInterruptedError):
        run.wait(10)
    assert run.status == "interrupted"


def test_the_figure_shows_what_came_by_the_fast_road_before_the_record_has_it(
    pool: FakePool, engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = session.train("cosmoflow", data=tmp_path / "waits", pool=pool)
    assert engine.started.wait(10)
    at = {"run": run.id, "rank": 0, "epoch": 3, "unit": "", "wall_time_s": 1.0}
    events = [  # step 12 is in the record already, with 1/3; step 99 is not
        {"name": "train/loss", "step": 12, "value": 1 / 3, **at, "epoch": 2},
        {"name": "train/loss", "step": 99, "value": 0.125, **at},
    ]
    monkeypatch.setattr(run._call, "data", lambda rank=0: {"events": events})
    live = run._live_history()
    assert live["train/loss"].sel(step=[4, 8, 12, 99]).values.tolist() == pytest.approx([1, 1 / 2, 1 / 3, 0.125])
    assert live["epoch_of_step"].sel(step=99) == 3
    assert live["val/loss"].sizes["epoch"] == 3
    assert 99 not in run.history["step"]  # the truth is what is on disk
    assert "0.125" in run.plot().text
    run.interrupt()


def test_the_figure_of_a_finished_run_does_not_say_that_it_is_running(
    pool: FakePool, engine: Any, tmp_path: Path
) -> None:
    run = session.train("cosmoflow", data=tmp_path / "waits", pool=pool)
    assert engine.started.wait(10)
    plot = run.plot()
    assert "(running)" in plot.text
    run.interrupt()
    with pytest.raises(RunInterruptedError):
        run.wait()
    assert "(interrupted)" in plot.text
    assert (run.figures_dir / "training.png").stat().st_size > 1000


def test_a_time_limit_interrupts_the_run(pool: FakePool, tmp_path: Path) -> None:
    run = session.train("cosmoflow", data=tmp_path / "waits", pool=pool)
    with pytest.raises(RunTimeoutError, match=r"after 0\.3 s"):
        run.wait(0.3)
    assert run.status == "timeout"
    with pytest.raises(RunTimeoutError, match="stopped"):  # for whoever opens it later too
        session.Run.open(run.id).wait()


def test_a_run_that_sigterm_stopped_is_cancelled(pool: FakePool, engine: Any, tmp_path: Path) -> None:
    run = session.train("cosmoflow", data=tmp_path / "waits", pool=pool)
    assert engine.started.wait(10)
    with _pressed(run, CancelRequest()), pytest.raises(RunCancelledError):
        run.wait(10)
    assert run.status == "cancelled"


def test_a_second_press_of_the_stop_button_does_not_wait_for_ranks_that_hang(
    pool: FakePool, engine: Any, tmp_path: Path
) -> None:
    run = session.train("cosmoflow", data=tmp_path / "hangs", pool=pool)
    assert engine.started.wait(10)
    generation = pool.health().generation
    with _pressed(run, KeyboardInterrupt(), KeyboardInterrupt()), pytest.raises(RunInterruptedError):
        run.wait(10)
    assert run.status == "interrupted"
    assert "interrupted twice" in run.record.read()["error"]["message"]
    assert pool.health().generation == generation + 1
    assert session.train("cosmoflow", data=tmp_path / "fine", pool=pool).wait(10).status == "completed"


def test_a_run_of_another_process_is_followed_to_its_end(
    pool: FakePool, engine: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = session.train("cosmoflow", data=tmp_path / "waits", pool=pool)
    assert engine.started.wait(10)
    found = session.Run(first.record, pool=pool)  # knows the record and the pool only
    assert found.status == "running"
    with pytest.raises(RunTimeoutError):
        found.wait(0.3)  # interrupts it through the pool
    assert first.status == "timeout"
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["1", "2", "3"]  # the text is rebuilt


def test_a_run_on_a_pool_that_is_gone_can_not_be_interrupted(pool: FakePool, engine: Any, tmp_path: Path) -> None:
    """Another pool may have its name by now, and its call is not ours to interrupt."""
    run = session.train("cosmoflow", data=tmp_path / "waits", pool=pool)
    assert engine.started.wait(10)
    with FakePool.start(2) as other:
        found = session.Run(run.record, pool=other)
        with pytest.raises(NotFoundError, match="is gone"):
            found.interrupt()
    run.interrupt()


def test_ranks_that_died_while_nobody_watched_are_named_by_who_looks_first(
    pool: FakePool, engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session.Run, "_watch", lambda run: None)  # the process that started it is gone
    run = session.train("cosmoflow", data=tmp_path / "hangs", pool=pool)
    assert engine.started.wait(10)
    pool.lose_rank(1)
    assert run.record.read()["status"] == "running"
    found = session.Run(run.record, pool=pool)
    with pytest.raises(RunError, match="SIGKILL"):
        found.wait(10)
    error = found.record.read()["error"]
    assert (error["rank"], error["signal"]) == (1, "SIGKILL")


def test_the_newest_run_is_opened_by_default(pool: FakePool, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no runs"):
        session.Run.open()
    session.train("cosmoflow", data=tmp_path / "fine", pool=pool).wait(10)
    second = session.train("cosmoflow", data=tmp_path / "fine", pool=pool, seed=7).wait(10)
    assert session.Run.open().id == second.id  # also of two in one second


def test_a_run_is_found_again_by_the_beginning_of_its_name(pool: FakePool, tmp_path: Path) -> None:
    run = session.train("cosmoflow", data=tmp_path / "fine", pool=pool).wait(30)
    found = session.Run.open(run.id[:16])
    assert (found.id, found.status) == (run.id, "completed")
    assert found.history.equals(run.history)
    assert found.wait(1) is found


def test_a_resume_takes_the_same_config_with_what_is_changed(pool: FakePool, tmp_path: Path) -> None:
    run = session.train("cosmoflow", data=tmp_path / "fine", pool=pool, channels=(4, 8), seed=5).wait(30)
    more = run.resume(epochs=7).wait(30)
    before, after = run.record.config(), more.record.config()
    assert after["train"].pop("epochs") == 7
    assert before["train"].pop("epochs") == 3
    assert after == before
    assert more.record.read()["extra"]["resumed_from"] == run.id


def test_a_run_in_a_batch_is_the_child_of_the_batch(
    pool: FakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = records.create("notebook", "{}", kind="batch")
    monkeypatch.setenv(session.PARENT_VARIABLE, str(batch.path))
    run = session.train("cosmoflow", data=tmp_path / "fine", pool=pool).wait(30)
    assert run.record.read()["parent"] == batch.id
    assert batch.read()["children"] == [run.id]


def test_the_same_settings_have_the_same_digest_whatever_the_number_of_ranks(pool: FakePool, tmp_path: Path) -> None:
    one = FakePool.start(1, name="one")
    digests = {
        session.train("cosmoflow", data=tmp_path / "fine", pool=ranks).wait(30).record.read()["digest"]
        for ranks in (pool, one)
    }
    one.stop()
    assert len(digests) == 1
