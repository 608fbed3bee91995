"""What runs reported, as one tidy table: a row a number. The numbers of a batch are those of its runs.

`part` says which run of a batch a number is of: "cosmoflow", and "cosmoflow-2" for a second one of that name. The
batch's own numbers (`sk.note`) and those of a single run have the part "".
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sciml_kernel.errors import UsageError, did_you_mean
from sciml_kernel.metrics.jsonl import read_events
from sciml_kernel.metrics.names import TIMINGS
from sciml_kernel.records.files import write_atomic
from sciml_kernel.records.flat import flat
from sciml_kernel.records.record import Record

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FORMATS", "TIDY_COLUMNS", "final_values", "parts", "runs_table", "tidy", "write_table"]

TIDY_COLUMNS = ("run", "part", "metric", "step", "epoch", "rank", "value", "unit", "wall_time_s")
FORMATS = ("csv", "json", "parquet")


def parts(record: Record) -> list[tuple[str, Record]]:
    """The record itself with the part "", then the runs of a batch by their names, in the order they were begun."""
    found, seen = [("", record)], dict[str, int]()
    for child in record.children():
        name = str(child.read()["name"])
        seen[name] = seen.get(name, 0) + 1
        found.append((name if seen[name] == 1 else f"{name}-{seen[name]}", child))
    return found


def tidy(records: Iterable[Record]) -> pd.DataFrame:
    """All numbers of some runs with the columns `TIDY_COLUMNS`, in the order in which they were written.

    step, epoch, rank: int64. value, wall_time_s (seconds since the Unix epoch): float64. Raises RecordError for a
    damaged record.
    """
    import pandas as pd

    rows = [
        (record.id, part, e.name, e.step, e.epoch, e.rank, e.value, e.unit, e.wall_time_s)
        for record in records
        for part, one in parts(record)
        for e in read_events(one.metrics_path)[0]
    ]
    kinds = {"step": "int64", "epoch": "int64", "rank": "int64", "value": "float64", "wall_time_s": "float64"}
    return pd.DataFrame(rows, columns=list(TIDY_COLUMNS)).astype(kinds)


def final_values(record: Record, *, timings: bool = False) -> dict[str, float]:
    """The last value of each metric: "val/loss", in a batch "cosmoflow:val/loss". timings: rates and times too, on
    which no two runs agree."""
    found: dict[str, float] = {}
    for part, one in parts(record):
        for event in read_events(one.metrics_path)[0]:
            if timings or event.name not in TIMINGS:
                found[f"{part}:{event.name}" if part else event.name] = event.value
    return found


def runs_table(records: Iterable[Record]) -> pd.DataFrame:
    """One row a run: id, name, kind, status, times, ranks, git commit, each setting as config.<name> and the last value
    of each metric under its own name."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for record in records:
        content = record.read()
        row = {name: content.get(name) for name in ("id", "name", "kind", "status", "started_utc", "ended_utc")}
        row |= {"ranks": content.get("ranks"), "git_commit": (content.get("git") or {}).get("commit")}
        settings = {k: v for k, v in record.config().items() if k != "parameters_python"}
        row |= {f"config.{name}": value for name, value in flat(settings).items()}
        rows.append({**row, **final_values(record, timings=True)})
    return pd.DataFrame(rows)


def write_table(table: pd.DataFrame, path: str | Path | None, kind: str | None = None) -> str | None:
    """Write a table as CSV, JSON (a list of rows) or Parquet, whole or not at all; return the text where path is None.

    kind: one of `FORMATS`; default: the path's suffix, else CSV. Raises UsageError for another kind, or Parquet without
    a path.
    """
    kind = kind or (Path(path).suffix.lstrip(".").lower() if path is not None else "") or "csv"
    if kind not in FORMATS:
        raise UsageError(f"a table can't be written as {kind!r}; {did_you_mean(kind, FORMATS)}")
    if kind == "parquet":
        if path is None:
            raise UsageError("Parquet is no text; say where it goes: --to table.parquet")
        mixed = {c: table[c].map(_plain) for c in table if table[c].dtype == object}
        data: bytes | str = table.assign(**mixed).to_parquet(index=False)
    elif kind == "csv":
        data = table.to_csv(index=False)
    else:
        data = str(table.to_json(orient="records", indent=1, double_precision=15)) + "\n"
    if path is None:
        return str(data)
    try:
        write_atomic(path, data)
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}") from error
    return None


def _plain(value: Any) -> Any:
    """A column of Parquet has one type: what is neither text nor missing becomes text."""
    return value if value is None or isinstance(value, str) or value != value else str(value)
