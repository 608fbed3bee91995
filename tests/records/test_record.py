from __future__ import annotations

import json
import multiprocessing
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from record_helpers import Holder, add_children, make

from sciml_kernel.errors import NotFoundError, PoolDeadError, RecordError, RemoteError
from sciml_kernel.records import END_STATES, Record, error_fields, read, this_process

FAILURE = {"type": "ValueError", "message": "loss is NaN", "rank": 1, "step": 7}


def test_a_run_is_created_then_running_then_completed(tmp_path: Path) -> None:
    record = make(tmp_path)
    assert record.read()["owner_state"] == "alive"
    record.start()
    running = record.read()
    assert (running["status"], running["ended_utc"]) == ("running", None)
    record.close("completed")
    ended = record.read()
    assert ended["status"] == "completed"
    assert ended["created_utc"] <= ended["started_utc"] <= ended["ended_utc"]
    assert "owner_state" not in ended
    assert "owner_state" not in json.loads((record.path / "record.json").read_text())


@pytest.mark.parametrize("status", [s for s in END_STATES if s != "completed"])
def test_a_run_may_end_badly_before_it_started(tmp_path: Path, status: str) -> None:
    record = make(tmp_path)
    record.close(status)
    assert record.read()["status"] == status
    with pytest.raises(RecordError, match="can't be started again"):
        record.start()


def test_a_run_that_never_started_is_not_completed(tmp_path: Path) -> None:
    record = make(tmp_path)
    with pytest.raises(RecordError, match="never started"):
        record.close("completed")
    assert record.read()["status"] == "created"


# from, to, allowed: never better; worse is allowed, the truth may come late
@pytest.mark.parametrize(
    ("before", "after", "allowed"),
    [
        ("failed", "completed", False),
        ("interrupted", "completed", False),
        ("failed", "interrupted", False),
        ("timeout", "cancelled", False),
        ("completed", "failed", True),
        ("completed", "interrupted", True),
        ("interrupted", "failed", True),
        ("running", "paused", False),
        ("completed", "running", False),
    ],
)
def test_an_end_never_becomes_a_better_one(tmp_path: Path, before: str, after: str, allowed: bool) -> None:
    record = make(tmp_path)
    record.start()
    if before != "running":
        record.close(before)
    if allowed:
        record.close(after)
        assert record.read()["status"] == after
    else:
        with pytest.raises(RecordError):
            record.close(after)
        assert record.read()["status"] == before


def test_a_second_close_with_the_same_status_changes_nothing(tmp_path: Path) -> None:
    record = make(tmp_path)
    record.start()
    record.close("failed", FAILURE)
    before = record.read()
    record.close("failed", {"type": "Other", "message": "seen later"})
    record.close("failed")
    assert record.read() == before


def test_a_second_close_may_bring_the_error_that_the_first_lacked(tmp_path: Path) -> None:
    record = make(tmp_path)
    record.close("failed")
    ended = record.read()["ended_utc"]
    record.close("failed", FAILURE)
    assert record.read()["error"]["message"] == "loss is NaN"
    assert record.read()["ended_utc"] == ended


def test_an_error_entry_has_all_fields_and_no_others(tmp_path: Path) -> None:
    record = make(tmp_path)
    with pytest.raises(RecordError, match="did you mean 'message'"):
        record.close("failed", {"type": "E", "mesage": "x"})
    with pytest.raises(RecordError, match="needs the texts"):
        record.close("failed", {"message": "x"})
    with pytest.raises(RecordError, match="completed run has no error"):
        record.close("completed", FAILURE)
    record.close("failed", FAILURE)
    assert record.read()["error"] == {
        "type": "ValueError",
        "message": "loss is NaN",
        "cell": None,
        "rank": 1,
        "host": None,
        "signal": None,
        "step": 7,
    }


def test_an_exception_from_a_rank_keeps_its_type_and_place() -> None:
    error = RemoteError(type_name="ValueError", message="bad", rank=3, host="nid12", step=40)
    expected = {"type": "ValueError", "message": "bad", "rank": 3, "host": "nid12", "step": 40}
    assert error_fields(error, cell=2) == {**expected, "cell": 2, "signal": None}
    # mpiexec ends the others after the one that a signal hit first: that one is the cause
    exits = [
        {"rank": 0, "host": "a", "exit_code": 1, "signal": None, "ended_utc": "2026-12-01T00:00:00Z"},
        {"rank": 1, "host": "b", "exit_code": None, "signal": "SIGKILL", "ended_utc": "2026-12-01T00:00:01Z"},
        {"rank": 2, "host": "b", "exit_code": None, "signal": "SIGTERM", "ended_utc": "2026-12-01T00:00:02Z"},
    ]
    dead = error_fields(PoolDeadError("lost", exits=exits))
    assert (dead["type"], dead["rank"], dead["host"], dead["signal"]) == ("PoolDeadError", 1, "b", "SIGKILL")


def test_update_keeps_what_it_is_given_and_refuses_unknown_fields(tmp_path: Path) -> None:
    record = make(tmp_path, extra={"a": 1})
    cells = [{"index": 0, "status": "completed", "seconds": 0.5}, {"index": 1, "status": "not_run", "seconds": None}]
    record.update(hosts=["n1", "n2"], devices=["cpu", "cpu"], cells=cells, extra={"b": 2})
    content = record.read()
    assert (content["hosts"], content["cells"], content["extra"]) == (["n1", "n2"], cells, {"a": 1, "b": 2})
    with pytest.raises(RecordError, match="did you mean 'seeds'"):
        record.update(seed={})
    with pytest.raises(RecordError, match="'status'"):
        record.update(status="completed")  # only close() ends a run
    with pytest.raises(RecordError, match="did you mean 'completed'"):
        record.update(cells=[{"index": 0, "status": "complete", "seconds": 1.0}])
    with pytest.raises(RecordError, match="JSON"):
        record.update(extra={"loss": float("nan")})
    assert record.read() == content


