"""Notebook parameters: what the cell tagged `parameters` declares wins; what can't become it is refused.

A parameter's type is its annotation, else the type of its default: int stays int, a tuple stays a tuple, text that
looks like a number stays text. `declarations` says what such a cell may hold, `values` how a value becomes the type,
`parameter_files` where given values come from, `literals` how they are written into the notebook and the record.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from sciml_kernel.batch.declarations import Parameter, declarations
from sciml_kernel.batch.values import bounds_text, kind_name, typed
from sciml_kernel.errors import ParameterError, did_you_mean
from sciml_kernel.records import is_secret_name

__all__ = ["TAG", "Parameter", "declared", "describe", "resolve"]

TAG = "parameters"


def declared(cells: Iterable[Mapping[str, Any]]) -> dict[str, Parameter] | None:
    """The parameters of a notebook's cells, in their order; None when no cell is tagged `parameters`.

    Raises ParameterError when two cells are tagged, the cell is no Python, or a default breaks its own bounds.
    """
    tagged = [cell for cell in cells if TAG in cell.get("metadata", {}).get("tags", [])]
    if not tagged:
        return None
    if len(tagged) > 1:
        raise ParameterError(f"{len(tagged)} cells are tagged {TAG!r}; tag one")
    found = declarations("".join(tagged[0]["source"]))
    for parameter in found.values():
        if parameter.default is not ... and (parameter.choices or bounds_text(parameter)):
            typed(parameter, parameter.default)
    return found


def resolve(
    cells: Iterable[Mapping[str, Any]], given: Mapping[str, Any], *, n_ranks: int | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Type the given values; return (given, all): the typed given ones, and all with the defaults that are known.

    given: values of any Python type, or what `from_pairs` or `read_file` return. n_ranks: value of the parameter
    `n_ranks`, from `-n`.

    Raises ParameterError naming the parameter and its line: unknown (with the nearest name), no parameters cell, not
    its type, out of bounds, a secret by its name.
    """
    known = declared(cells)
    given = dict(given)
    if n_ranks is not None:
        if known is None or "n_ranks" not in known:
            raise ParameterError(
                "-n sets the notebook's parameter n_ranks, which it does not declare; add `n_ranks = 2` to the cell "
                f"tagged {TAG!r} and start the pool with it"
            )
        if given.get("n_ranks", n_ranks) != n_ranks and typed(known["n_ranks"], given["n_ranks"]) != n_ranks:
            raise ParameterError(f"-n {n_ranks} and the parameter n_ranks disagree; write one of them")
        given["n_ranks"] = n_ranks
    if known is None:
        if given:
            raise ParameterError(
                f"the notebook has no cell tagged {TAG!r}, so {', '.join(given)} would have no effect; tag the cell "
                "that sets the defaults"
            )
        return {}, {}
    for name in given:
        if name not in known:
            raise ParameterError(f"the notebook has no parameter {name!r}; {did_you_mean(name, known)}")
        if is_secret_name(name):
            raise ParameterError(
                f"parameter {name!r} is a secret by its name, and all parameters are written into the record; have the "
                "notebook read it from an environment variable or a file"
            )
    values = {name: typed(known[name], value) for name, value in given.items()}
    rest = {name: item.default for name, item in known.items() if item.default is not ... and name not in values}
    return values, {name: {**rest, **values}[name] for name in known if name in rest or name in values}


def describe(cells: Iterable[Mapping[str, Any]], *, width: int = 100) -> str:
    """Each parameter with its type, bounds, default and documentation, as text."""
    known = declared(cells)
    if known is None:
        return f"The notebook takes no parameters: no cell is tagged {TAG!r}."
    lines = []
    for name, parameter in known.items():
        default = "computed" if parameter.default is ... else repr(parameter.default)
        lines.append(f"{name}: {kind_name(parameter.kind)}{bounds_text(parameter)}; default {default}")
        if parameter.text:
            lines += textwrap.wrap(parameter.text, width, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines) or f"The cell tagged {TAG!r} declares no parameters."
