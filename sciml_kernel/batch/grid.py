"""A grid: which variants of a notebook are run.

::

    product:                      # every combination
      learning_rate: [1e-3, 4e-3]
      seed: [1, 2, 3]
    zip:                          # taken together, row by row
      network: [compact, paper]
      batch_size: [16, 8]

Six learning rates and seeds times two networks: twelve variants. A file of `name: [values]` lines is a product.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sciml_kernel.batch.parameter_files import load, written
from sciml_kernel.errors import ParameterError

__all__ = ["MOST_VARIANTS", "read_grid", "variants"]

MOST_VARIANTS = 10_000
_KEYS = {"product", "zip"}


def read_grid(path: str | Path) -> list[dict[str, Any]]:
    """The variants of a YAML or JSON file, with values as `parameter_files` gives them. Raises ParameterError."""
    plain, text = load(path)
    try:
        return variants(_as_written(plain, text))
    except ParameterError as error:
        raise ParameterError(f"grid {path}: {error}") from error


def variants(grid: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Name -> value of each variant, the last name of the product changing fastest, rows of the zip fastest of all.

    grid: {"product": {name: values}, "zip": {name: values}}, either alone, or {name: values} for a product. Raises
    ParameterError for no list, an empty one, a name in both, columns of the zip of different length, over
    MOST_VARIANTS.
    """
    short = not (grid.keys() <= _KEYS and all(isinstance(part, Mapping) for part in grid.values()))
    product: Mapping[str, Any] = grid if short else grid.get("product", {})
    columns: Mapping[str, Any] = {} if short else grid.get("zip", {})
    for name, values in [*product.items(), *columns.items()]:
        if not isinstance(values, Sequence) or isinstance(values, str | bytes) or not len(values):
            raise ParameterError(f"{name} must be a list of values, at least one; got {values!r}")
    both = [name for name in columns if name in product]
    if both:
        raise ParameterError(f"{', '.join(both)} is in product and in zip")
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ParameterError(f"the lists of a zip must have one length, got {lengths}")
    n = len(next(iter(columns.values()))) if columns else 1
    for values in product.values():
        n *= len(values)
    if not product and not columns:
        raise ParameterError("it is empty; write `name: [value, value]` lines")
    if n > MOST_VARIANTS:
        raise ParameterError(f"it has {n} variants; {MOST_VARIANTS} at most")
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)] or [{}]
    return [
        {**dict(zip(product, chosen, strict=True)), **row}
        for chosen in itertools.product(*product.values())
        for row in rows
    ]


def _as_written(plain: Any, text: Any) -> Any:
    """Lists and mappings of what is open between a text and its meaning; only single values are."""
    if isinstance(plain, dict):
        return {name: _as_written(value, text[name]) for name, value in plain.items()}
    if isinstance(plain, list) and all(not isinstance(value, list | dict) for value in plain):
        return [written(*pair) for pair in zip(plain, text, strict=True)]
    return plain
