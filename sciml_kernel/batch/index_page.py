"""`index.html` in the runs root: every run with its status, a picture, and the way to its page."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from sciml_kernel import records
from sciml_kernel.batch.report import COLOURS
from sciml_kernel.records import write_atomic
from sciml_kernel.records.find import run_ids

__all__ = ["MOST_BY_ITSELF", "renew_index", "write_index"]

MOST_BY_ITSELF = 500
"""A runs root with more runs gets its page by `sciml runs index` only: reading them all would slow down every run."""

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Runs</title><style>
body{{font-family:sans-serif;margin:1.5em;color:#1f2328}}
table{{border-collapse:collapse;font-size:.92em}} th,td{{padding:.35em .8em;text-align:left;vertical-align:top}}
th{{border-bottom:2px solid #d0d7de}} tr{{border-bottom:1px solid #eaeef2}}
td.id,.nowrap{{font-family:monospace;white-space:nowrap}}
.status{{color:#fff;border-radius:.8em;padding:.1em .7em;font-size:.85em}} img{{height:72px;border:1px solid #d0d7de}}
tr.child td.id{{padding-left:2.2em}} .reason{{color:#b91c1c;max-width:34em;overflow-wrap:anywhere}}
</style></head><body><h1>Runs</h1><p>{words}</p>
<table><thead><tr><th>run</th><th>status</th><th>started (UTC)</th><th>seconds</th><th>ranks</th><th>results</th>
<th></th></tr></thead><tbody>{rows}</tbody></table></body></html>
"""


def write_index(root: str | Path | None = None) -> Path:
    """Write the page and return its path; it needs no server. Runs of a batch or a grid stand below it.

    Raises UsageError or OSError where it can't be written.
    """
    folder = Path(root).expanduser().absolute() if root is not None else records.runs_root()
    table = records.list_runs(folder).astype(object).where(lambda frame: frame.notna(), None)
    runs: list[dict[str, Any]] = [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]
    there = {run["id"] for run in runs}
    below: dict[str, list[dict[str, Any]]] = {}
    for run in reversed(runs):
        if run["parent"] in there:
            below.setdefault(run["parent"], []).append(run)
    rows: list[str] = []

    def add(run: dict[str, Any], depth: int) -> None:
        rows.append(_row(folder, run, depth))
        for child in below.get(run["id"], ()):
            add(child, depth + 1)

    for run in runs:
        if run["parent"] not in there:
            add(run, 0)
    counts: dict[str, int] = {}
    for run in runs:
        counts[run["status"]] = counts.get(run["status"], 0) + 1
    words = f"{len(runs)} runs: " + ", ".join(f"{n} {status}" for status, n in sorted(counts.items()))
    path = folder / "index.html"
    write_atomic(path, _PAGE.format(words=html.escape(words), rows="".join(rows)))
    return path


def renew_index(root: Path) -> None:
    """`write_index` at the end of a run, unless there are too many."""
    if len(run_ids(root)) <= MOST_BY_ITSELF:
        write_index(root)


def _row(folder: Path, run: dict[str, Any], depth: int) -> str:
    path = folder / str(run["id"])
    status = str(run["status"])
    colour = COLOURS.get(status, "#9a6700")
    page = next((name for name in ("notebook.html", "index.csv", "record.json") if (path / name).exists()), "")
    link = f"<a href='{html.escape(str(run['id']))}/{page}'>{html.escape(str(run['id']))}</a>"
    picture = next(iter(sorted((path / "figures").glob("*.png"))), None)
    image = ""
    if picture is not None:
        source = f"{html.escape(str(run['id']))}/figures/{html.escape(picture.name)}"
        image = f"<a href='{source}'><img loading='lazy' src='{source}' alt='first figure of the run'></a>"
    results = ", ".join(f"{name} {run[name]:.4g}" for name in ("train/loss", "val/loss") if run.get(name) is not None)
    reason = f"<div class='reason'>{html.escape(str(run['reason'])[:300])}</div>" if run["reason"] else ""
    started = str(run["started"] or "")[:19]
    seconds = f"{run['seconds']:.1f}" if run["seconds"] is not None else ""
    return (
        f"<tr class='{'child' if depth else 'top'}'><td class='id'>{link}</td>"
        f"<td><span class='status' style='background:{colour}'>{html.escape(status)}</span></td>"
        f"<td class='nowrap'>{started}</td><td>{seconds}</td><td>{run['ranks'] or ''}</td>"
        f"<td>{results}{reason}</td><td>{image}</td></tr>"
    )
