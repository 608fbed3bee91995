"""A run record: one directory a run, laid out as DESIGN "Files on disk" says.

A status is never better than the truth. A process that is killed leaves "created" or "running" behind; the next reader
on the owner's host sees that the owner is gone and writes "failed". From another host that can't be measured: the
status stays, with `owner_state` "unknown".
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, SoftFileLock, Timeout

from sciml_kernel.errors import NotFoundError, RecordError
from sciml_kernel.records.fields import (
    END_STATES,
    SCHEMA_VERSION,
    STATES,
    check_close,
    check_error,
    check_update,
    error_fields,
)
from sciml_kernel.records.files import write_atomic
from sciml_kernel.records.owner import OWNER_FIELDS, owner_state, this_process

__all__ = ["OWNER_VANISHED", "RESERVE", "Record", "dump", "read", "utc_text"]

OWNER_VANISHED = "OwnerVanished"
"""`error.type` of a run whose process ended without closing it."""

RESERVE = ".reserve"
"""A file of some kilobytes in each open record: on a full disk it makes room for how the run ended."""

_LOCK_TIME_S = 20.0
_OPEN_STATES = ("created", "running")


def read(path: str | Path) -> dict[str, Any]:
    """`Record(path).read()`."""
    return Record(path).read()


class Record:
    """Handle on the record in one directory. It keeps no state of its own: every call goes to the disk."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()

    def __repr__(self) -> str:
        return f"Record({str(self.path)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    @property
    def id(self) -> str:
        """The directory's name."""
        return self.path.name

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def figures_dir(self) -> Path:
        return self.path / "figures"

    @property
    def checkpoints_dir(self) -> Path:
        return self.path / "checkpoints"

    def log_path(self, rank: int) -> Path:
        return self.path / "logs" / f"rank-{rank}.log"

    def read(self) -> dict[str, Any]:
        """The content of `record.json`, made true first: an open run whose owner is gone is written as failed.

        While the run is open the result also has `owner_state`: "alive", or "unknown" where that can't be measured
        from here. Where the record can't be written (another user's) the returned status is true all the same.

        Raises NotFoundError if there is no record, RecordError if it is broken.
        """
        content = self._load()
        if content["status"] in END_STATES:
            return content
        state = owner_state(content["owner"])
        if state == "gone":
            try:
                with self._locked():
                    content = self._load()  # it may have been closed or taken over meanwhile
                    state = owner_state(content["owner"])
                    if content["status"] in _OPEN_STATES and state == "gone":
                        self._mark_vanished(content)
                        self._store(content)
            except (OSError, RecordError):
                content = self._load()
                if content["status"] in _OPEN_STATES and owner_state(content["owner"]) == "gone":
                    self._mark_vanished(content)
        if content["status"] in _OPEN_STATES:
            content["owner_state"] = state
        return content

    def config(self) -> dict[str, Any]:
        """The frozen config. Raises RecordError if `config.json` is not the one that the run was made with."""
        try:
            text = (self.path / "config.json").read_bytes()
        except OSError as error:
            raise RecordError(f"{self.path / 'config.json'} can't be read: {error.strerror}") from error
        expected, got = self._load()["digest"], hashlib.sha256(text).hexdigest()
        if got != expected:
            raise RecordError(
                f"{self.path / 'config.json'} was changed: its sha256 is {got}, the record says {expected}"
            )
        config: dict[str, Any] = json.loads(text)
        return config

    def update(self, **fields: Any) -> None:
        """Replace fields (`extra` is merged). Raises RecordError for an unknown field, with the nearest name."""
        plain = check_update(fields)
        with self._editing() as content:
            content["extra"].update(plain.pop("extra", {}))
            content.update(plain)

    def start(self, owner: Mapping[str, Any] | None = None) -> None:
        """Say that the run is running, owned by a process (default: the calling one).

        On a running record it hands the ownership over: the notebook starts a training, then rank 0 takes it. The
        start time stays. Raises RecordError if the run has ended.
        """
        new = dict(owner) if owner is not None else this_process()
        if new.keys() != set(OWNER_FIELDS):
            raise RecordError(f"an owner has the fields {', '.join(OWNER_FIELDS)}, got {', '.join(new) or 'none'}")
        with self._editing() as content:
            if content["status"] in END_STATES:
                raise RecordError(f"run {self.id} ended as {content['status']!r}; it can't be started again")
            content["status"] = "running"
            content["started_utc"] = content["started_utc"] or utc_text(datetime.now(UTC))
            content["owner"] = new

    def close(self, status: str, error: Mapping[str, Any] | BaseException | None = None) -> None:
        """End the run: "completed", "failed", "interrupted", "timeout" or "cancelled".

        error: the exception, or a mapping with `type`, `message` and others of `fields.ERROR_FIELDS`. A second close
        with the same status changes nothing, except that it may bring the error that the first lacked. An end status
        may become a worse one (a completed run that turns out to have failed), never a better one.

        Raises RecordError for any other change, an unknown status, or an error with "completed".
        """
        entry = None
        if error is not None:
            entry = check_error(error_fields(error) if isinstance(error, BaseException) else error)
            if status == "completed":
                raise RecordError(f"a completed run has no error, got {entry['type']}: {entry['message']}")
        with self._editing() as content:
            before = content["status"]
            check_close(before, status)
            if before == status and (entry is None or content["error"] is not None):
                return
            content["status"] = status
            content["error"] = entry
            if before != status:
                content["ended_utc"] = utc_text(datetime.now(UTC))

    def add_child(self, run_id: str) -> None:
        """Note a run of this batch; noting it twice is no harm."""
        with self._editing() as content:
            if run_id not in content["children"]:
                content["children"].append(run_id)

    def children(self) -> list[Record]:
        """The records of the runs of this batch, in the order in which they were begun."""
        return [Record(self.path.parent / run_id) for run_id in self._load()["children"]]

    def _load(self) -> dict[str, Any]:
        path = self.path / "record.json"
        try:
            content = json.loads(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            raise NotFoundError(f"no run record in {self.path}; `sciml runs list` shows what there is") from None
        except (OSError, ValueError) as error:
            raise RecordError(f"{path} can't be read: {error}") from error
        if not isinstance(content, dict) or content.get("status") not in STATES:
            raise RecordError(f"{path} is no run record: it has no known status")
        if content.get("schema_version") != SCHEMA_VERSION:
            raise RecordError(
                f"{path} has schema version {content.get('schema_version')!r}, this package reads {SCHEMA_VERSION}; "
                "read it with the version that wrote it"
            )
        missing = {"id", "owner", "digest", "error", "children", "extra", "started_utc", "ended_utc"} - content.keys()
        if missing:
            raise RecordError(f"{path} is no whole run record: it lacks {', '.join(sorted(missing))}")
        return content

    def _store(self, content: Mapping[str, Any]) -> None:
        path, reserve = self.path / "record.json", self.path / RESERVE
        try:
            write_atomic(path, dump(content))
        except OSError:
            if not reserve.exists():
                raise
            reserve.unlink()
            write_atomic(path, dump(content))
        if content["status"] in END_STATES:
            with contextlib.suppress(OSError):
                reserve.unlink()

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time, over processes and threads."""
        path = self.path / ".record.lock"
        try:
            lock: FileLock | SoftFileLock = FileLock(path, timeout=_LOCK_TIME_S)
            try:
                lock.acquire()
            except NotImplementedError:  # a file system without flock
                lock = SoftFileLock(path, timeout=_LOCK_TIME_S)
                lock.acquire()
        except Timeout as error:
            raise RecordError(
                f"run {self.id} is being written by another process for over {_LOCK_TIME_S:.0f} s; "
                f"if there is none, remove {path}"
            ) from error
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def _editing(self) -> Iterator[dict[str, Any]]:
        self._load()  # no lock file where there is no record
        try:
            with self._locked():
                content = self._load()
                before = copy.deepcopy(content)
                yield content
                if content != before:
                    self._store(content)
        except OSError as error:
            raise RecordError(f"run record {self.path} can't be written: {error.strerror or error}") from error

    def _mark_vanished(self, content: dict[str, Any]) -> None:
        owner = content["owner"]
        content["error"] = check_error(
            {
                "type": OWNER_VANISHED,
                "message": f"owner vanished: process {owner['pid']} on {owner['host']} ended without closing the run",
                "host": owner["host"],
                "cell": (cell := content["extra"].get("running_cell")),
            }
        )
        for entry in content["cells"]:
            if entry["index"] == cell:
                entry["status"] = "interrupted"
        content["status"] = "failed"
        content["ended_utc"] = self._last_sign_of_life()

    def _last_sign_of_life(self) -> str:
        """The newest change of record, metrics and logs: when it ended is not known better."""
        times = [0.0]
        for path in (self.path / "record.json", self.metrics_path, *self.path.glob("logs/*.log")):
            with contextlib.suppress(OSError):
                times.append(path.stat().st_mtime)
        return utc_text(datetime.fromtimestamp(max(times), UTC))


def utc_text(moment: datetime) -> str:
    """As the record writes a time: "2026-12-01T01:30:00.000Z"."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def dump(content: Mapping[str, Any]) -> str:
    """The text of `record.json`."""
    return json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
