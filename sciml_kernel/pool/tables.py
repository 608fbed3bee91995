"""Pools and ranks as tables, and a pool in one line. `card` shows one pool with all that is known of it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sciml_kernel.pool.files import age_s, now_utc
from sciml_kernel.pool.health import Health
from sciml_kernel.pool.processes import ProcessId
from sciml_kernel.pool.spec import PoolDir, PoolSpec

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["hosts", "moment", "one_line", "pools_table", "rank_rows", "ranks_table", "seen", "span"]

_POOL_COLUMNS = [
    "name", "state", "ranks", "host", "call", "elapsed_s", "users", "age_s", "expires_s", "ends_utc", "keep", "reason",
]  # fmt: skip
_RANK_COLUMNS = [
    "rank", "state", "host", "pid", "cores", "memory_gib", "memory_used_gib", "gpu", "mpi_library", "versions",
    "last_seen_utc", "last_seen_s", "call", "call_since_utc",
]  # fmt: skip


def pools_table(pools: Iterable[tuple[PoolDir, PoolSpec | None, Health]]) -> pd.DataFrame:
    """One row a pool. elapsed_s: seconds that the present call has run. users: processes that use it now. age_s:
    seconds since it was started. expires_s: seconds that it still lives while nobody uses it; missing while it is
    used. ends_utc: end of its allocation; missing where there is none."""
    from sciml_kernel.pool.frames import Pools

    rows = []
    for directory, spec, health in pools:
        if health.state == "stopped":  # it went away meanwhile
            continue
        host = health.keeper.host if health.keeper else str((spec.owner if spec else {}).get("host", ""))
        rows.append(
            {
                "name": directory.name,
                "state": health.state,
                "ranks": spec.n if spec else health.n,
                "host": host,
                "call": health.call["name"] if health.call else "",
                "elapsed_s": health.call["elapsed_s"] if health.call else None,
                "users": len(health.users),
                "age_s": round(age_s(spec.created_utc)) if spec else None,
                "expires_s": health.expires_s,
                "ends_utc": health.ends_utc,
                "keep": spec.keep if spec else None,
                "reason": health.reason,
            }
        )
    table = Pools(rows, columns=_POOL_COLUMNS)
    table.attrs["measured_utc"] = now_utc()
    return table


def ranks_table(health: Health) -> pd.DataFrame:
    """One row a rank; see `rank_rows`."""
    from sciml_kernel.pool.frames import Ranks

    rows = rank_rows(health)
    for row in rows:
        row["versions"] = " ".join(f"{name}={version}" for name, version in row["versions"].items())
    table = Ranks(rows, columns=_RANK_COLUMNS)
    table.attrs["measured_utc"] = health.measured_utc
    return table


def rank_rows(health: Health) -> list[dict[str, Any]]:
    """What is known of each rank now.

    state: "alive", "suspended" or "gone" is what its process is now; a signal's name or "exit 7" is how it ended;
    "reported": it runs on another host and the keeper has seen no end of it; "unknown": nobody can tell. memory_gib: of
    its host. memory_used_gib: resident memory of its process now; None on another host. last_seen_utc: when it was last
    known to live, last_seen_s: how long ago. call, call_since_utc: what it runs now; "" when idle.
    """
    ended = {entry["rank"]: entry for entry in health.exits}
    stopped = {entry["rank"]: entry for entry in health.stops}
    marks = {mark["rank"]: mark for mark in health.marks}
    rows: list[dict[str, Any]] = []
    for entry in health.ranks:
        report, process = dict(entry["report"]), ProcessId.from_json(entry["process"])
        rank, mark, used_gib = report["rank"], marks.get(report["rank"]), None
        last = max(report["last_seen_utc"], str(mark.get("since_utc", "")) if mark else "")
        if rank in ended:
            exit_ = ended[rank]
            state, last = exit_["signal"] or f"exit {exit_['exit_code']}", exit_["ended_utc"]
        elif process is not None and process.here:
            state = process.condition()
            if state == "gone":
                state = str(stopped[rank].get("signal")) if rank in stopped else "gone"
            else:
                last, used_gib = health.measured_utc, process.memory_gib()
        elif process is None or not health.live:
            state = "unknown"
        else:
            state, last = "suspended" if rank in stopped else "reported", max(last, health.seen_utc)
        rows.append(
            {
                **report,
                "state": state,
                "memory_used_gib": None if used_gib is None else round(used_gib, 3),
                "last_seen_utc": last,
                "last_seen_s": round(_seconds_between(last, health.measured_utc), 1),
                "call": str(mark.get("name", "")) if mark else "",
                "call_since_utc": str(mark.get("since_utc", "")) if mark else "",
            }
        )
    return rows


def _seconds_between(earlier_utc: str, later_utc: str) -> float:
    return max(0.0, age_s(earlier_utc) - age_s(later_utc)) if earlier_utc and later_utc else 0.0


def hosts(health: Health) -> list[str]:
    return sorted({str(entry["report"]["host"]) for entry in health.ranks})


def one_line(name: str, health: Health, kind: str = "Pool") -> str:
    """What `repr` of a pool says."""
    parts = [health.state]
    if health.state == "starting" and health.n:
        parts.append(f"{health.n_here} of {health.n} ranks are here")
    elif health.ranks:
        parts.append(f"{health.n} ranks on {', '.join(hosts(health))}")
    if health.call:
        parts.append(f"running {health.call['name']} for {span(health.call['elapsed_s'])}")
    if health.expires_s is not None:
        parts.append(f"ends in {span(health.expires_s)} unless it is used")
    if health.reason:
        parts.append(health.reason.splitlines()[0])
    return f"<{kind} {name!r}: {'; '.join(parts)}>"


def span(seconds: float) -> str:
    """A length of time for people: "8 s", "3 min 05 s", "2 h 07 min", "4 d"."""
    whole = round(seconds)
    for unit, smaller, per, each in (("d", "h", 86400, 3600), ("h", "min", 3600, 60), ("min", "s", 60, 1)):
        if whole >= per:
            rest = whole % per // each
            return f"{whole // per} {unit} {rest:02d} {smaller}" if rest else f"{whole // per} {unit}"
    return f"{whole} s"


def seen(seconds: float) -> str:
    """How long ago something was last seen: "now", "8 s ago"."""
    return "now" if seconds < 1.0 else f"{span(seconds)} ago"


def moment(utc: str) -> str:
    """A time for people, to the second: "12:34:56 UTC, 2026-12-01"."""
    try:
        at = datetime.fromisoformat(utc.replace("Z", "+00:00")).astimezone(UTC)
    except ValueError:
        return utc or "an unknown time"
    return at.strftime("%H:%M:%S UTC, %Y-%m-%d")
