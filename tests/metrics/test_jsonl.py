from __future__ import annotations

import json
import math
import os
import threading
from pathlib import Path

import pytest

from sciml_kernel.contracts import MetricEvent, Sink
from sciml_kernel.errors import RecordError
from sciml_kernel.metrics.jsonl import JsonlSink, decode_event, encode_event, last_values, read_events


def event(step: int = 1, value: float = 0.5, name: str = "train/loss", rank: int = 0) -> MetricEvent:
    return MetricEvent("r", rank, step, 0, name, value, "", 1000.0 + step)


@pytest.mark.parametrize("value", [0.1, -0.0, 1e300, 5e-324, 3, math.inf, -math.inf])
def test_a_line_reads_back_as_the_same_event(value: float) -> None:
    line = encode_event(event(value=value))
    assert decode_event(line) == event(value=float(value))
    assert math.copysign(1, decode_event(line).value) == math.copysign(1, value)


def test_nan_is_written_as_strict_json_and_reads_back() -> None:
    line = encode_event(event(value=math.nan))

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    # a strict JSON reader must take the line; Python's own would let the bare word NaN pass
    assert json.loads(line, parse_constant=refuse)["value"] == "NaN"
    assert math.isnan(decode_event(line).value)


def test_numpy_numbers_are_written_like_python_ones() -> None:
    import numpy as np

    line = encode_event(MetricEvent("r", 0, np.int64(3), np.int32(1), "train/loss", np.float32(0.5), "", 2.0))
    assert decode_event(line) == MetricEvent("r", 0, 3, 1, "train/loss", 0.5, "", 2.0)


def test_events_are_readable_before_the_sink_is_closed(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "m.jsonl")
    assert isinstance(sink, Sink)
    sink.publish([event(1), event(2)])
    events, offset = read_events(tmp_path / "m.jsonl")
    assert events == [event(1), event(2)]
    sink.publish([event(3)])
    assert read_events(tmp_path / "m.jsonl", offset)[0] == [event(3)]
    sink.close()
    sink.close()


def test_fsync_comes_at_most_once_a_second_and_on_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    synced: list[float] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(now[0]))
    sink = JsonlSink(tmp_path / "m.jsonl", clock=lambda: now[0])
    for tenth in range(1, 26):  # 2.5 s of events
        now[0] = tenth / 10
        sink.publish([event(tenth)])
    sink.close()
    assert synced == [1.0, 2.0, 2.5]


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    with JsonlSink(path) as sink:
        threads = [
            threading.Thread(target=lambda rank=rank: [sink.publish([event(step, rank=rank)]) for step in range(50)])
            for rank in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    events, _ = read_events(path)
    assert sorted((e.rank, e.step) for e in events) == [(r, s) for r in range(4) for s in range(50)]


def test_a_torn_last_line_is_left_for_the_next_read(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    whole, next_line = encode_event(event(1)) + "\n", encode_event(event(2)) + "\n"
    path.write_text(whole + next_line[:20])
    events, offset = read_events(path)
    assert (events, offset) == ([event(1)], len(whole))
    path.write_text(whole + next_line)
    assert read_events(path, offset) == ([event(2)], len(whole + next_line))


def test_a_missing_file_has_no_events_yet(tmp_path: Path) -> None:
    assert read_events(tmp_path / "none.jsonl") == ([], 0)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{broken", "Expecting"),
        ('{"run": "r"}', "missing fields"),
        (encode_event(event()).replace("0.5", '"much"'), "'much', not a number"),
        (encode_event(event()).replace('"step": 1', '"step": 1.5'), "step is 1.5"),
    ],
)
def test_a_broken_line_is_named_by_file_and_number(tmp_path: Path, line: str, what: str) -> None:
    path = tmp_path / "m.jsonl"
    good = encode_event(event()) + "\n"
    path.write_text(good + good + line + "\n" + good)
    with pytest.raises(RecordError, match=rf"m\.jsonl, line 3: .*{what}"):
        read_events(path)
    with pytest.raises(RecordError, match="line 3"):
        read_events(path, len(good) * 2)  # counted from the start of the file, also when reading from the middle


def test_a_new_writer_removes_what_a_killed_one_left_half_written(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(encode_event(event(1)) + "\n" + encode_event(event(2))[:30])
    with JsonlSink(path) as sink:
        sink.publish([event(3)])
    assert read_events(path)[0] == [event(1), event(3)]


def test_a_new_writer_keeps_a_last_line_that_only_lacks_its_newline(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(encode_event(event(1)))
    with JsonlSink(path) as sink:
        sink.publish([event(2)])
    assert read_events(path)[0] == [event(1), event(2)]


def test_a_full_disk_is_an_error_and_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.jsonl"
    sink = JsonlSink(path)
    sink.publish([event(1)])
    write, calls = os.write, []

    def half_then_full(fd: int, data: bytes) -> int:
        calls.append(fd)
        if len(calls) == 1:
            return write(fd, bytes(data)[:10])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half_then_full)
        with pytest.raises(RecordError, match="No space left"):
            sink.publish([event(2)])
    sink.publish([event(3)])
    sink.close()
    assert read_events(path)[0] == [event(1), event(3)]


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"no/m\.jsonl"):
        JsonlSink(tmp_path / "no" / "m.jsonl")


def test_last_values_are_the_newest_of_each_name_and_only_of_it(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    with JsonlSink(path) as sink:
        sink.publish([event(1, 9.0, "val/loss"), event(2, 8.0, "val/loss")])
        # a unit or a run that reads like the name must not be taken for it
        sink.publish([MetricEvent("r", 0, 3, 0, "train/loss", 5.0, "val/loss", 1.0)])
        sink.publish([event(s, float(s), "train/samples_per_s") for s in range(100)])
    found = last_values(path, ["val/loss", "train/loss", "val/mean_iou"])
    assert found == {"val/loss": 8.0, "train/loss": 5.0}
    assert last_values(tmp_path / "none", ["val/loss"]) == {}
    (tmp_path / "empty").touch()
    assert last_values(tmp_path / "empty", ["val/loss"]) == {}
