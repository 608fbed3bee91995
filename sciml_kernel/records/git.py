"""The state of the repository that a run was made in, and what its files differ from the commit by."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["MOST_PATCH_BYTES", "Changes", "git_changes", "git_state"]

GIT_TIME_S = 10.0
MOST_PATCH_BYTES = 4_000_000
MOST_UNTRACKED = 200


@dataclass
class Changes:
    """What differs from the commit. patch: bytes of `git diff --binary HEAD`, None where clean or longer than
    MOST_PATCH_BYTES. patch_bytes: its length. untracked: names, at most MOST_UNTRACKED of them."""

    patch: bytes | None = None
    patch_bytes: int = 0
    untracked: list[str] = field(default_factory=list)


def git_state(directory: str | Path | None = None, *, timeout_s: float = GIT_TIME_S) -> dict[str, Any]:
    """The first half of `git_changes`."""
    return git_changes(directory, timeout_s=timeout_s)[0]


def git_changes(
    directory: str | Path | None = None, *, timeout_s: float = GIT_TIME_S
) -> tuple[dict[str, Any], Changes]:
    """The state of the repository around a directory (default: the current one), and what is changed in it.

    commit: hex or None. dirty: True if a tracked file differs from the commit or an untracked, not ignored file lies
    there. diff_sha256: of `git diff --binary HEAD` followed by the names of the untracked files; None when clean. All
    three are None outside a repository and without git.

    Never asks, never waits for long, runs no hook: at most `timeout_s` seconds in all; what git did not say by then is
    None.
    """
    nothing: dict[str, Any] = {"commit": None, "dirty": None, "diff_sha256": None}
    folder = Path(directory) if directory is not None else Path.cwd()
    deadline = time.monotonic() + timeout_s
    inside = _git(folder, deadline, "rev-parse", "--is-inside-work-tree")
    if inside is None or inside.strip() != b"true":
        return nothing, Changes()
    commit = _git(folder, deadline, "rev-parse", "--verify", "--quiet", "HEAD")
    state = dict(nothing, commit=commit.decode().strip() if commit else None)
    status = _git(
        folder, deadline, "status", "--porcelain", "-z", "--untracked-files=normal", "--ignore-submodules=none"
    )
    if status is None:
        return state, Changes()
    state["dirty"] = bool(status)
    if not status:
        return state, Changes()
    take = _Taken()
    options = ("--binary", "--no-color", "--no-ext-diff", "--no-textconv")
    if commit is not None and _git(folder, deadline, "diff", *options, "HEAD", feed=take) is None:
        return state, Changes()
    new = [entry for entry in status.split(b"\0") if entry.startswith(b"?? ")]
    take.digest.update(b"".join(entry + b"\0" for entry in new))
    state["diff_sha256"] = take.digest.hexdigest()
    names = [os.fsdecode(entry[3:]) for entry in new[:MOST_UNTRACKED]]
    kept = b"".join(take.pieces) if 0 < take.size <= MOST_PATCH_BYTES else None
    return state, Changes(kept, take.size, names)


class _Taken:
    """Takes a diff of any length: its hash, its length, and itself while it is short."""

    def __init__(self) -> None:
        self.digest, self.size = hashlib.sha256(), 0
        self.pieces: list[bytes] = []

    def __call__(self, piece: bytes) -> None:
        self.digest.update(piece)
        self.size += len(piece)
        if self.size <= MOST_PATCH_BYTES:
            self.pieces.append(piece)


def _git(folder: Path, deadline: float, *arguments: str, feed: Callable[[bytes], object] | None = None) -> bytes | None:
    """Standard output of one git command, or None if it failed or ran past the deadline. feed: takes it piecewise."""
    # GIT_DIR and friends, set inside a git hook, would point to another repository
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    variables |= {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_ASKPASS": "true", "LC_ALL": "C"}
    try:
        process = subprocess.Popen(
            ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=variables,
            start_new_session=True,  # no terminal to ask on, and one group to end: git may start filters
        )
    except OSError:
        return None
    late = threading.Event()

    def end() -> None:
        late.set()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(max(deadline - time.monotonic(), 0.0), end)
    timer.daemon = True
    timer.start()
    pieces: list[bytes] = []
    take = feed or pieces.append
    try:
        assert process.stdout is not None
        with process.stdout as stream:
            while piece := stream.read(1 << 20):
                take(piece)
        code = process.wait()
    finally:
        timer.cancel()
        if process.poll() is None:
            end()
            process.wait()
    return b"".join(pieces) if code == 0 and not late.is_set() else None
