"""Small files that are whole or not there."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = ["age_s", "claim", "now_utc", "read_json", "tail", "write_json"]


def now_utc() -> str:
    """The time as ISO 8601 in UTC with microseconds, so that texts sort like times."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def age_s(utc: str) -> float:
    """Seconds since a time that `now_utc` wrote."""
    return (datetime.now(UTC) - datetime.fromisoformat(utc.replace("Z", "+00:00"))).total_seconds()


def write_json(path: Path, value: Mapping[str, Any], *, durable: bool = True) -> None:
    """Replace `path` (0600) by the JSON of `value`: readers see the old file or the new one, never a part.

    durable: fsync first. A marker that means nothing after a crash of the machine goes without.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    os.replace(temporary, path)


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in `path`; None when the file is missing, truncated or no object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def tail(path: Path, n_lines: int = 20, n_bytes: int = 16_384) -> str:
    """The last lines of a text file; "" when there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - n_bytes))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-n_lines:])


def claim(place: Path, timeout_s: float) -> Callable[[], None] | None:
    """Hold the one lock in this directory until the function returned is called (again is no harm) or this process
    ends. None when another has held it for `timeout_s`. A file system without locks refuses nobody."""
    try:
        descriptor = os.open(place / "claim.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:  # the directory is gone, which the next look at the pool says
        return lambda: None
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(0.005)
                continue
            os.close(descriptor)
            return None
        except OSError:
            pass
        break
    held = [os.fdopen(descriptor, "rb")]  # closed with its last reference too, say after a KeyboardInterrupt

    def release() -> None:
        if held:
            held.pop().close()

    return release
