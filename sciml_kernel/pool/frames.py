"""The tables of pools and ranks: DataFrames in all they do, that show themselves readably.

pandas cuts long texts and folds wide tables, and the reason why a pool is dead is a long text. What is made of these
tables (a selection, a copy) is a plain DataFrame again.
"""

from __future__ import annotations

from html import escape
from typing import Any

import pandas as pd

from sciml_kernel.pool.card import rank_state_html, state_html
from sciml_kernel.pool.spec import STATES
from sciml_kernel.pool.tables import moment, seen, span

__all__ = ["Pools", "Ranks"]

_QUIET = "opacity:0.72"
_SPANS = {"elapsed_s": "elapsed", "age_s": "age", "expires_s": "ends in", "last_seen_s": "last seen"}
_GIB = {"memory_gib": "memory GiB", "memory_used_gib": "used GiB"}
_LEFT_OUT = ("last_seen_utc", "call_since_utc", "versions", "mpi_library")
_NUMBERS = (*_SPANS, *_GIB, "rank", "ranks", "pid", "cores", "users")


class _Table(pd.DataFrame):
    """Columns that say nothing are not shown, and those that are one for all are said below."""

    _none = "no rows"

    def __repr__(self) -> str:
        names, rows, below = self._shown()
        if not rows:
            return self._none
        lines = [[self._head(name) for name in names], *rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
        text = [
            "  ".join(
                cell.rjust(width) if name in _NUMBERS else cell.ljust(width)
                for cell, width, name in zip(line, widths, names, strict=True)
            ).rstrip()
            for line in lines
        ]
        return "\n".join([*text, *below])

    def _repr_html_(self) -> str:
        names, rows, below = self._shown()
        heads = [name for name in names if name != "reason"]
        head = "".join(f"<th style='{_cell(name)};{_QUIET}'>{escape(self._head(name))}</th>" for name in heads)
        body = "".join(_row_html(dict(zip(names, row, strict=True))) for row in rows)
        table = (
            "<table style='border-collapse:collapse;border:none;font-size:12px;color:inherit;margin:0'><thead>"
            f"<tr style='background-color:transparent'>{head}</tr></thead><tbody>{body}</tbody></table>"
        )
        notes = "".join(f"<div style='{_QUIET};font-size:12px'>{escape(line)}</div>" for line in below)
        return f"<div style='overflow-x:auto;margin:4px 0'>{table if rows else escape(self._none)}{notes}</div>"

    def _shown(self) -> tuple[list[str], list[list[str]], list[str]]:
        """(columns, rows as texts, lines below)."""
        texts = {str(name): [_text(str(name), value) for value in self[name]] for name in self.columns}
        names = [
            name for name, column in texts.items() if name not in _LEFT_OUT and any(text != "-" for text in column)
        ]
        below = [
            f"{name}: {'; '.join(sorted(set(texts[name])))}"
            for name in ("versions", "mpi_library")
            if name in texts and any(text != "-" for text in texts[name])
        ]
        measured = self.attrs.get("measured_utc")
        if measured:
            below.append(f"measured at {moment(measured)}")
        rows = [[texts[name][i] for name in names] for i in range(len(self))]
        return names, rows, below

    @staticmethod
    def _head(name: str) -> str:
        return _SPANS.get(name) or _GIB.get(name) or name.removesuffix("_utc")


class Pools(_Table):
    """What `Pool.list()` returns."""

    _none = "no pools; Pool.start(n=...) starts one"


class Ranks(_Table):
    """What `pool.report()` returns."""

    _none = "no ranks"


def _cell(name: str) -> str:
    side = "right" if name in _NUMBERS else "left"
    return f"text-align:{side};padding:3px 14px 3px 0;vertical-align:top;border:none;white-space:nowrap"


def _row_html(texts: dict[str, str]) -> str:
    """One row; a reason stands below it over the whole width, so that it is seen however narrow the page is."""
    reason = texts.pop("reason", "-")
    line = "border-top:1px solid rgba(128,128,128,0.25)"
    cells = "".join(f"<td style='{_cell(name)};{line}'>{_html(name, text)}</td>" for name, text in texts.items())
    row = f"<tr style='background-color:transparent'>{cells}</tr>"
    if reason == "-":
        return row
    style = "text-align:left;padding:0 0 5px 0;border:none;white-space:normal"
    return (
        f"{row}<tr style='background-color:transparent'><td colspan='{len(texts)}' style='{style}'>"
        f"{escape(reason)}</td></tr>"
    )


def _text(name: str, value: Any) -> str:
    if value is None or value == "" or (isinstance(value, float) and pd.isna(value)):
        return "-"
    if name == "last_seen_s":
        return seen(float(value))
    if name in _SPANS:
        return span(float(value))
    if name in _GIB:
        return f"{value:.2f}"
    if name in ("keep",):
        return "yes" if value else "no"
    if name.endswith("_utc"):
        return moment(str(value))
    return str(value).splitlines()[0] if name == "reason" else " ".join(str(value).split())


def _html(name: str, text: str) -> str:
    if name != "state":
        return escape(text)
    return state_html(text) if text in STATES else rank_state_html(text)
