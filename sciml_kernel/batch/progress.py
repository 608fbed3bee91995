"""What is seen while a notebook runs: a line a cell, and what the cell prints. Plain lines, for log files too."""

from __future__ import annotations

import sys
from typing import Any, Protocol, TextIO

__all__ = ["Lines", "Progress", "Quiet"]

MOST_LINES = 100  # at the beginning and at the end of what a cell prints at once


class Progress(Protocol):
    """Called by the run, in order, in its thread. Must not raise."""

    def begin(self, record: str, n_cells: int) -> None: ...

    def cell_begins(self, number: int, cell: Any) -> None: ...

    def text(self, stream: str, text: str) -> None: ...

    def cell_ends(self, number: int, status: str, seconds: float) -> None: ...

    def note(self, text: str) -> None: ...

    def end(self, status: str, message: str) -> None: ...


class Quiet:
    """Says nothing."""

    def begin(self, record: str, n_cells: int) -> None: ...

    def cell_begins(self, number: int, cell: Any) -> None: ...

    def text(self, stream: str, text: str) -> None: ...

    def cell_ends(self, number: int, status: str, seconds: float) -> None: ...

    def note(self, text: str) -> None: ...

    def end(self, status: str, message: str) -> None: ...


class Lines:
    """To `file` (stdout by default), a line at a time. A bar that redraws itself shows its last state of each line."""

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file or sys.stdout
        self._n = 0
        self._rest = ""

    def begin(self, record: str, n_cells: int) -> None:
        self._n = n_cells
        self._say(f"record {record}")

    def cell_begins(self, number: int, cell: Any) -> None:
        lines = [line.strip() for line in cell.source.splitlines() if line.strip() and not line.startswith("#")]
        self._say(f"[{number}/{self._n}] {lines[0][:90] if lines else ''}")

    def text(self, stream: str, text: str) -> None:
        *lines, self._rest = (self._rest + text).split("\n")
        if len(lines) > 2 * MOST_LINES:
            left_out = len(lines) - 2 * MOST_LINES
            lines = [*lines[:MOST_LINES], f"... {left_out} lines; the record has them ...", *lines[-MOST_LINES:]]
        if lines:
            self._say("\n".join("    " + line.rstrip("\r").rpartition("\r")[2] for line in lines))

    def cell_ends(self, number: int, status: str, seconds: float) -> None:
        if self._rest.strip():
            self._say("    " + self._rest.rpartition("\r")[2])
        self._rest = ""
        self._say(f"[{number}/{self._n}] {status} in {seconds:.1f} s")

    def note(self, text: str) -> None:
        self._say(text)

    def end(self, status: str, message: str) -> None:
        self._say(f"{status}: {message}" if message else status)

    def _say(self, line: str) -> None:
        try:
            print(line, file=self._file, flush=True)
        except OSError:  # nobody listens any more; the run goes on
            return
