"""How a grid goes, while it goes: a table that is redrawn in the terminal or in a notebook, or plain lines."""

from __future__ import annotations

import html
import sys
import threading
from typing import TYPE_CHECKING, Any

from sciml_kernel.views.shown import Shown

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from sciml_kernel.batch.sweep import Grid, Row

__all__ = ["Nobody", "NotebookTable", "PlainLines", "TerminalTable", "table_rows"]

_MOST_ROWS = 40
_FIRST = ("val/loss", "val/mean_iou", "train/loss")
_COLOURS = {"completed": "#1a7f37", "failed": "#b91c1c", "running": "#0969da"}


class Nobody:
    def changed(self, grid: Grid, row: Row | None) -> None: ...

    def end(self, grid: Grid) -> None: ...


class PlainLines:
    """A line when a variant begins and one when it ends: for log files."""

    def __init__(self) -> None:
        self._said: dict[int, str] = {}

    def changed(self, grid: Grid, row: Row | None) -> None:
        if row is None:
            print(f"record {grid.record.path}", flush=True)
        elif self._said.get(row.number) != row.status:
            self._said[row.number] = row.status
            varied = " ".join(f"{name}={_short(value)}" for name, value in row.varied.items())
            took = f" in {row.seconds:.1f} s" if row.over and row.seconds is not None else ""
            result = " ".join(f"{name} {value:.5g}" for name, value in _results(row).items()) if row.over else ""
            line = f"[{row.number}/{len(grid.rows)}] {varied}: {row.status}{took}  {result} {row.reason}"
            print(line.rstrip(), flush=True)

    def end(self, grid: Grid) -> None:
        print(_counts(grid), flush=True)


class TerminalTable:
    """Redrawn in place by rich; what is last seen stays."""

    def __init__(self) -> None:
        self._live: Live | None = None

    def changed(self, grid: Grid, row: Row | None) -> None:
        from rich.console import Console
        from rich.live import Live

        if self._live is None:
            self._live = Live(console=Console(file=sys.stdout), auto_refresh=False)
            self._live.start()
        self._live.update(self._table(grid), refresh=True)

    def end(self, grid: Grid) -> None:
        if self._live is not None:
            self._live.update(self._table(grid), refresh=True)
            self._live.stop()

    def _table(self, grid: Grid) -> Table:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        head, rows = table_rows(grid)
        table = Table(title=f"{grid.record.id}: {_counts(grid)}", title_justify="left", box=box.SIMPLE_HEAD)
        for name, cells in zip(head, zip(*rows, strict=True), strict=True):
            # in a narrow terminal long names are folded and reasons cut, but no column is lost
            widest = 6 if name == "reason" else max(map(len, cells))
            table.add_column(Text(name, overflow="fold"), overflow="ellipsis", no_wrap=False, min_width=widest)
        for row in rows:
            table.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in row))
        return table


class NotebookTable(Shown):
    """The same as HTML in the cell that runs the grid."""

    def __init__(self) -> None:
        super().__init__()
        self._grid: Grid | None = None
        self._begun = threading.Event()

    def changed(self, grid: Grid, row: Row | None) -> None:
        self._grid = grid
        if not self._begun.is_set():
            self._begun.set()
            self._show_first()
        else:
            self._update()

    def end(self, grid: Grid) -> None:
        self.changed(grid, None)

    def _bundle(self) -> dict[str, Any]:
        assert self._grid is not None
        head, rows = table_rows(self._grid)
        words = _counts(self._grid)
        cells = "".join(
            "<tr>" + "".join(f"<td style='{_style(cell)}'>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in rows
        )
        names = "".join(f"<th>{html.escape(name)}</th>" for name in head)
        title = f"{html.escape(self._grid.record.id)}: {words}"
        page = f"<table><caption>{title}</caption><thead><tr>{names}</tr></thead><tbody>{cells}</tbody></table>"
        text = "\n".join("  ".join(row) for row in [head, *rows])
        return {"text/html": page, "text/plain": f"{words}\n{text}"}


def table_rows(grid: Grid) -> tuple[list[str], list[list[str]]]:
    """Head and cells, as text. Of many variants, those that run or have failed come first."""
    varied = list(dict.fromkeys(name for row in grid.rows for name in row.varied))
    results = list(dict.fromkeys(name for row in grid.rows for name in _results(row)))
    rows = grid.rows
    if len(rows) > _MOST_ROWS:
        order = {"failed": 0, "timeout": 0, "running": 1, "completed": 2}
        rows = sorted(rows, key=lambda row: (order.get(row.status, 3), row.number))[:_MOST_ROWS]
    cells = [
        [
            str(row.number),
            *(_short(row.varied.get(name, "")) for name in varied),
            row.status + (" (kept)" if row.kept else ""),
            "" if row.seconds is None else f"{row.seconds:.0f}",
            *(f"{row.values[name]:.5g}" if name in row.values else "" for name in results),
            row.reason[:60],
        ]
        for row in rows
    ]
    return ["variant", *varied, "status", "s", *results, "reason"], cells


def _results(row: Row) -> dict[str, float]:
    """A few numbers that tell how it went: losses, or the notebook's own notes."""
    chosen = [name for first in _FIRST for name in row.values if name.partition(":")[2] == first or name == first]
    chosen = chosen[:1] + [name for name in row.values if name.startswith("result/")]
    return {name: row.values[name] for name in chosen[:4]}


def _counts(grid: Grid) -> str:
    return ", ".join(f"{n} {status}" for status, n in grid.counts().items())


def _short(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 24 else text[:21] + "..."


def _style(cell: str) -> str:
    colour = _COLOURS.get(cell.removesuffix(" (kept)"))
    return f"color:{colour};font-weight:600" if colour else ""
