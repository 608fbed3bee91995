"""`Card`: all that one sees of a pool at one moment, as text for a terminal and as HTML for a notebook.

The HTML has inline styles only and no script, so that it reads the same in JupyterLab, light or dark, in a saved
notebook and on a page made of it. It always says when it was measured: a saved card does not speak of now.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from html import escape
from typing import Any

from sciml_kernel.pool.files import age_s
from sciml_kernel.pool.health import Health
from sciml_kernel.pool.processes import ProcessId
from sciml_kernel.pool.tables import hosts, moment, rank_rows, seen, span

__all__ = ["Card", "rank_state_html", "state_html"]

SHOWN_RANKS = 32  # of more, those that are not well come first and the rest is counted
SHOWN_LINES = 12  # of a reason: a failed start brings the last lines of logs

# Symbol and colour of each state. White text on these has a contrast of at least 4.5 whatever the theme behind it; the
# word and the symbol say the same without the colour. U+FE0E: the plain sign, not the emoji.
_LOOK = {
    "queued": ("…", "#57606a"),
    "starting": ("◔", "#8a5d00"),
    "ready": ("✔\ufe0e", "#1a7f37"),
    "busy": ("▶\ufe0e", "#0969da"),
    "tainted": ("⚠\ufe0e", "#bc4c00"),
    "dead": ("✖\ufe0e", "#cf222e"),
    "expired": ("◷", "#57606a"),
    "stopped": ("■", "#57606a"),
    "suspended": ("⚠\ufe0e", "#bc4c00"),
}
_WELL = ("alive", "reported")
_QUIET = "opacity:0.72"
_CODE = "font-family:monospace;color:inherit;background-color:rgba(128,128,128,0.18);border-radius:3px;padding:1px 4px"


@dataclass(frozen=True)
class Card:
    """name, health: of the pool. note: how long this card stays true, after the time of measurement."""

    name: str
    health: Health
    note: str = ""

    def facts(self) -> list[tuple[str, str]]:
        """(label, text) of what the table of ranks does not say. Text between backticks is to be typed."""
        health = self.health
        found = [("call", _call(health))] if health.call else []
        if health.state in ("queued", "starting"):
            found.append(("ranks", f"{health.n_here} of {health.n} are here"))
        if health.live:
            found.append(("time left", _time_left(health)))
            found.append(("used by", ", ".join(map(_user, health.users)) or "nobody"))
        mend = _mend(self.name, health)
        return [*found, *([("to mend", mend)] if mend else [])]

    def measured(self) -> str:
        text = f"measured at {moment(self.health.measured_utc)}"
        return f"{text}; {self.note}" if self.note else text

    # -- for a terminal -----------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        health = self.health
        place = f", {_ranks(health)}" if health.ranks else ""
        lines = [f"pool {self.name!r}: {health.state}{place}"]
        lines += [f"  {line}" for line in _reason(health)]
        lines += [f"  {label:<10}{text.replace('`', '')}" for label, text in self.facts()]
        rows = rank_rows(health)
        if rows:
            lines += ["", *(f"  {line}" for line in _ranks_text(rows, health).splitlines())]
        return "\n".join([*lines, "", f"  {self.measured()}"])

    __repr__ = __str__

    # -- for a notebook -----------------------------------------------------------------------------------------------

    def _repr_html_(self) -> str:
        health = self.health
        rows = rank_rows(health)
        place = f"<span style='{_QUIET}'>{escape(_ranks(health))}</span>" if rows else ""
        head = (
            f"<div style='line-height:1.8'>{state_html(health.state)}"
            f"<span style='font-weight:600;font-size:14px;margin:0 10px'>{escape(self.name)}</span>{place}</div>"
        )
        return (
            "<div style='border:1px solid rgba(128,128,128,0.4);border-radius:6px;padding:10px 14px;margin:4px 0;"
            "max-width:860px;font-size:13px;line-height:1.5;color:inherit'>"
            f"{head}{_reason_html(health)}{_facts_html(self.facts())}{_ranks_html(rows, health) if rows else ''}"
            f"<div style='{_QUIET};font-size:12px;margin-top:8px'>{escape(self.measured())}</div></div>"
        )


def state_html(state: str) -> str:
    """The state as a coloured word with its sign."""
    symbol, colour = _LOOK.get(state, _LOOK["dead"])
    return (
        f"<span style='background-color:{colour};color:#ffffff;border-radius:4px;padding:2px 8px;font-weight:600;"
        f"white-space:nowrap'>{symbol} {escape(state)}</span>"
    )


# -- ranks ------------------------------------------------------------------------------------------------------------


def _ranks_text(rows: list[dict[str, Any]], health: Health) -> str:
    """The ranks as lines of text with aligned columns."""
    shown, rest = _choose(rows)
    table = [[head for head, _ in _COLUMNS], *([_cell(row, key, health) for _, key in _COLUMNS] for row in shown)]
    widths = [max(len(line[i]) for line in table) for i in range(len(_COLUMNS))]
    lines = [
        "  ".join(
            text.rjust(width) if key in _NUMBERS else text.ljust(width)
            for text, width, (_, key) in zip(line, widths, _COLUMNS, strict=True)
        )
        for line in table
    ]
    return "\n".join([*(line.rstrip() for line in lines), *([rest] if rest else [])])


def _ranks_html(rows: list[dict[str, Any]], health: Health) -> str:
    """The ranks as a table."""
    shown, rest = _choose(rows)
    line = "border:none;border-top:1px solid rgba(128,128,128,0.25)"
    head = "".join(
        f"<th style='{_side(key)};{_QUIET};font-weight:600;border:none'>{name}</th>" for name, key in _COLUMNS
    )
    body = "".join(
        "<tr style='background-color:transparent'>"
        + "".join(f"<td style='{_side(key)};{line}'>{_cell_html(row, key, health)}</td>" for _, key in _COLUMNS)
        + "</tr>"
        for row in shown
    )
    more = f"<div style='{_QUIET};font-size:12px'>{escape(rest)}</div>" if rest else ""
    return (
        "<div style='overflow-x:auto;margin-top:8px'><table style='border-collapse:collapse;border:none;margin:0;"
        f"font-size:12px;color:inherit'><thead><tr style='background-color:transparent'>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>{more}"
    )


_COLUMNS = [
    ("rank", "rank"), ("state", "state"), ("host", "host"), ("pid", "pid"), ("cores", "cores"),
    ("memory used", "memory"), ("runs now", "call"), ("last seen", "seen"),
]  # fmt: skip
_NUMBERS = ("rank", "pid", "cores", "memory", "seen")


def _choose(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """(rows to show, what is said of the others)."""
    if len(rows) <= SHOWN_RANKS:
        return rows, ""
    wanted = sorted(rows, key=lambda row: (row["state"] in _WELL, row["rank"]))[:SHOWN_RANKS]
    left = [row for row in rows if row not in wanted]
    unwell = sum(row["state"] not in _WELL for row in left)
    of_them = f", {unwell} of them not well" if unwell else ", all well"
    return sorted(wanted, key=lambda row: row["rank"]), f"and {len(left)} more ranks{of_them}; pool.report() has all"


def _cell(row: dict[str, Any], key: str, health: Health) -> str:
    if key == "memory":
        used, total = row["memory_used_gib"], row["memory_gib"]
        if used is None:
            return "-"
        return f"{used:.2f} GiB" + (f" of {total:.1f}" if total else "")
    if key == "call":
        if not row["call"]:
            return "idle" if health.live and row["state"] in _WELL else "-"
        return f"{row['call'].rpartition(':')[2]}, {span(age_s(row['call_since_utc']) - age_s(health.measured_utc))}"
    if key == "seen":
        return seen(row["last_seen_s"])
    return str(row[key])


def _cell_html(row: dict[str, Any], key: str, health: Health) -> str:
    return rank_state_html(row["state"]) if key == "state" else escape(_cell(row, key, health))


def rank_state_html(state: str) -> str:
    """The state of a rank: plain when it is well, else with colour and sign."""
    if state in _WELL:
        return escape(state)
    symbol, colour = _LOOK["suspended" if state in ("suspended", "unknown") else "dead"]
    style = f"background-color:{colour};color:#ffffff;border-radius:3px;padding:1px 6px"
    return f"<span style='{style}'>{symbol} {escape(state)}</span>"


def _side(key: str) -> str:
    side = "right" if key in _NUMBERS else "left"
    return f"text-align:{side};padding:3px 14px 3px 0;white-space:nowrap;vertical-align:middle"


# -- sentences --------------------------------------------------------------------------------------------------------


def _ranks(health: Health) -> str:
    names = hosts(health)
    where = ", ".join(names[:4]) + (f" and {len(names) - 4} more hosts" if len(names) > 4 else "")
    return f"{health.n} {'rank' if health.n == 1 else 'ranks'} on {where}"


def _call(health: Health) -> str:
    call = health.call or {}
    since = f"since {moment(call['since_utc']).partition(',')[0]}" if call["since_utc"] else "just sent"
    ranks = call["ranks"]
    who = f"; rank {', '.join(map(str, ranks[:8]))}{' ...' if len(ranks) > 8 else ''}" if len(ranks) < health.n else ""
    return f"`{call['name']}` for {span(call['elapsed_s'])}, {since}{who}"


def _time_left(health: Health) -> str:
    parts = []
    if health.ends_utc:
        left_s = -age_s(health.ends_utc)
        when = f"the allocation ends at {moment(health.ends_utc)}"
        parts.append(f"{when} (in {span(left_s)})" if left_s > 0 else when)
    if health.expires_s is not None:
        parts.append(f"ends in {span(health.expires_s)} unless it is used")
    elif health.ttl_s is not None:
        parts.append(f"ends {span(health.ttl_s)} after its last use")
    return "; ".join(parts) or "no limit"


def _user(user: dict[str, Any]) -> str:
    here = ProcessId(user["pid"], user["start_ticks"], user["host"]).here and user["pid"] == os.getpid()
    return f"pid {user['pid']} @ {user['host']}" + (" (this process)" if here else "")


def _mend(name: str, health: Health) -> str:
    match health.state:
        case "dead":
            log = f"; `pool.logs({health.exits[0]['rank']})` shows what it printed" if health.exits else ""
            return f"`pool.restart()` or `sciml pool restart {name}` brings the ranks back{log}"
        case "expired":
            return f"`pool.restart()` or `sciml pool restart {name}` starts it again; `pool.stop()` removes its files"
        case "tainted":
            by_itself = "nothing to do: the ranks are being replaced"
            return by_itself if health.replaces else "`pool.restart()` replaces the ranks"
        case "stopped":
            return "`sk.Pool.start(n=...)` or `%pool start` starts another"
    if any(rank["state"] == "suspended" for rank in (rank_rows(health) if health.stops else [])):
        return "a suspended rank counts as lost after 1.5 s; SIGCONT wakes it before"
    return ""


def _reason(health: Health) -> list[str]:
    lines = health.reason.strip().splitlines()
    more = len(lines) - SHOWN_LINES
    return [*lines[:SHOWN_LINES], f"... {more} more lines in pool.health().reason"] if more > 0 else lines


def _reason_html(health: Health) -> str:
    lines = [escape(line) for line in _reason(health)]
    if not lines:
        return ""
    first, rest = lines[0], "\n".join(lines[1:])
    log = (
        "<pre style='margin:6px 0 0 0;padding:0;font-size:11px;line-height:1.4;color:inherit;background-color:"
        f"transparent;white-space:pre-wrap;overflow-wrap:anywhere'>{rest}</pre>"
        if rest
        else ""
    )
    _, colour = _LOOK.get(health.state, _LOOK["dead"])
    return (
        f"<div style='border-left:4px solid {colour};padding:2px 0 2px 10px;margin:8px 0;overflow-wrap:anywhere'>"
        f"{first}{log}</div>"
    )


def _facts_html(facts: list[tuple[str, str]]) -> str:
    rows = "".join(
        f"<tr style='background-color:transparent'><td style='{_QUIET};text-align:left;vertical-align:top;border:none;"
        f"padding:1px 16px 1px 0;line-height:1.5;white-space:nowrap'>{label}</td>"
        "<td style='text-align:left;vertical-align:top;border:none;padding:1px 0;line-height:1.5;"
        f"overflow-wrap:anywhere'>{_typed(text)}</td></tr>"
        for label, text in facts
    )
    style = "border-collapse:collapse;border:none;margin:4px 0 0 0;font-size:13px;color:inherit"
    return f"<table style='{style}'>{rows}</table>" if rows else ""


def _typed(text: str) -> str:
    """Escaped, with what stands between backticks as code."""
    return "".join(
        f"<code style='{_CODE}'>{escape(part)}</code>" if i % 2 else escape(part)
        for i, part in enumerate(text.split("`"))
    )
