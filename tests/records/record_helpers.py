"""A second process that works on a record, and what the tests share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from sciml_kernel.config.digest import canonical_json
from sciml_kernel.records import Record, create

CONFIG = canonical_json({"recipe": "cosmoflow", "train": {"epochs": 2}})


def make(root: Path, name: str = "cosmoflow", **fields: Any) -> Record:
    return create(name, CONFIG, root=root, **fields)


# Worker functions live here and not in a test module: a spawned process must be able to import them by name.


def create_some(root: Path, n: int) -> list[str]:
    return [make(root).id for _ in range(n)]


def add_children(path: Path, worker: int) -> None:
    for i in range(10):
        Record(path).add_child(f"run-{worker}-{i}")


class Holder:
    """A process that runs some lines and then waits to be ended. `kill` is SIGKILL; it may be left unreaped."""

    def __init__(self, lines: str) -> None:
        before = "import sys\nfrom sciml_kernel.records import Record\n"
        after = "\nprint('ready', flush=True)\nsys.stdin.read()"
        code = before + lines + after
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self, *, reap: bool = True) -> None:
        self.process.kill()
        if reap:
            self.process.wait(timeout=30)

    def __enter__(self) -> Holder:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(timeout=30)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
