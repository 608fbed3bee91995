"""One row a run."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sciml_kernel.errors import RecordError, SciMLError
from sciml_kernel.metrics.jsonl import last_values
from sciml_kernel.metrics.names import TRAIN_LOSS, VAL_LOSS
from sciml_kernel.records.find import run_ids
from sciml_kernel.records.record import Record
from sciml_kernel.records.root import runs_root

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COLUMNS", "list_runs", "run_row", "run_seconds"]

COLUMNS = (
    "id",
    "name",
    "kind",
    "status",
    "started",
    "seconds",
    "ranks",
    "recipe",
    TRAIN_LOSS,
    VAL_LOSS,
    "parent",
    "reason",
)


def list_runs(root: str | Path | None = None) -> pd.DataFrame:
    """The runs in a root (default `runs_root()`), newest first, with the columns `COLUMNS`.

    started: UTC time, or when it was created. seconds: from start to end, or to now while running. train/loss,
    val/loss: the last reported. reason: the error's type and message. A record that can't be read is a row with status
    "unreadable" and the reason; the others are not touched by it.
    """
    import pandas as pd  # 0.4 s, and the ranks never need it

    folder = Path(root).expanduser() if root is not None else runs_root()
    rows = [run_row(Record(folder / run_id)) for run_id in run_ids(folder)]
    rows.sort(key=lambda row: (row["started"] or "", row["id"]), reverse=True)
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    table["started"] = pd.to_datetime(table["started"], utc=True, format="ISO8601")
    for name in ("seconds", TRAIN_LOSS, VAL_LOSS):
        table[name] = table[name].astype("float64")
    table["ranks"] = table["ranks"].astype("Int64")
    return table


def run_row(record: Record) -> dict[str, Any]:
    """One row of `list_runs`, plain values; what is not known is None."""
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    try:
        content = record.read()
        row.update({name: content.get(name) for name in ("name", "kind", "status", "ranks", "parent")})
        if not isinstance(row["ranks"], int | None):
            raise RecordError(f"ranks is {row['ranks']!r}")
        row["started"] = content["started_utc"] or content["created_utc"]
        datetime.fromisoformat(row["started"])
        row["seconds"] = run_seconds(content)
        if content["error"]:
            row["reason"] = f"{content['error']['type']}: {content['error']['message']}"
        row["recipe"] = _recipe(record)
        row.update(last_values(record.metrics_path, (TRAIN_LOSS, VAL_LOSS)))
    except (SciMLError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:  # damage of any kind
        row = dict.fromkeys(COLUMNS)
        row.update(status="unreadable", reason=str(error) or type(error).__name__, started=_time_of_id(record.id))
    row["id"] = record.id
    return row


def run_seconds(content: dict[str, Any]) -> float | None:
    """Seconds from start to end; to now while running; None before the start."""
    if not content["started_utc"]:
        return None
    end = datetime.fromisoformat(content["ended_utc"]) if content["ended_utc"] else datetime.now(UTC)
    return (end - datetime.fromisoformat(content["started_utc"])).total_seconds()


def _recipe(record: Record) -> str | None:
    recipe = record.config().get("recipe")
    if isinstance(recipe, dict):
        recipe = recipe.get("name")
    return recipe if isinstance(recipe, str) else None


def _time_of_id(run_id: str) -> str | None:
    try:
        return datetime.strptime(run_id.partition("-")[0], "%Y%m%dT%H%M%SZ").isoformat(timespec="milliseconds") + "Z"
    except ValueError:
        return None
