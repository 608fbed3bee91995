"""Notebook parameters: what the cell tagged `parameters` declares wins; what can't become it is refused.

A parameter is a top-level `name = literal` or `name: type = literal` of that cell. Its type is the annotation, else the
type of the default: int stays int, a tuple stays a tuple, text that looks like a number stays text. Nothing is run.
"""

from __future__ import annotations

import ast
import datetime
import math
import pathlib
import types
import typing
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from sciml_kernel.errors import ParameterError, did_you_mean

__all__ = ["Parameter", "as_json", "as_source", "declared", "from_pairs", "read_file", "resolve"]

TAG = "parameters"
_MISSING = object()
_NAMES: dict[str, Any] = {
    **{kind.__name__: kind for kind in (int, float, bool, str, list, tuple, dict, set)},
    **{name: getattr(typing, name) for name in ("Any", "Literal", "Optional", "Union", "List", "Tuple", "Dict")},
    "None": None,
    "datetime": datetime,
    "date": datetime.date,
    "Path": pathlib.Path,
    "pathlib": pathlib,
    "typing": typing,
}
_WORDS = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False, "1": True, "0": False}


@dataclass(frozen=True)
class Parameter:
    """kind: its type, `Any` when nothing is declared. default: its value, `...` when that is no literal."""

    name: str
    kind: Any
    default: Any


@dataclass(frozen=True)
class _Text:
    """A value that a person wrote as text, on the command line or in YAML; `plain` is what YAML made of it."""

    text: str
    plain: Any = _MISSING


def declared(cells: Iterable[Mapping[str, Any]]) -> dict[str, Parameter] | None:
    """The parameters of a notebook's cells, in their order; None when no cell is tagged `parameters`.

    Raises ParameterError when two cells are tagged or the cell is no Python.
    """
    tagged = [cell for cell in cells if TAG in cell.get("metadata", {}).get("tags", [])]
    if not tagged:
        return None
    if len(tagged) > 1:
        raise ParameterError(f"{len(tagged)} cells are tagged {TAG!r}; tag one")
    source = "".join(tagged[0]["source"])
    try:
        body = ast.parse(source).body
    except SyntaxError as error:
        raise ParameterError(f"the cell tagged {TAG!r} is no Python: {error.msg} (line {error.lineno})") from None
    found: dict[str, Parameter] = {}
    for statement in body:
        for name, annotation, value in _assignments(statement):
            default = _literal(value)
            kind = _annotated(annotation) if annotation is not None else _kind_of(default)
            found[name] = Parameter(name, kind, default)
    return found


