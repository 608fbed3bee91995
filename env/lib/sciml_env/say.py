"""Printing steps, and running commands with a log, a sign of life and a clean end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["FAILED", "UNFIT", "USAGE", "Log", "SetupError", "note", "say", "step"]

FAILED, USAGE, UNFIT = 1, 2, 3
HEARTBEAT_S = 20.0
# Waiting does not mend these.
HOPELESS = re.compile(r"No space left|Permission denied|Read-only file system|No solution found|Disk quota", re.I)


class SetupError(Exception):
    """Ends the set-up with a message for the person; `code` is the exit code."""

    def __init__(self, message: str, code: int = UNFIT) -> None:
        super().__init__(message)
        self.code = code


def say(text: str) -> None:
    print(text, flush=True)


def note(text: str) -> None:
    say("   " + text.replace("\n", "\n   "))


@contextmanager
def step(title: str) -> Iterator[None]:
    """Print what is being done, and how long it took."""
    say(f"== {title}")
    start = time.monotonic()
    yield
    note(f"done in {time.monotonic() - start:.1f} s")


class Log:
    """One log file a set-up; commands write into it, and its end is shown when one fails."""

    def __init__(self, path: Path, *, heartbeat_s: float | None = None) -> None:
        self.path = path
        self.heartbeat_s = heartbeat_s or float(os.environ.get("SCIML_SETUP_HEARTBEAT_S", HEARTBEAT_S))
        path.parent.mkdir(parents=True, exist_ok=True)

    def _start(
        self, command: Sequence[str], env: Mapping[str, str] | None, cwd: Path | None
    ) -> subprocess.Popen[bytes]:
        with self.path.open("ab") as out:
            out.write(f"\n$ {' '.join(command)}\n".encode())
            out.flush()
            # A session of its own, so that an interrupt ends all that the command started.
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, cwd=cwd, start_new_session=True
            )

    def last_line(self, since: int = 0, like: str = r"(?!\$ ).*\S") -> str:
        """The last line printed after byte `since` that matches `like`; "" if none does."""
        with self.path.open("rb") as file:
            file.seek(max(since, self.path.stat().st_size - 100_000))
            lines = [line.strip() for line in re.split(r"[\r\n]+", file.read().decode(errors="replace"))]
        return next((line for line in reversed(lines) if re.match(like, line)), "")

    def tail(self, n: int = 20) -> str:
        return "\n".join(self.path.read_text(errors="replace").splitlines()[-n:])

    def attempt(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        progress: str = "",
    ) -> int:
        """Run once and return the exit code. Each `heartbeat_s` it prints the last line of output, where there is one
        the last that matches `progress`."""
        begin = self.path.stat().st_size if self.path.exists() else 0
        start = time.monotonic()
        try:
            process = self._start(command, env, cwd)
        except OSError as error:
            with self.path.open("a") as out:
                out.write(f"{error}\n")
            return 127
        try:
            while True:
                try:
                    return process.wait(timeout=self.heartbeat_s)
                except subprocess.TimeoutExpired:
                    text = (progress and self.last_line(begin, progress)) or self.last_line(begin)
                    note(f"... {time.monotonic() - start:.0f} s: {text[:100]}")
        finally:
            if process.poll() is None:
                end_group(process)

    def run(
        self,
        command: Sequence[str],
        *,
        what: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        tries: int = 1,
        hint: str = "",
        give_up: re.Pattern[str] = HOPELESS,
        progress: str = "",
    ) -> None:
        """Run, `tries` times with growing pauses; then raise with the end of the log."""
        pause_s = float(os.environ.get("SCIML_SETUP_RETRY_S", "5"))
        for i_try in range(1, tries + 1):
            begin = self.path.stat().st_size if self.path.exists() else 0
            code = self.attempt(command, env=env, cwd=cwd, progress=progress)
            if code == 0:
                return
            with self.path.open("rb") as file:
                file.seek(begin)
                printed = file.read().decode(errors="replace")
            if i_try == tries or HOPELESS.search(printed) or give_up.search(printed):
                break
            note(
                f"{what}: failed ({self.last_line(begin)[:120]}); again in {pause_s:.0f} s, try {i_try + 1} of {tries}"
            )
            time.sleep(pause_s)
            pause_s *= 3
        text = f"{what} failed (exit code {code}). The end of {self.path}:\n\n{self.tail()}\n"
        if hint:
            text += f"\n{hint}\n"
        raise SetupError(text + "\nRun the same command again to go on from here.", FAILED)


def end_group(process: subprocess.Popen[bytes], grace_s: float = 5.0) -> None:
    """End a command that was started in a session of its own, and all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(timeout=grace_s)
            break
        except subprocess.TimeoutExpired:
            continue


def fail(error: SetupError) -> int:
    print(f"env/setup: {error}", file=sys.stderr, flush=True)
    return error.code
