"""`metrics.jsonl`: one event a line, the truth about what a run reported.

A line is a JSON object with the fields of `contracts.MetricEvent`. JSON has no NaN and no infinity, and a diverged
loss is a valid value, so those three are written as the strings "NaN", "Infinity" and "-Infinity"; `float()` of
Python, pandas and most other readers takes them.
"""

from __future__ import annotations

import dataclasses
import json
import math
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sciml_kernel.contracts import MetricEvent
from sciml_kernel.errors import RecordError

__all__ = ["JsonlSink", "decode_event", "encode_event", "last_values", "read_events"]

_FIELDS = frozenset(field.name for field in dataclasses.fields(MetricEvent))
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_FSYNC_EVERY_S = 1.0


def encode_event(event: MetricEvent) -> str:
    """One line without its newline."""
    data = event.to_json()
    data["rank"], data["step"], data["epoch"] = int(event.rank), int(event.step), int(event.epoch)
    data["value"] = _to_json(float(event.value))
    data["wall_time_s"] = float(event.wall_time_s)
    return json.dumps(data, allow_nan=False, ensure_ascii=False)


def decode_event(line: str | bytes) -> MetricEvent:
    """The event of one line. Raises ValueError saying what is wrong with it."""
    data = json.loads(line)
    if not isinstance(data, dict):
        raise ValueError("not a JSON object")
    if data.keys() != _FIELDS:
        missing, unknown = sorted(_FIELDS - data.keys()), sorted(data.keys() - _FIELDS)
        raise ValueError(f"missing fields {missing}, unknown fields {unknown}")
    for name in ("run", "name", "unit"):
        if not isinstance(data[name], str):
            raise ValueError(f"{name} is {data[name]!r}, not a text")
    for name in ("rank", "step", "epoch"):
        if not isinstance(data[name], int) or isinstance(data[name], bool):
            raise ValueError(f"{name} is {data[name]!r}, not an integer")
    for name in ("value", "wall_time_s"):
        data[name] = _from_json(name, data[name])
    return MetricEvent.from_json(data)


class JsonlSink:
    """Appends events to one file; a `contracts.Sink`. One writer a file (rank 0), any number of threads.

    Events reach the operating system before `publish` returns, so a killed process loses none; they reach the disk
    about once a second and on `close`, so a lost node loses about a second. A torn last line that a killed writer left
    is removed on opening. `clock`: monotonic seconds, for tests.

    Raises RecordError when the file can't be opened or written (a full disk is no slow reader: the truth would be
    lost without a word); what was whole before stays whole.
    """

    def __init__(self, path: str | Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = Path(path)
        self._clock = clock
        self._lock = threading.Lock()
        self._closed = False
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise RecordError(f"metrics can't be written to {self.path}: {error.strerror}") from error
        try:
            self._size = _mend_tail(self._fd)
        except OSError as error:
            os.close(self._fd)
            raise RecordError(f"metrics can't be written to {self.path}: {error.strerror}") from error
        self._synced_at = clock()
        self._dirty = False

    def publish(self, events: Iterable[MetricEvent]) -> None:
        text = "".join(encode_event(event) + "\n" for event in events).encode()
        if not text:
            return
        with self._lock:
            if self._closed:
                raise RecordError(f"metrics file {self.path} is closed already")
            try:
                _write_all(self._fd, text)
            except OSError as error:
                os.ftruncate(self._fd, self._size)  # no half line may stay before the next one
                raise RecordError(f"metrics can't be written to {self.path}: {error.strerror}") from error
            self._size += len(text)
            self._dirty = True
            if self._clock() - self._synced_at >= _FSYNC_EVERY_S:
                self._sync()

    def close(self) -> None:
        """Flush to disk and close. A second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                if self._dirty:
                    self._sync()
            except OSError as error:
                raise RecordError(f"metrics can't be written to {self.path}: {error.strerror}") from error
            finally:
                os.close(self._fd)

    def __enter__(self) -> JsonlSink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sync(self) -> None:
        os.fsync(self._fd)
        self._synced_at = self._clock()
        self._dirty = False


def read_events(path: str | Path, offset: int = 0) -> tuple[list[MetricEvent], int]:
    """The whole lines from byte `offset` on, and the offset to go on from.

    A last line without its newline is still being written: it is left for the next call. A file that does not exist
    yet has no events. Raises RecordError naming file and line number for a whole line that is no event.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return [], offset
    except OSError as error:
        raise RecordError(f"metrics can't be read from {path}: {error.strerror}") from error
    end = data.rfind(b"\n") + 1
    events: list[MetricEvent] = []
    position = 0
    while position < end:
        stop = data.index(b"\n", position)
        line = data[position:stop]
        if line.strip():
            try:
                events.append(decode_event(line))
            except ValueError as error:
                number = _line_number(path, offset + position)
                raise RecordError(f"{path}, line {number}: not a metric event: {error}") from error
        position = stop + 1
    return events, offset + end


def last_values(path: str | Path, names: Iterable[str]) -> dict[str, float]:
    """The newest value of each named metric, searched from the end; names that never occur are left out.

    Reads little even when the file is long. Lines that are no events are passed over.
    """
    found: dict[str, float] = {}
    try:
        with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            end = data.rfind(b"\n") + 1
            for name in names:
                needle = json.dumps(name, ensure_ascii=False).encode()
                stop = end
                while (hit := data.rfind(needle, 0, stop)) >= 0:
                    start = data.rfind(b"\n", 0, hit) + 1
                    stop = start
                    try:
                        event = decode_event(data[start : data.find(b"\n", hit)])
                    except ValueError:
                        continue
                    if event.name == name:
                        found[name] = event.value
                        break
    except (FileNotFoundError, ValueError):  # ValueError: an empty file can't be mapped
        return found
    return found


def _to_json(value: float) -> float | str:
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _from_json(name: str, value: Any) -> float:
    if isinstance(value, str):
        if value not in _NOT_FINITE:
            raise ValueError(f"{name} is {value!r}, not a number")
        return _NOT_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is {value!r}, not a number")
    return float(value)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _mend_tail(fd: int) -> int:
    """Make the file end with a whole line; return its size in bytes."""
    size = os.fstat(fd).st_size
    start, tail = size, b""
    while start > 0 and b"\n" not in tail:  # in blocks from the end: the file may be long
        block = min(65536, start)
        start -= block
        tail = os.pread(fd, block, start) + tail
    last = tail[tail.rfind(b"\n") + 1 :]
    if not last:
        return size
    try:
        decode_event(last)
    except ValueError:
        os.ftruncate(fd, size - len(last))
        return size - len(last)
    _write_all(fd, b"\n")  # only the newline was missing
    return size + 1


def _line_number(path: Path, position: int) -> int:
    with path.open("rb") as file:
        return file.read(position).count(b"\n") + 1
