"""Is a value the same as in another process, on another day? dask's tokens for data, source text for code.

What can't be told is not guessed: `fingerprint` raises, and a stage that has such an input is run again.
"""

from __future__ import annotations

import hashlib
import inspect
import types
from collections.abc import Mapping
from typing import Any

__all__ = ["Unknown", "describe", "fingerprint", "named_by"]


class Unknown(Exception):
    """The value has no identity that outlives its process; the message says of which type it is."""


def fingerprint(value: Any) -> str:
    """A text that is equal for equal values and, as far as hashes go, different for different ones.

    Arrays, tables, Datasets (lazy ones by what they are made of), numbers, texts, containers: by content. Functions and
    classes of a notebook: by their source and the values that it names. Modules and what they define: by name and
    version. A run by its id, a pool by its number of ranks.

    Raises Unknown.
    """
    return _of(value, ())


def describe(value: Any) -> str:
    """A few words, for saying what an input was and what it is: the value itself where that is short."""
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__} {getattr(value, '__version__', '')}".strip()
    text = repr(value)
    return text if len(text) <= 40 and "\n" not in text and " at 0x" not in text else type(value).__name__


def named_by(value: Any, namespace: Mapping[str, Any]) -> list[str]:
    """Names of the notebook's variables that a function of the notebook uses, those of functions that it calls too."""
    found: dict[str, None] = {}
    left = [value]
    while left:
        function = left.pop()
        if isinstance(function, types.FunctionType) and function.__module__ == "__main__":
            new = [name for name in _names(function.__code__) if name in namespace and name not in found]
            found |= dict.fromkeys(new)
            left += [namespace[name] for name in new]
    return list(found)


def _of(value: Any, seen: tuple[int, ...]) -> str:
    if id(value) in seen:
        return "itself"
    seen = (*seen, id(value))
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__} {getattr(value, '__version__', '')}"
    if isinstance(value, types.FunctionType) and value.__module__ == "__main__":
        return _function(value, seen)
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        return _class_or_library(value, seen)
    identity = getattr(type(value), "__sciml_fingerprint__", None)
    if identity is not None:
        return str(identity(value))
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({','.join(_of(item, seen) for item in value)})"
    if isinstance(value, Mapping) and type(value) is dict:
        return f"dict({','.join(f'{_of(k, seen)}:{_of(v, seen)}' for k, v in value.items())})"
    if type(value).__module__ == "__main__" and hasattr(value, "__dict__"):
        return f"{_of(type(value), seen)}{_of(vars(value), seen)}"
    return _token(value)


def _token(value: Any) -> str:
    from dask.base import tokenize

    try:
        return f"{type(value).__name__} {tokenize(value, ensure_deterministic=True)}"
    except Exception as error:  # dask's own error, or whatever a class's pickling raises
        raise Unknown(type(value).__name__) from error


def _function(function: types.FunctionType, seen: tuple[int, ...]) -> str:
    """Source, defaults, and the values that it names: globals of the notebook and closed-over ones."""
    used = {name: function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__}
    closed = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    cells = {name: cell.cell_contents for name, cell in closed}
    parts = [_source(function), function.__defaults__, function.__kwdefaults__, {**used, **cells}]
    return _hash("".join(_of(part, seen) for part in parts))


def _names(code: types.CodeType) -> list[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return sorted({*code.co_names, *(name for one in inner for name in _names(one))})


def _class_or_library(value: Any, seen: tuple[int, ...]) -> str:
    module = getattr(value, "__module__", None)
    if module != "__main__":
        return f"{module}.{getattr(value, '__qualname__', '')}"
    parts = [value.__qualname__, *(_of(base, seen) for base in value.__bases__)]
    for name, item in vars(value).items():
        inner = getattr(item, "__func__", item)  # of a classmethod or staticmethod
        functions = [inner] if isinstance(inner, types.FunctionType) else []
        if isinstance(item, property):
            functions = [one for one in (item.fget, item.fset, item.fdel) if isinstance(one, types.FunctionType)]
        if functions:
            parts += [name, *(_function(one, seen) for one in functions)]
        elif not (name.startswith("__") or name.startswith("_abc")):  # what the class machinery adds says nothing new
            parts += [name, _of(item, seen)]
    return _hash("".join(parts))


def _source(function: types.FunctionType) -> str:
    """Text of a function; what it was compiled to, where there is no text, as of a dataclass's own `__init__`."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return _compiled(function.__code__)


def _compiled(code: types.CodeType) -> str:
    inner = [_compiled(one) if isinstance(one, types.CodeType) else repr(one) for one in code.co_consts]
    return f"{code.co_code.hex()}{code.co_names}{code.co_varnames}{inner}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
