"""`predictions.csv` of a run: one row a validation sample, whichever rank saw it."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sciml_kernel.contracts import Collective, Task
from sciml_kernel.errors import DataError, RecordError
from sciml_kernel.records import write_atomic

__all__ = ["Predictions"]


class Predictions:
    """Rows of this rank. The table is made batch by batch, as predictions may be whole images."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._samples: list[int] = []
        self._columns: dict[str, list[Any]] = {}

    def add(self, indices: np.ndarray, weights: np.ndarray, prediction: np.ndarray) -> None:
        """indices, weights: (batch,), as in the plan; prediction: (batch, ...). Padding is left out."""
        real = weights > 0
        if not real.any():
            return
        table = self._task.prediction_table(indices[real], prediction[real])
        if self._columns and table.keys() != self._columns.keys():
            raise DataError(f"prediction table has columns {list(table)} after {list(self._columns)}")
        self._samples += [int(i) for i in indices[real]]
        for name, values in table.items():
            self._columns.setdefault(name, []).extend(_plain(value) for value in values)

    def write(self, path: Path, collective: Collective) -> None:
        """Gather the rows of all ranks; rank 0 writes them in the order of the samples. Called on all ranks.

        Raises DataError if a sample is missing or there twice, RecordError if the file can't be written.
        """
        parts = collective.gather_json({"samples": self._samples, "columns": self._columns})
        if collective.rank != 0:
            return
        samples = [sample for part in parts for sample in part["samples"]]
        if sorted(samples) != list(range(self._task.n_validation)):
            raise DataError(
                f"{len(set(samples))} different validation samples in {len(samples)} rows, wanted each of "
                f"{self._task.n_validation} once"
            )
        write_csv(path, _merged(parts), order=np.argsort(samples, kind="stable"))


def _merged(parts: list[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = list(dict.fromkeys(name for part in parts for name in part["columns"]))
    return {
        name: [value for part in parts if part["samples"] for value in part["columns"].get(name, [])] for name in names
    }


def write_csv(path: Path, columns: Mapping[str, list[Any]], *, order: np.ndarray) -> None:
    """Write the columns, rows in the given order, whole or not at all. No columns: no file."""
    lengths = {name: len(values) for name, values in columns.items()}
    if not columns:
        return
    if set(lengths.values()) != {len(order)}:
        raise DataError(f"prediction table needs {len(order)} rows in each column, got {lengths}")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([values[i] for values in columns.values()] for i in order)
    try:
        write_atomic(path, text.getvalue())
    except OSError as error:
        raise RecordError(f"predictions can't be written to {path}: {error.strerror or error}") from error


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
