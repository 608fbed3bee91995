"""What a rank prints, shown and kept: a copy of stdout and stderr goes to the run's `logs/rank-<r>.log`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

__all__ = ["kept"]


class _Tee:
    """Writes to both. Everything else is the shown stream's, so that progress bars and IPython find what they know."""

    def __init__(self, shown: Any, kept: TextIO) -> None:
        self._shown, self._kept = shown, kept

    def write(self, text: str) -> int:
        self._shown.write(text)
        self._kept.write(text)
        return len(text)

    def flush(self) -> None:
        self._shown.flush()
        self._kept.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shown, name)


@contextlib.contextmanager
def kept(path: Path) -> Iterator[None]:
    """Copy what Python prints in the block to the file, which is appended to and flushed line by line."""
    import sys

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8", buffering=1) as log:
        out: Any = _Tee(sys.stdout, log)
        err: Any = _Tee(sys.stderr, log)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            yield
