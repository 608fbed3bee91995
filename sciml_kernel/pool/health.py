"""The state of a pool as it is now: looked up, never remembered."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sciml_kernel.contracts import RankExit, RankReport
from sciml_kernel.pool.files import age_s, now_utc, read_json
from sciml_kernel.pool.processes import ProcessId
from sciml_kernel.pool.spec import LIVE, PoolDir

__all__ = ["Health", "describe_call", "measure"]

NO_SIGN_S = 30.0  # a keeper on another host renews pool.json every 2 s


@dataclass(frozen=True, slots=True)
class Health:
    """state: one of spec.STATES. reason: why, for all that is not well. generation: number of the engine set.

    n: ranks asked for; n_here: of those, how many have arrived (all, once it is ready). ranks: per rank {"engine_id",
    "process", "report"}. exits: RankExit mappings, first to end first. stops: per rank that a signal stopped {"rank",
    "host", "pid", "signal", "since_utc"}. call: what the ranks run now, {"name", "since_utc", "elapsed_s", "ranks"},
    or None. marks: the same by rank, {"rank", "name", "since_utc"}. keeper: its process, None when unknown. replaces:
    a tainted engine set is replaced by itself.

    started_utc: when the pool was asked for. ready_utc: when this engine set became ready; "" before. ends_utc: when
    its allocation ends; None for no such limit. ttl_s: seconds that it lives while nobody uses it, None: for ever.
    expires_s: what is left of them; None while it is used, for ever, or no longer alive. users: the living processes
    that use it, {"pid", "host", "start_ticks"}. seen_utc: the keeper's last sign. measured_utc: when all this was true.
    """

    state: str
    reason: str = ""
    generation: int = 0
    n: int = 0
    ranks: list[dict[str, Any]] = field(default_factory=list)
    exits: list[dict[str, Any]] = field(default_factory=list)
    call: dict[str, Any] | None = None
    keeper: ProcessId | None = None
    replaces: bool = True
    n_here: int = 0
    stops: list[dict[str, Any]] = field(default_factory=list)
    marks: list[dict[str, Any]] = field(default_factory=list)
    started_utc: str = ""
    ready_utc: str = ""
    ends_utc: str | None = None
    ttl_s: float | None = None
    expires_s: float | None = None
    users: list[dict[str, Any]] = field(default_factory=list)
    seen_utc: str = ""
    measured_utc: str = field(default_factory=now_utc)

    @property
    def live(self) -> bool:
        return self.state in LIVE

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


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
        health = Health(
            state=str(seen["state"]),
            reason=str(seen["reason"]),
            generation=int(seen["generation"]),
            n=int(seen["n"]),
            ranks=[_rank(entry) for entry in seen["ranks"]],
            exits=[RankExit.from_json(entry).to_json() for entry in seen["exits"]],
            keeper=keeper,
            replaces=seen.get("replace") is not False,
            started_utc=str(seen.get("created_utc") or ""),
            ready_utc=str(seen.get("ready_utc") or ""),
            ends_utc=seen.get("ends_utc"),
            ttl_s=seen.get("ttl_s"),
            users=_living(seen.get("users") or []),
            seen_utc=_sign_utc(directory),
        )
    except (KeyError, TypeError, ValueError):
        return Health("dead", f"{directory.state_path} is not of this version; restart() or stop() mends it")
    if health.state != "expired":
        lost = _lost_keeper(directory, keeper)
        if lost:
            if not directory.path.is_dir():
                return Health("stopped")
            health = dataclasses.replace(health, state="dead", reason=lost)
    return _look_closer(health, directory.generation(health.generation), seen.get("idle_since_utc"))


def _look_closer(health: Health, place: Path, idle_since_utc: Any) -> Health:
    """What the files of the engine set in `place` add."""
    state, marks, n_here = health.state, [], len(health.ranks)
    if state == "ready":
        marks = sorted(_entries(place / "calls", "rank-"), key=lambda mark: int(mark["rank"]))
    elif state == "starting":
        n_here = _count(place / "ranks")
    call = _call(marks)
    expires_s = None
    if health.live and health.ttl_s is not None and not health.users and not marks:
        expires_s = max(0.0, health.ttl_s - (_age_s(idle_since_utc) or 0.0))
    return dataclasses.replace(
        health,
        state="busy" if call else state,
        ready_utc=health.ready_utc if state == "ready" else "",
        n_here=n_here,
        stops=_entries(place / "stops", "rank-"),
        marks=marks,
        call=call,
        expires_s=expires_s,
    )


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


def _sign_utc(directory: PoolDir) -> str:
    try:
        at_s = os.stat(directory.state_path).st_mtime
    except OSError:
        return ""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _rank(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The same, when a rank of this version wrote it."""
    RankReport.from_json(entry["report"])
    ProcessId.from_json(entry["process"])
    return dict(entry)


def _living(users: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Those that run now. One on another host is believed: only its host could tell."""
    processes = [ProcessId(int(user["pid"]), int(user["start_ticks"]), str(user["host"])) for user in users]
    return [process.to_json() for process in processes if not process.here or process.alive()]


def _entries(place: Path, prefix: str) -> list[dict[str, Any]]:
    """The JSON objects in `place` that say which rank left them."""
    try:
        names = [name for name in os.listdir(place) if name.startswith(prefix) and name.endswith(".json")]
    except OSError:
        return []
    found = [entry for name in sorted(names) if (entry := read_json(place / name))]
    return [entry for entry in found if isinstance(entry.get("rank"), int)]


def _count(place: Path) -> int:
    try:
        return sum(name.endswith(".json") and not name.startswith(".") for name in os.listdir(place))
    except OSError:
        return 0


def _call(marks: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What the ranks run now, from the marks that they leave themselves."""
    if not marks:
        return None
    first = min(marks, key=lambda mark: str(mark.get("since_utc", "")))
    name, since_utc = str(first.get("name", "a call")), str(first.get("since_utc", ""))
    return describe_call(name, since_utc, [mark["rank"] for mark in marks])


def describe_call(name: str, since_utc: str, ranks: Sequence[int]) -> dict[str, Any]:
    """`Health.call`."""
    elapsed_s = round(_age_s(since_utc) or 0.0, 3)
    return {"name": name, "since_utc": since_utc, "elapsed_s": elapsed_s, "ranks": [*ranks]}


def _age_s(utc: Any) -> float | None:
    """Seconds since then, 0 for a time to come (another host's clock); None for what is no time."""
    try:
        return max(0.0, age_s(utc))
    except (AttributeError, TypeError, ValueError):
        return None
