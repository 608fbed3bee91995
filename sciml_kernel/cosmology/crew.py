"""A few worker processes that share out jobs; used by `factory` alone."""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

from sciml_kernel.cosmology.worker import Job, run_job
from sciml_kernel.data.manifest import ShardFile
from sciml_kernel.errors import DataError, SciMLError

__all__ = ["available_cores", "run_jobs"]

ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}


def run_jobs(jobs: list[Job], *, workers: int, after_sample: Callable[[], None]) -> list[ShardFile]:
    """Run the jobs, in this process for one worker, else in so many processes; files in the order of the jobs.

    after_sample is called in this thread. Whatever ends the call (an error, an interrupt), no process is left.
    """
    workers = min(workers, len(jobs))
    if workers <= 1:
        return [run_job(job, after_sample=after_sample) for job in jobs]
    waiting: queue.SimpleQueue[tuple[int, Job]] = queue.SimpleQueue()
    for item in enumerate(jobs):
        waiting.put(item)
    events: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    files: dict[int, ShardFile] = {}
    members = [_Member(waiting, events) for _ in range(workers)]
    try:
        for member in members:
            member.start()
        while len(files) < len(jobs):
            kind, value = events.get()
            if kind == "sample":
                after_sample()
            elif kind == "file":
                files[value[0]] = value[1]
            else:
                raise value
    finally:
        for member in members:
            member.end()
    return [files[i] for i in range(len(jobs))]


class _Member:
    """One process, and the thread that feeds it and passes its answers on."""

    def __init__(self, waiting: queue.SimpleQueue[tuple[int, Job]], events: queue.SimpleQueue[tuple[str, Any]]) -> None:
        self._waiting, self._events = waiting, events
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[bytes] | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        source = str(Path(__file__).resolve().parents[2])
        paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in `end`)
        self._process = subprocess.Popen(
            # -P: a file random.py in the current folder must not take the place of the library's
            [sys.executable, "-P", "-m", "sciml_kernel.cosmology.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(paths)},
        )
        self._thread = threading.Thread(target=self._serve, args=(self._process,), daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the process and wait for it and its thread."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._thread is not None:
            self._thread.join()
        if self._process is not None:
            for stream in (self._process.stdin, self._process.stdout):
                try:
                    if stream is not None:
                        stream.close()
                except BrokenPipeError:
                    pass
        if self._errors is not None:
            self._errors.close()

    def _serve(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            while True:
                try:
                    number, job = self._waiting.get_nowait()
                except queue.Empty:
                    return
                process.stdin.write(json.dumps(dataclasses.asdict(job)) + "\n")
                process.stdin.flush()
                file = self._answers(process.stdout)
                if file is None:
                    raise SciMLError(f"a simulation worker died ({self._how(process)}) while it made {job.name}")
                self._events.put(("file", (number, file)))
        except BrokenPipeError:
            self._events.put(("error", SciMLError(f"a simulation worker died ({self._how(process)})")))
        except Exception as error:
            self._events.put(("error", error))

    def _answers(self, stream: Iterable[str]) -> ShardFile | None:
        """Pass samples on until the job's file is there. None: the process is gone."""
        for line in stream:
            answer = json.loads(line)
            if "file" in answer:
                return ShardFile(**answer["file"])
            if "error" in answer:
                kind = DataError if answer["error"] == "DataError" else SciMLError
                raise kind(answer["message"] if kind is DataError else f"{answer['error']}: {answer['message']}")
            self._events.put(("sample", None))
        return None

    def _how(self, process: subprocess.Popen[str]) -> str:
        code = process.wait()
        assert self._errors is not None
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip()[-2000:]
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"{how}: {said}" if said else how


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