def test_a_killed_owner_leaves_failed(tmp_path: Path) -> None:
    record = make(tmp_path)
    with Holder(f"Record({str(record.path)!r}).start()") as holder:
        assert record.read()["status"] == "running"
        assert record.read()["owner"]["pid"] == holder.pid
        holder.kill()
        content = read(record.path)
    assert content["status"] == "failed"
    assert content["error"]["type"] == "OwnerVanished"
    assert "owner vanished" in content["error"]["message"]
    assert str(holder.pid) in content["error"]["message"]
    assert content["error"]["host"] == socket.gethostname()
    assert content["ended_utc"] >= content["started_utc"]
    assert json.loads((record.path / "record.json").read_text()) == content  # written, not only said


def test_a_killed_owner_that_nobody_reaped_is_gone_too(tmp_path: Path) -> None:
    record = make(tmp_path)
    with Holder(f"Record({str(record.path)!r}).start()") as holder:
        holder.kill(reap=False)
        os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # it has ended and is a zombie now
        assert record.read()["status"] == "failed"


def test_a_run_that_was_created_and_left_is_failed(tmp_path: Path) -> None:
    lines = (
        "from sciml_kernel.records import create\n"
        f"run_id = create('x', '{{}}', root={str(tmp_path / 'runs')!r}).id\n"
        f"print(run_id, file=open({str(tmp_path / 'id')!r}, 'w'), flush=True)"
    )
    with Holder(lines) as holder:
        record = Record(tmp_path / "runs" / (tmp_path / "id").read_text().strip())
        assert record.read()["status"] == "created"
        holder.kill()
        assert record.read()["status"] == "failed"
    assert record.read()["started_utc"] is None


def test_the_run_lives_on_when_a_rank_took_it_over(tmp_path: Path) -> None:
    record = make(tmp_path)
    with Holder(f"Record({str(record.path)!r}).start()") as client:
        started = record.read()["started_utc"]
        record.start()  # this process plays rank 0
        client.kill()
        assert record.read()["status"] == "running"
        assert record.read()["owner"]["pid"] == os.getpid()
        assert record.read()["started_utc"] == started


@pytest.mark.parametrize(
    ("change", "status", "state"),
    [
        ({"host": "elsewhere", "pid": 2**22 + 1}, "running", "unknown"),
        ({"pid_namespace": "pid:[1]", "pid": 2**22 + 1}, "running", "unknown"),  # a container on this host
        ({"boot_id": "an earlier boot"}, "failed", None),
        ({"start_ticks": 1}, "failed", None),  # the pid was used again
        ({"pid": 2**22 + 1}, "failed", None),  # above the kernel's PID_MAX_LIMIT: never a process
        ({}, "running", "alive"),
    ],
)
def test_the_owner_is_known_by_more_than_its_pid(
    tmp_path: Path, change: dict[str, Any], status: str, state: str | None
) -> None:
    record = make(tmp_path)
    record.start(owner={**this_process(), **change})
    content = record.read()
    assert (content["status"], content.get("owner_state")) == (status, state)


def test_a_vanished_owner_ended_at_its_last_sign_of_life(tmp_path: Path) -> None:
    record = make(tmp_path)
    record.start(owner={**this_process(), "pid": 2**22 + 1})
    record.metrics_path.write_text("")
    os.utime(record.metrics_path, (4_000_000_000, 4_000_000_000))  # 2096-10-02T07:06:40Z
    assert record.read()["ended_utc"] == "2096-10-02T07:06:40.000Z"


def test_the_truth_is_told_where_it_can_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = make(tmp_path)
    record.start(owner={**this_process(), "pid": 2**22 + 1})
    before = (record.path / "record.json").read_bytes()

    def read_only(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("sciml_kernel.records.record.write_atomic", read_only)
    assert record.read()["status"] == "failed"
    assert (record.path / "record.json").read_bytes() == before


def test_a_failing_write_keeps_the_old_record_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = make(tmp_path)
    before = record.read()
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(RecordError, match="No space left"):
            record.update(hosts=["x"])
    assert record.read() == before
    assert not list(record.path.glob("*.tmp")) + list(record.path.glob(".*.tmp"))


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    record = make(tmp_path)
    context = multiprocessing.get_context("spawn")
    with context.Pool(3) as pool:
        pool.starmap(add_children, [(record.path, worker) for worker in range(3)])
    add_children(record.path, 0)  # noted already
    assert sorted(record.read()["children"]) == sorted(f"run-{w}-{i}" for w in range(3) for i in range(10))


def test_a_changed_config_is_noticed(tmp_path: Path) -> None:
    record = make(tmp_path)
    assert record.config()["recipe"] == "cosmoflow"
    (record.path / "config.json").write_text((record.path / "config.json").read_text().replace("2", "3"))
    with pytest.raises(RecordError, match="was changed"):
        record.config()


def test_no_record_and_a_broken_one_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no run record"):
        Record(tmp_path / "none").read()
    with pytest.raises(NotFoundError):
        Record(tmp_path / "none").update(hosts=[])
    assert list(tmp_path.iterdir()) == []
    record = make(tmp_path)
    for text, what in [
        ("{", "can't be read"),
        ("[]", "no known status"),
        ('{"status": "running", "schema_version": 99}', "schema version 99"),
        ('{"status": "running", "schema_version": 1}', "lacks"),
    ]:
        (record.path / "record.json").write_text(text)
        with pytest.raises(RecordError, match=what):
            record.read()
