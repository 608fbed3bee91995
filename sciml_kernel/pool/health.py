"""The state of a pool as it is now: looked up, never remembered."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sciml_kernel.pool.files import read_json
from sciml_kernel.pool.processes import ProcessId
from sciml_kernel.pool.spec import LIVE, PoolDir

__all__ = ["Health", "measure"]

NO_SIGN_S = 30.0  # a keeper on another host renews pool.json every 2 s


@dataclass(frozen=True, slots=True)
class Health:
    """state: one of spec.STATES. reason: why, for all that is not well. generation: number of the engine set.

    ranks: per rank {"engine_id", "process", "report"}. exits: RankExit mappings, first to end first. call: what the
    ranks run now, {"name", "since_utc", "ranks"}, or None. keeper: its process, None when unknown.
    """

    state: str
    reason: str = ""
    generation: int = 0
    n: int = 0
    ranks: list[dict[str, Any]] = field(default_factory=list)
    exits: list[dict[str, Any]] = field(default_factory=list)
    call: dict[str, Any] | None = None
    keeper: ProcessId | None = None

    @property
    def live(self) -> bool:
        return self.state in LIVE


def measure(directory: PoolDir) -> Health:
    """Look at the pool's files and processes. Never blocks and never raises for a pool in a bad way."""
    if not directory.path.is_dir():
        return Health("stopped")
    seen = read_json(directory.state_path)
    if seen is None:
        if not directory.path.is_dir():  # it was stopped between the two looks
            return Health("stopped")
        return Health("dead", f"{directory.state_path} is missing or truncated; restart() or stop() mends it")
    try:
        keeper = ProcessId.from_json(seen["keeper"])
        state, reason = str(seen["state"]), str(seen["reason"])
        generation, n = int(seen["generation"]), int(seen["n"])
        ranks, exits = list(seen["ranks"]), list(seen["exits"])
    except (KeyError, TypeError, ValueError):
        return Health("dead", f"{directory.state_path} is not of this version; restart() or stop() mends it")
    if state != "expired":
        lost = _lost_keeper(directory, keeper)
        if lost:
            if not directory.path.is_dir():
                return Health("stopped")
            state, reason = "dead", lost
    call = _call(directory.generation(generation)) if state == "ready" else None
    return Health("busy" if call else state, reason, generation, n, ranks, exits, call, keeper)


def _lost_keeper(directory: PoolDir, keeper: ProcessId | None) -> str:
    if keeper is None:
        return "the keeper is unknown"
    if keeper.here:
        if not keeper.alive():
            return f"the keeper @ {keeper.host} (pid {keeper.pid}) ended; its ranks ended with it"
        if keeper.suspended():
            return f"the keeper @ {keeper.host} (pid {keeper.pid}) was stopped by a signal"
        return ""
    try:
        silent_s = time.time() - os.stat(directory.state_path).st_mtime
    except FileNotFoundError:
        return "stopped"
    return f"no sign of life from {keeper.host} for {silent_s:.0f} s" if silent_s > NO_SIGN_S else ""


def _call(place: Path) -> dict[str, Any] | None:
    """What the ranks run now, from the markers that they leave themselves."""
    entries = [entry for path in place.glob("calls/rank-*.json") if (entry := read_json(path))]
    if not entries:
        return None
    first = min(entries, key=lambda entry: str(entry["since_utc"]))
    ranks = sorted(entry["rank"] for entry in entries)
    return {"name": first["name"], "since_utc": first["since_utc"], "ranks": ranks}
