"""Values as Python source and as JSON."""

from __future__ import annotations

import datetime
import enum
import math
import pathlib
from typing import Any

__all__ = ["as_json", "as_source", "from_source"]


def as_source(value: Any) -> str:
    """Python that makes the value again, exactly, without any import having been done.

    A member of an enum that the notebook's own cell defines is written by the name of its class.
    """
    if isinstance(value, enum.Enum):
        kind, module = type(value).__name__, type(value).__module__
        where = f"__import__('importlib').import_module({module!r})." if module else ""
        return f"{where}{kind}[{value.name!r}]"
    if hasattr(value, "dtype") and getattr(value, "shape", None) == ():  # a numpy scalar
        return f"__import__('numpy').{value.dtype.name}({as_source(value.item())})"
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
    if isinstance(value, set) and value:
        return "{" + ", ".join(sorted(map(as_source, value))) + "}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{as_source(key)}: {as_source(item)}" for key, item in value.items()) + "}"
    return repr(value)


def from_source(text: str) -> Any:
    """The value that `as_source` wrote. Raises whatever the text raises: NameError for a class of the notebook's own.

    Only for text of a run's own record; whoever runs that again runs its notebook too.
    """
    names = {"__import__": __import__, "float": float, "set": set, "frozenset": frozenset}
    return eval(text, {"__builtins__": names})


def as_json(value: Any) -> Any:
    """The value for readers of JSON: tuples as lists, members of enums as their values, dates and paths as text."""
    if isinstance(value, enum.Enum):
        return as_json(value.value)
    if isinstance(value, dict):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((as_json(item) for item in value), key=repr)
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if hasattr(value, "dtype") and getattr(value, "shape", None) == ():
        value = value.item()
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else str(value)
