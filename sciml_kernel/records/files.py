"""Whole files or none: written under a temporary name in the same directory, flushed to disk, then renamed."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

__all__ = ["sync_directory", "write_atomic"]


def write_atomic(path: str | Path, data: bytes | str) -> None:
    """Replace or make `path`. A reader sees the old or the new content, whole; so does a crash. Text is UTF-8.

    Raises OSError, and leaves the old file and nothing else.
    """
    path = Path(path)
    content = data.encode() if isinstance(data, str) else data
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    # os.open and not tempfile: the file gets the mode that the person's umask gives, not 0600
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_directory(path.parent)


def sync_directory(path: str | Path) -> None:
    """Flush a directory's entries, so that a rename in it survives a power cut. Not every file system can: ignored."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