def resolve(
    cells: Iterable[Mapping[str, Any]], given: Mapping[str, Any], *, n_ranks: int | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Type the given values; return (given, all): the typed given ones, and all with the defaults that are literals.

    given: values of any Python type, or texts from `from_pairs`, or `read_file`'s. n_ranks: value of
    the parameter `n_ranks`, from `-n`.

    Raises ParameterError naming the parameter: unknown (with the nearest name), no parameters cell, not its type.
    """
    known = declared(cells)
    given = dict(given)
    if n_ranks is not None:
        if known is None or "n_ranks" not in known:
            raise ParameterError(
                "-n sets the notebook's parameter n_ranks, which it does not declare; add `n_ranks = 2` to the cell "
                f"tagged {TAG!r} and start the pool with it"
            )
        if given.get("n_ranks", n_ranks) != n_ranks and _value(known["n_ranks"], given["n_ranks"]) != n_ranks:
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
    typed = {name: _value(known[name], value) for name, value in given.items()}
    rest = {name: item.default for name, item in known.items() if item.default is not ... and name not in typed}
    return typed, {name: {**rest, **typed}[name] for name in known if name in rest or name in typed}


def from_pairs(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Parameters of `-p NAME VALUE`: texts whose meaning the parameter's type decides. Twice is refused."""
    found: dict[str, Any] = {}
    for name, text in pairs:
        if name in found:
            raise ParameterError(f"parameter {name} is given twice: {found[name].text!r} and {text!r}")
        found[name] = _Text(text)
    return found


def read_file(path: str | Path) -> dict[str, Any]:
    """Parameters of a YAML (or JSON) file. A text parameter gets what is written there: `007` stays "007".

    Raises ParameterError naming the file.
    """
    try:
        source = Path(path).read_text(encoding="utf-8")
        plain, text = yaml.safe_load(source), yaml.load(source, yaml.BaseLoader)
    except OSError as error:
        raise ParameterError(f"parameter file {path} can't be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ParameterError(f"parameter file {path} is no YAML: {error}") from error
    if plain is None:
        return {}
    if not isinstance(plain, dict) or not all(isinstance(name, str) for name in plain):
        raise ParameterError(f"parameter file {path} must hold 'name: value' lines, got {type(plain).__name__}")
    return {name: _Text(text[name], value) if isinstance(text[name], str) else value for name, value in plain.items()}


def as_source(value: Any) -> str:
    """Python that makes the value again, exactly, without any import having been done."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    if isinstance(value, pathlib.PurePath):
        return f"__import__('pathlib').Path({str(value)!r})"
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta):
        return "__import__('datetime')" + repr(value).removeprefix("datetime").replace("datetime.", "")
    if isinstance(value, list):
        return "[" + ", ".join(map(as_source, value)) + "]"
    if isinstance(value, tuple):
        return "(" + "".join(f"{as_source(item)}, " for item in value).rstrip() + ")"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{as_source(key)}: {as_source(item)}" for key, item in value.items()) + "}"
    return repr(value)


def as_json(value: Any) -> Any:
    """The value as the record's config keeps it: tuples as lists, dates and paths as text."""
    if isinstance(value, dict):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((as_json(item) for item in value), key=repr)
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return value.isoformat() if isinstance(value, datetime.date) else str(value)


def _assignments(statement: ast.stmt) -> list[tuple[str, ast.expr | None, ast.expr]]:
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
        return [(statement.target.id, statement.annotation, statement.value)]
    if isinstance(statement, ast.Assign):
        return [(target.id, None, statement.value) for target in statement.targets if isinstance(target, ast.Name)]
    return []


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return ...


def _annotated(node: ast.expr) -> Any:
    """The type that an annotation names; Any for one that we don't know."""
    text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ast.unparse(node)
    try:
        kind = eval(text, {"__builtins__": {}, **_NAMES})
        TypeAdapter(kind)
    except Exception:  # whatever an unknown name or a strange annotation raises
        return Any
    return kind


def _kind_of(default: Any) -> Any:
    """The type of a default; of its items too where they are all of one type."""
    if default is None or default is ...:
        return Any
    kind: Any = type(default)
    if kind in (list, tuple, set) and default:
        kinds = {type(item) for item in default}
        if kinds <= {int, float} and float in kinds:
            kinds = {float}
        if len(kinds) == 1 and kinds <= {int, float, bool, str}:
            item = kinds.pop()
            return types.GenericAlias(kind, (item, ...) if kind is tuple else (item,))
    return kind


def _value(parameter: Parameter, value: Any) -> Any:
    """The value as the parameter's type, or ParameterError."""
    shown = value.text if isinstance(value, _Text) else value
    if hasattr(value, "item") and getattr(value, "shape", None) == ():  # a numpy scalar
        value = value.item()
    for candidate in _readings(parameter.kind, value):
        if not _sound(parameter.kind, candidate):
            continue
        try:
            typed = TypeAdapter(parameter.kind).validate_python(candidate)
        except ValidationError:
            continue
        if _sound(parameter.kind, typed):  # pydantic reads the text "nan" as a number
            return typed
    default = "" if parameter.default is ... else f" (default {parameter.default!r})"
    raise ParameterError(f"parameter {parameter.name} must be {_name(parameter.kind)}{default}, got {shown!r}")


def _readings(kind: Any, value: Any) -> list[Any]:
    """What a value may mean, the best first. A text is text where the type takes text, else a Python literal."""
    if not isinstance(value, _Text):
        return [value]
    kinds = _options(kind)
    found: list[Any] = []
    if type(None) in kinds and value.text.strip() in ("None", "null", "~", "none"):
        found.append(None)
    if value.plain is not _MISSING and str not in kinds:
        found.append(value.plain)
    if bool in kinds and value.text.strip().lower() in _WORDS:
        found.append(_WORDS[value.text.strip().lower()])
    if str in kinds and len(kinds - {type(None), str}) == 0:
        return [*found, value.text]
    words = {"true": True, "false": False, "null": None}
    text = value.text.strip()
    with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        found.append(words[text.lower()] if text.lower() in words else ast.literal_eval(text))
    return [*found, value.text]


def _options(kind: Any) -> set[Any]:
    """The members of a union, the type itself otherwise; `Literal` counts as the types of its values."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return {option for member in typing.get_args(kind) for option in _options(member)}
    if origin is typing.Literal:
        return {type(value) for value in typing.get_args(kind)}
    return {kind}


def _sound(kind: Any, value: Any) -> bool:
    """Refuse what pydantic would bend: True as 1, 1 as "1", NaN where a record can't keep it."""
    kinds = _options(kind)
    if isinstance(value, float) and not math.isfinite(value):
        return False
    if isinstance(value, bool):
        return bool in kinds or Any in kinds
    if kinds == {bool}:
        return False
    if isinstance(value, list | tuple) and typing.get_origin(kind) in (list, tuple):
        items = [item for item in typing.get_args(kind) if item is not ...]
        return len(items) != 1 or all(_sound(items[0], item) for item in value)
    return True


def _name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind).replace("typing.", "")
