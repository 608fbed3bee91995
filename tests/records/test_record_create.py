from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import platform
import re
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from record_helpers import CONFIG, create_some, make

from sciml_kernel.errors import NotFoundError, RecordError, UsageError
from sciml_kernel.records import Record, create, new, runs_root


def test_the_id_is_time_name_and_the_first_of_the_digest(tmp_path: Path) -> None:
    record = make(tmp_path)
    digest = hashlib.sha256(CONFIG.encode()).hexdigest()
    assert re.fullmatch(rf"\d{{8}}T\d{{6}}Z-cosmoflow-{digest[:8]}", record.id)
    moment = datetime.strptime(record.id.partition("-")[0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    assert abs((datetime.now(UTC) - moment).total_seconds()) < 30
    assert (record.path / "config.json").read_bytes() == CONFIG.encode()
    assert record.read()["digest"] == digest


def test_a_new_record_has_every_field_of_the_design(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path / "no-set-up"))  # an environment that env/setup did not make
    data = {"path": "/data/u", "size": 10, "sha256": "ab"}
    record = make(tmp_path, ranks=2, seeds={"train": 1}, data=data, launch=["mpiexec", "-n", "2"], extra={"pool": "p"})
    content = json.loads((record.path / "record.json").read_text())
    assert content["schema_version"] == 1
    assert (content["id"], content["name"], content["kind"]) == (record.id, "cosmoflow", "train")
    assert content["status"] == "created"
    assert content["started_utc"] is None
    assert content["ended_utc"] is None
    assert content["git"].keys() == {
        "commit", "dirty", "diff_sha256", "patch", "patch_bytes", "patch_masked", "untracked",
    }  # fmt: skip
    assert content["build"] == {"mpi": None, "horovod": None}
    assert content["hardware"]["memory_bytes"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert content["lock_sha256"] is None
    assert content["versions"]["numpy"] == __import__("numpy").__version__
    assert content["python"] == platform.python_version()
    assert content["hosts"] == [socket.gethostname()]
    assert (content["ranks"], content["devices"], content["seeds"]) == (2, [], {"train": 1})
    assert content["data"] == data
    assert content["launch"] == ["mpiexec", "-n", "2"]
    assert (content["error"], content["cells"], content["parent"], content["children"]) == (None, [], None, [])
    assert content["extra"] == {"pool": "p"}
    assert content["owner"]["host"] == socket.gethostname()
    assert content["owner"]["pid"] == os.getpid()
    assert {part.name for part in record.path.iterdir()} >= {"checkpoints", "logs", "figures"}
    assert record.metrics_path == record.path / "metrics.jsonl"
    assert record.log_path(3) == record.path / "logs" / "rank-3.log"


def test_two_runs_of_one_second_get_two_directories(tmp_path: Path) -> None:
    records = [make(tmp_path) for _ in range(5)]
    assert len({record.id for record in records}) == 5
    assert all(re.fullmatch(r"\d{8}T\d{6}Z-cosmoflow-[0-9a-f]{8}", record.id) for record in records)
    assert all(record.read()["id"] == record.id for record in records)


def test_processes_that_begin_together_get_different_directories(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(3) as pool:
        ids = [run_id for some in pool.starmap(create_some, [(tmp_path, 4)] * 3) for run_id in some]
    assert len(set(ids)) == 12
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(ids)


def test_a_name_with_blanks_and_slashes_becomes_one_directory_name(tmp_path: Path) -> None:
    record = make(tmp_path, "../my notebook/50% π")
    assert record.path.parent == tmp_path
    assert re.fullmatch(r"\d{8}T\d{6}Z-[A-Za-z0-9_.-]+-[0-9a-f]{8}", record.id)
    assert record.read()["name"] == "../my notebook/50% π"


@pytest.mark.parametrize("fails_at", ["record.json", "config.json"])
def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: str) -> None:
    real = new.write_atomic

    def full(path: Path, data: str) -> None:
        if path.name == fails_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, data)

    monkeypatch.setattr(new, "write_atomic", full)
    with pytest.raises(UsageError, match=r"No space left.*SCIML_RUNS") as caught:
        make(tmp_path)
    assert caught.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_root_that_can_not_be_made_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"no run can be written in .*file.*set SCIML_RUNS") as caught:
        make(tmp_path / "file" / "runs")
    assert caught.value.exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("config", "what"),
    [("{", "no JSON"), ("[1]", "must be a JSON object"), ('{"b": 1, "a": 2}', "not canonical"), ('{"a":NaN}', "JSON")],
)
def test_a_config_that_is_not_canonical_json_is_refused(tmp_path: Path, config: str, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        create("x", config, root=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"kind": "bach"}, UsageError),
        ({"parent": "20261201T000000Z-none-00000000"}, NotFoundError),
        ({"seeds": {"train": float("nan")}}, RecordError),
        ({"ranks": "two"}, RecordError),
        ({"extra": {"path": Path("/x")}}, RecordError),
    ],
)
def test_wrong_fields_are_refused_before_anything_is_written(
    tmp_path: Path, fields: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        make(tmp_path, **fields)
    assert list(tmp_path.iterdir()) == []


def test_parent_and_child_know_each_other(tmp_path: Path) -> None:
    batch = make(tmp_path, "tour", kind="batch")
    first = make(tmp_path, parent=batch.id)
    # a kernel with another SCIML_RUNS knows only the batch's path, and must still land beside it
    second = create("cosmoflow", CONFIG, parent=batch.path)
    assert first.read()["parent"] == second.read()["parent"] == batch.id
    assert batch.read()["children"] == [first.id, second.id]
    assert batch.children() == [first, second]
    with pytest.raises(UsageError, match="share one"):
        make(tmp_path / "other", parent=batch.path)


def test_the_environment_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "planted-s3cret")
    record = make(tmp_path)
    assert not [p for p in record.path.rglob("*") if p.is_file() and "planted-s3cret" in p.read_text()]


def test_files_get_the_mode_that_the_umask_gives(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        record = make(tmp_path)
    finally:
        os.umask(before)
    assert record.path.stat().st_mode & 0o777 == 0o750
    assert (record.path / "record.json").stat().st_mode & 0o777 == 0o640


def test_the_root_is_named_or_the_nearest_upwards_or_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / "project" / "a" / "b"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    monkeypatch.setenv("SCIML_RUNS", str(tmp_path / "named"))
    assert runs_root() == tmp_path / "named"
    monkeypatch.setenv("SCIML_RUNS", "")
    assert runs_root() == deep / "papermill_runs"
    (tmp_path / "project" / "papermill_runs").mkdir()
    assert runs_root() == tmp_path / "project" / "papermill_runs"
    (deep.parent / "papermill_runs").write_text("a file is no root")
    assert runs_root() == tmp_path / "project" / "papermill_runs"
    (deep.parent / "papermill_runs").unlink()
    (deep.parent / "papermill_runs").mkdir()
    assert runs_root() == deep.parent / "papermill_runs"
    record = create("x", CONFIG)
    assert record.path.parent == deep.parent / "papermill_runs"
    assert Record(record.path).read()["status"] == "created"
