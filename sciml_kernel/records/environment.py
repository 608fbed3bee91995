"""What a run was made with: packages, lock, git. Nothing is imported for it, and no environment variable is kept."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

__all__ = ["environment", "git_state", "lock_hash", "versions"]

GIT_TIME_S = 10.0


def versions() -> dict[str, str]:
    """Installed packages: normalised name -> version, sorted. Read from their metadata; nothing is imported."""
    found: dict[str, str] = {}
    for distribution in distributions():
        try:
            name, version = distribution.metadata["Name"], distribution.version
        except Exception:  # a broken installation of one package must not stop a run
            continue
        if name and version:
            # the first on the path is the one that is imported
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), version)
    return dict(sorted(found.items()))


def lock_hash() -> str | None:
    """sha256 of the lock that this environment was installed from, as `env/setup` noted it; None elsewhere."""
    try:
        noted = json.loads((Path(sys.prefix) / "etc/sciml/environment.json").read_text(encoding="utf-8"))
        value = noted["lock"]["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return value if isinstance(value, str) else None


def environment() -> dict[str, Any]:
    """The fields of `record.json` that describe the installation: python, platform, lock_sha256, versions."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "lock_sha256": lock_hash(),
        "versions": versions(),
    }


def git_state(directory: str | Path | None = None, *, timeout_s: float = GIT_TIME_S) -> dict[str, Any]:
    """The state of the repository around a directory (default: the current one).

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
        return nothing
    commit = _git(folder, deadline, "rev-parse", "--verify", "--quiet", "HEAD")
    state = dict(nothing, commit=commit.decode().strip() if commit else None)
    status = _git(
        folder, deadline, "status", "--porcelain", "-z", "--untracked-files=normal", "--ignore-submodules=none"
    )
    if status is None:
        return state
    state["dirty"] = bool(status)
    if status:
        digest = hashlib.sha256()
        options = ("--binary", "--no-color", "--no-ext-diff", "--no-textconv")
        if commit is None or _git(folder, deadline, "diff", *options, "HEAD", feed=digest.update) is not None:
            digest.update(b"".join(entry + b"\0" for entry in status.split(b"\0") if entry.startswith(b"?? ")))
            state["diff_sha256"] = digest.hexdigest()
    return state


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
