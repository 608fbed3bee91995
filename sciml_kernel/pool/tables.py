"""Pools and ranks as tables and text."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sciml_kernel.pool.files import age_s, now_utc
from sciml_kernel.pool.health import Health
from sciml_kernel.pool.processes import ProcessId
from sciml_kernel.pool.spec import PoolDir, PoolSpec

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["as_html", "one_line", "pools_table", "ranks_table"]

_POOL_COLUMNS = ["name", "state", "ranks", "host", "call", "age_s", "keep", "reason"]
_RANK_COLUMNS = [
    "rank", "state", "host", "pid", "cores", "memory_gib", "gpu", "mpi_library", "versions", "last_seen_utc",
]  # fmt: skip


def pools_table(pools: Iterable[tuple[PoolDir, PoolSpec | None, Health]]) -> pd.DataFrame:
    """One row a pool. age_s: seconds since it was started."""
    import pandas as pd

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
                "age_s": round(age_s(spec.created_utc)) if spec else None,
                "keep": spec.keep if spec else None,
                "reason": health.reason,
            }
        )
    return pd.DataFrame(rows, columns=_POOL_COLUMNS)


def ranks_table(health: Health) -> pd.DataFrame:
    """One row a rank. state: what its process is now; last_seen_utc: when it was last known to live."""
    import pandas as pd

    ended = {entry["rank"]: entry for entry in health.exits}
    rows: list[dict[str, Any]] = []
    for entry in health.ranks:
        report, process = dict(entry["report"]), ProcessId.from_json(entry["process"])
        exit_ = ended.get(report["rank"])
        seen = report["last_seen_utc"]
        if exit_ is not None:
            state, seen = exit_["signal"] or f"exit {exit_['exit_code']}", exit_["ended_utc"]
        elif process is None or not process.here:
            state = health.state
        elif process.suspended():
            state, seen = "suspended", now_utc()
        elif process.alive():
            state, seen = "alive", now_utc()
        else:
            state = "gone"
        versions = " ".join(f"{name}={version}" for name, version in report["versions"].items())
        rows.append({**report, "state": state, "versions": versions, "last_seen_utc": seen})
    return pd.DataFrame(rows, columns=_RANK_COLUMNS)


def one_line(name: str, health: Health) -> str:
    hosts = sorted({entry["report"]["host"] for entry in health.ranks})
    parts = [health.state]
    if health.ranks:
        parts.append(f"{health.n} ranks on {', '.join(hosts)}")
    if health.call:
        parts.append(f"running {health.call['name']}")
    if health.reason:
        parts.append(health.reason.splitlines()[0])
    return f"<Pool {name!r}: {'; '.join(parts)}>"


def as_html(name: str, health: Health) -> str:
    """The same as a table that is readable in a saved notebook."""
    cells = [
        ("state", health.state),
        ("ranks", str(health.n)),
        ("hosts", ", ".join(sorted({entry["report"]["host"] for entry in health.ranks}))),
        ("call", health.call["name"] if health.call else ""),
        ("reason", health.reason),
    ]
    rows = "".join(
        f"<tr><th style='text-align:left'>{key}</th><td style='text-align:left'>{html.escape(value)}</td></tr>"
        for key, value in cells
        if value
    )
    return f"<table><caption>pool {html.escape(name)}</caption>{rows}</table>"
