"""In place of `engine.entry.train`, for a FakePool: the same duties towards the record, no TensorFlow.

What it does is written in the config's data path: "fine", "raises", "waits" (for an interrupt), "hangs" (heeds none),
"vanishes" (leaves the record open and ends badly, as a killed rank does).
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

from sciml_kernel import records
from sciml_kernel.contracts import MetricEvent
from sciml_kernel.metrics.jsonl import JsonlSink
from sciml_kernel.pool.fake import hold
from sciml_kernel.pool.rank import rank_info

_lock = threading.Lock()
started = threading.Event()
hanging: list[str] = []


def train(payload: dict[str, Any]) -> dict[str, Any]:
    record = records.Record(Path(payload["record"]))
    config = json.loads(payload["config"])
    task = Path(config["data"]["path"]).name
    with _lock:  # threads stand for ranks: the first is rank 0
        first = record.read()["status"] == "created"
        if first:
            record.start()
    if first:
        with JsonlSink(record.metrics_path) as sink:
            for epoch in range(config["train"]["epochs"]):
                at = {"run": payload["run"], "rank": 0, "step": 4 * (epoch + 1), "epoch": epoch, "unit": ""}
                for name, value in (("train/loss", 1.0 / (epoch + 1)), ("val/loss", 0.5)):
                    sink.publish([MetricEvent(name=name, value=value, wall_time_s=time.time(), **at)])
    if task == "raises":
        if first:
            record.close("failed", {"type": "ValueError", "message": "no such star", "rank": 0, "step": 3})
        raise ValueError("no such star")
    if task == "vanishes":
        raise OSError("gone before it could write")
    if task == "hangs":
        with _lock:
            hanging.append(task)
            if len(hanging) == rank_info().size:
                started.set()
        hold()
    if task == "waits":
        try:
            if first:
                started.set()
            while True:
                time.sleep(0.01)
        except KeyboardInterrupt:
            if first:
                record.close(record.read()["extra"].get("stop_status", "interrupted"))
            return {"status": "interrupted"}
    if first:
        (record.path / "predictions.csv").write_text("sample,true_sigma_8\n3,0.9\n")
        record.close("completed")
    return {"status": "completed"}
