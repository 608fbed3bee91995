"""Given values become the declared type, or are refused."""

from __future__ import annotations

import ast
import enum
import math
import types
import typing
import warnings
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import annotated_types
from pydantic import TypeAdapter, ValidationError

from sciml_kernel.batch.declarations import Parameter
from sciml_kernel.errors import ParameterError

__all__ = ["MISSING", "Text", "bounds_text", "kind_name", "typed"]

MISSING = object()
_WORDS = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False, "1": True, "0": False}


@dataclass(frozen=True)
class Text:
    """A value that a person wrote as text, on the command line or in YAML; `plain` is what YAML made of it."""

    text: str
    plain: Any = MISSING


def typed(parameter: Parameter, value: Any) -> Any:
    """The value as the parameter's type. Raises ParameterError with what it must be, and the line that says so."""
    kind, why = parameter.kind, ""
    for candidate in _readings(kind, _plain(value, kind)):
        if not _sound(kind, candidate):
            continue
        if _enum(kind) is not None and (member := _member(_enum(kind), candidate)) is not None:
            candidate = member
        try:
            found = _adapter(kind).validate_python(candidate)
        except ValidationError as error:
            why = why or _reason(error, value)
            continue
        if not _sound(kind, found):  # pydantic reads the text "nan" as a number
            continue
        if parameter.choices and found not in parameter.choices:
            continue
        return found
    shown = value.text if isinstance(value, Text) else value
    must = kind_name(kind) + bounds_text(parameter)
    default = "" if parameter.default is ... else f" (default {parameter.default!r})"
    raise ParameterError(f"parameter {parameter.name} must be {must}{default}, got {shown!r}{why}; {parameter.place}")


def kind_name(kind: Any) -> str:
    """As a person writes it: int, list[float], 'fast' or 'slow', Mode (FAST, SLOW)."""
    kind = _bare(kind)
    if (members := _enum(kind)) is not None:
        return f"{kind.__name__} ({', '.join(member.name for member in members)})"
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(map(repr, typing.get_args(kind)))
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join(kind_name(member) for member in typing.get_args(kind))
    if kind is Any:
        return "any value"
    if isinstance(kind, type) and not typing.get_args(kind):
        return "None" if kind is type(None) else kind.__name__
    return str(kind).replace("typing.", "")


def bounds_text(parameter: Parameter) -> str:
    """ " from 1 to 100", " more than 0", ": 'a' or 'b'"; nothing where there are no bounds."""
    if parameter.choices:
        return ": " + " or ".join(map(repr, parameter.choices))
    if typing.get_origin(parameter.kind) is not Annotated:
        return ""
    parts: dict[str, Any] = {}
    for item in _limits(parameter.kind.__metadata__):
        for name in ("ge", "gt", "le", "lt", "multiple_of", "min_length", "max_length"):
            if getattr(item, name, None) is not None:
                parts[name] = getattr(item, name)
    words = {
        "ge": "at least", "gt": "more than", "le": "at most", "lt": "less than",
        "multiple_of": "a multiple of", "min_length": "of length at least", "max_length": "of length at most",
    }  # fmt: skip
    if "ge" in parts and "le" in parts:
        low, high = parts.pop("ge"), parts.pop("le")
        rest = "".join(f", {words[name]} {value}" for name, value in parts.items())
        return f" from {low} to {high}{rest}"
    return "".join(f" {words[name]} {value}" if not at else f" and {words[name]} {value}"
                   for at, (name, value) in enumerate(parts.items()))  # fmt: skip


def _limits(metadata: typing.Iterable[Any]) -> typing.Iterator[Any]:
    for item in metadata:
        yield from item if isinstance(item, annotated_types.GroupedMetadata) else [item]
        yield from getattr(item, "metadata", [])  # pydantic's Field


def _adapter(kind: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(kind)
    except Exception:  # a class that pydantic has no rule for: only its own instances
        return TypeAdapter(kind, config={"arbitrary_types_allowed": True})


def _reason(error: ValidationError, value: Any) -> str:
    """What pydantic says, where it says more than the type's name does."""
    first = error.errors()[0]
    inside = ".".join(str(part) for part in first["loc"] if isinstance(part, int | str))
    return f" (at {inside}: {first['msg'].lower()})" if inside and not isinstance(value, Text) else ""


def _plain(value: Any, kind: Any) -> Any:
    """numpy's scalars as Python's, also inside of containers, unless numpy's are declared."""
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        bare = _bare(kind)
        declared = bare is not Any and isinstance(bare, type) and isinstance(value, bare)
        return value if declared else value.item()
    if type(value) in (list, tuple, set):
        return type(value)(_plain(item, Any) for item in value)
    if type(value) is dict:
        return {_plain(key, Any): _plain(item, Any) for key, item in value.items()}
    return value


def _readings(kind: Any, value: Any) -> list[Any]:
    """What a value may mean, the best first. A text is text where the type takes text, else a Python literal."""
    numpy = _numpy_type(kind)
    if not isinstance(value, Text):
        return [_as_numpy(numpy, value)] if numpy else [value]
    kinds = _options(kind)
    found: list[Any] = []
    if type(None) in kinds and value.text.strip() in ("None", "null", "~", "none"):
        found.append(None)
    if value.plain is not MISSING and str not in kinds:
        found.append(value.plain)
    if bool in kinds and value.text.strip().lower() in _WORDS:
        found.append(_WORDS[value.text.strip().lower()])
    if str in kinds and len(kinds - {type(None), str}) == 0:
        return [*found, value.text]
    words = {"true": True, "false": False, "null": None}
    text = value.text.strip()
    with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        found.append(words[text.lower()] if text.lower() in words else ast.literal_eval(text))
    found.append(value.text)
    return [_as_numpy(numpy, item) for item in found] if numpy else found


def _numpy_type(kind: Any) -> Any:
    bare = _bare(kind)
    return bare if isinstance(bare, type) and bare.__module__ == "numpy" and hasattr(bare, "dtype") else None


def _as_numpy(kind: Any, value: Any) -> Any:
    """The numpy scalar of a number that it can hold: 300 is no uint8, 1.5 no int32."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    with suppress(ValueError, OverflowError, TypeError), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a float that overflows: it is infinite then, and not held
        made = kind(value)
        holds = math.isfinite(made) if "float" in kind.__name__ else made == value
        return made if holds else value
    return value


def _bare(kind: Any) -> Any:
    return typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind


def _enum(kind: Any) -> Any:
    bare = _bare(kind)
    return bare if isinstance(bare, type) and issubclass(bare, enum.Enum) else None


def _member(kind: Any, value: Any) -> Any:
    """By name (`SLOW`, `Mode.SLOW`), else None: pydantic looks for the value."""
    if not isinstance(value, str):
        return None
    return kind.__members__.get(value.removeprefix(f"{kind.__name__}."))


def _options(kind: Any) -> set[Any]:
    """The members of a union, the type itself otherwise; `Literal` counts as the types of its values."""
    kind = _bare(kind)
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
    kind = _bare(kind)
    if isinstance(value, list | tuple) and typing.get_origin(kind) in (list, tuple):
        items = [item for item in typing.get_args(kind) if item is not ...]
        return len(items) != 1 or all(_sound(items[0], item) for item in value)
    return True
