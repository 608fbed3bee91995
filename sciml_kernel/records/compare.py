"""What runs differ in: settings, environment, results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sciml_kernel.errors import UsageError
from sciml_kernel.records.flat import flat
from sciml_kernel.records.record import Record
from sciml_kernel.records.table import run_seconds
from sciml_kernel.records.tidy import final_values

__all__ = ["Comparison", "compare", "environment_of", "relative_difference"]

ABSENT = None
_ENVIRONMENT = ("python", "platform", "lock_sha256", "versions", "build", "hardware", "variables", "git", "seeds")
_NO_DIFFERENCE = ("git.patch", "git.patch_bytes", "git.patch_masked", "git.untracked", "variables.SLURM_JOB_ID")


@dataclass(frozen=True)
class Comparison:
    """runs: ids. status: by run. config, environment: name -> its values, one a run, None where it is not set; only
    what is not the same in all. metrics: name -> last values, one a run, all of them."""

    runs: list[str]
    status: dict[str, list[Any]]
    config: dict[str, list[Any]]
    environment: dict[str, list[Any]]
    metrics: dict[str, list[float | None]]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; a value that is not finite is its name as text."""
        content = asdict(self)
        content["metrics"] = {
            name: [v if v is None or math.isfinite(v) else str(v) for v in values]
            for name, values in self.metrics.items()
        }
        return content


def compare(records: Sequence[Record]) -> Comparison:
    """Raises UsageError for fewer than two runs, RecordError for a damaged one."""
    if len(records) < 2:
        raise UsageError(f"compare takes two runs or more, got {len(records)}")
    contents = [record.read() for record in records]
    results = [final_values(record, timings=True) for record in records]
    seconds = [run_seconds(content) for content in contents]
    return Comparison(
        runs=[record.id for record in records],
        status={
            **{name: [content.get(name) for content in contents] for name in ("name", "status", "ranks")},
            "seconds": [None if value is None else round(value, 1) for value in seconds],
        },
        config=_different([_settings(record) for record in records]),
        environment=_different([environment_of(content) for content in contents]),
        metrics={name: [result.get(name) for result in results] for name in _all_names(results)},
    )


def environment_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """What a run was made with and on, flat: versions, lock, builds, hardware, variables, commit, ranks, hosts, data.
    content: of `record.json`."""
    found = flat({name: content.get(name) for name in _ENVIRONMENT})
    found = {name: value for name, value in found.items() if name not in _NO_DIFFERENCE}
    data = content.get("data") or []
    for i, one in enumerate(data if isinstance(data, list) else [data]):
        found |= {f"data[{i}].{name}": one.get(name) for name in ("path", "size", "sha256")}
    return found | {name: content.get(name) for name in ("ranks", "hosts", "devices")}


def relative_difference(one: float, other: float) -> float:
    """|one - other| over the larger magnitude; 0 for equal values, two NaN too; infinite where only one is finite."""
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.inf
    return abs(one - other) / max(abs(one), abs(other))


def _settings(record: Record) -> dict[str, Any]:
    config = record.config()
    config.pop("parameters_python", None)  # the same as `parameters`, for Python
    return flat(config)


def _different(values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in _all_names(values):
        row = [value.get(name, ABSENT) for value in values]
        if any(item != row[0] for item in row):
            found[name] = row
    return found


def _all_names(values: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for value in values for name in value))
