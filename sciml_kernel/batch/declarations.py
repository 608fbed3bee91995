"""What a cell tagged `parameters` declares, read without running it.

A declaration is a top-level `name = default` or `name: type = default`. The comment behind it (else the one above it)
is its documentation; brackets in that comment bound it:

    epochs: int = 12            # passes over the data [1..1000]
    momentum: float = 0.9       # [0..1)
    network: str = "compact"    # size of the network [compact | paper]
    depth: Annotated[int, Ge(1), "layers"] = 5

Names in annotations and defaults are looked up in the cell's own imports and enum classes.
"""

from __future__ import annotations

import ast
import datetime
import enum
import importlib
import io
import operator
import pathlib
import re
import tokenize
import types
import typing
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import annotated_types
from pydantic import TypeAdapter

from sciml_kernel.errors import ParameterError

__all__ = ["Parameter", "declarations"]

_KNOWN: dict[str, Any] = {
    **{kind.__name__: kind for kind in (int, float, bool, str, bytes, complex, list, tuple, dict, set, object)},
    **{name: getattr(typing, name) for name in ("Any", "Literal", "Optional", "Union", "List", "Tuple", "Dict")},
    **{name: getattr(annotated_types, name) for name in ("Ge", "Gt", "Le", "Lt", "Interval", "MultipleOf", "Len")},
    "Annotated": Annotated,
    "datetime": datetime,
    "date": datetime.date,
    "timedelta": datetime.timedelta,
    "Path": pathlib.Path,
    "pathlib": pathlib,
    "typing": typing,
}
_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_CALLED = ("datetime", "pathlib", "numpy", "builtins")  # modules whose classes a default may call
_T = typing.TypeVar("_T")
_RANGE = re.compile(r"(?P<open>[\[(])\s*(?P<low>[^\[\](),|]*?)\s*\.\.\s*(?P<high>[^\[\](),|]*?)\s*(?P<close>[\])])")
_CHOICES = re.compile(r"\[(?P<all>[^\[\]]*\|[^\[\]]*)\]")


@dataclass(frozen=True)
class Parameter:
    """kind: its type, bounds included (`Annotated`); `Any` when nothing is declared. default: its value, `...` when
    that can't be known without running the cell. choices: the only values, if any. text: its documentation. line:
    1-based, in the cell. source: the declaration."""

    name: str
    kind: Any
    default: Any
    choices: tuple[Any, ...] = ()
    text: str = ""
    line: int = 0
    source: str = ""

    @property
    def place(self) -> str:
        return f"line {self.line} of the parameters cell: {self.source}" if self.line else "not in a cell"


def declarations(source: str) -> dict[str, Parameter]:
    """By name, in their order. Raises ParameterError for a cell that is no Python, or bounds that make no sense."""
    try:
        body = ast.parse(source).body
    except SyntaxError as error:
        raise ParameterError(f"the cell tagged 'parameters' is no Python: {error.msg} (line {error.lineno})") from None
    names, comments, lines = _Names(body), _comments(source), source.splitlines()
    found: dict[str, Parameter] = {}
    for statement in body:
        for name, annotation, value in _assignments(statement):
            first, last = statement.lineno, statement.end_lineno or statement.lineno
            here = f"line {first} of the parameters cell: {lines[first - 1].strip()}"
            text = _comment(comments, lines, first, last)
            kind, default = names.kind(annotation), names.value(value)
            if kind is Any or annotation is None:
                kind = _kind_of(default)
            kind, choices, text = _bounds(kind, text, here)
            text = "; ".join(filter(None, [*_words(kind), text]))
            found[name] = Parameter(name, kind, default, choices, text, first, lines[first - 1].strip())
    return found


class _Names(dict[str, Any]):
    """What names mean in the cell: its imports, made when they are asked for, and the enum classes that it defines."""

    def __init__(self, body: list[ast.stmt]) -> None:
        self._imports: dict[str, tuple[str, str | None]] = {}
        self._classes: dict[str, ast.ClassDef] = {}
        super().__init__(_KNOWN)
        for statement in body:
            if isinstance(statement, ast.Import):
                for alias in statement.names:
                    module = alias.name if alias.asname else alias.name.partition(".")[0]
                    self._imports[alias.asname or module] = (module, None)
            elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
                for alias in statement.names:
                    self._imports[alias.asname or alias.name] = (statement.module, alias.name)
            elif isinstance(statement, ast.ClassDef):
                self._classes[statement.name] = statement
        for name in {*self._imports, *self._classes}:  # what the cell means comes before what we know
            self.pop(name, None)

    def __missing__(self, name: str) -> Any:
        if name in self._classes:
            self[name] = self._enum(self._classes[name])
        else:
            module, attribute = self._imports[name]
            found = importlib.import_module(module)
            self[name] = getattr(found, attribute) if attribute else found
        return self[name]

    def _enum(self, definition: ast.ClassDef) -> Any:
        bases = [eval(ast.unparse(base), {"__builtins__": {}}, self) for base in definition.bases]
        if len(bases) != 1 or not issubclass(bases[0], enum.Enum):
            raise KeyError(definition.name)
        members = {name: self.value(value) for item in definition.body for name, _, value in _assignments(item)}
        automatic = {name: enum.auto() if value is ... else value for name, value in members.items()}
        return bases[0](definition.name, automatic, module="")  # no module: it is the notebook's own

    def kind(self, node: ast.expr | None) -> Any:
        """The type that an annotation names; Any for one that we don't know."""
        if node is None:
            return Any
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ast.unparse(node)
        try:
            kind = eval(text, {"__builtins__": {}}, self)
            TypeAdapter(kind, config=None if _has_config(kind) else {"arbitrary_types_allowed": True})
        except Exception:  # whatever an unknown name, a failing import or a strange annotation raises
            return Any
        return kind

    def value(self, node: ast.expr) -> Any:
        """A default's value; `...` when it is no constant."""
        try:
            return self._constant(node)
        except Exception:  # a name, call or operation that is not ours to run
            return ...

    def _constant(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant():
                return node.value
            case ast.List() | ast.Tuple() | ast.Set():
                kind = {ast.List: list, ast.Tuple: tuple, ast.Set: set}[type(node)]
                return kind(self._constant(item) for item in node.elts)
            case ast.Dict():
                pairs = zip(node.keys, node.values, strict=True)
                return {self._constant(_given(key)): self._constant(value) for key, value in pairs}
            case ast.UnaryOp(op=ast.USub()):
                return -self._constant(node.operand)
            case ast.BinOp():
                left, right = self._constant(node.left), self._constant(node.right)
                if not all(isinstance(side, int | float | complex) for side in (left, right)):
                    raise ValueError(node)
                if isinstance(node.op, ast.Pow) and abs(right) > 100:
                    raise ValueError(node)
                return _OPERATIONS[type(node.op)](left, right)
            case ast.Attribute() | ast.Name():
                found = eval(ast.unparse(node), {"__builtins__": {}}, self)
                if not isinstance(found, enum.Enum):
                    raise ValueError(node)
                return found
            case ast.Call():
                called = eval(ast.unparse(node.func), {"__builtins__": {}}, self)
                if called.__module__.partition(".")[0] not in _CALLED or not isinstance(called, type):
                    raise ValueError(node)
                words = {_given(word.arg): self._constant(word.value) for word in node.keywords}
                return called(*map(self._constant, node.args), **words)
        raise ValueError(node)


def _given(value: _T | None) -> _T:
    """Refuse `**`, of which no key and no name is known."""
    if value is None:
        raise ValueError("**")
    return value


def _has_config(kind: Any) -> bool:
    return hasattr(kind, "model_config") or hasattr(kind, "__dataclass_fields__")


def _assignments(statement: ast.stmt) -> list[tuple[str, ast.expr | None, ast.expr]]:
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
        return [(statement.target.id, statement.annotation, statement.value)]
    if isinstance(statement, ast.Assign):
        return [(target.id, None, statement.value) for target in statement.targets if isinstance(target, ast.Name)]
    return []


def _kind_of(default: Any) -> Any:
    """The type of a default; of its items too where they are all of one type, and of the keys of a dict."""
    if default is None or default is ...:
        return Any
    kind: Any = type(default)
    if kind in (list, tuple, set, dict) and default:
        kinds = {type(item) for item in default}
        if kinds <= {int, float} and float in kinds and kind is not dict:
            kinds = {float}
        if len(kinds) == 1 and kinds <= {int, float, bool, str}:
            item = kinds.pop()
            arguments = {tuple: (item, ...), dict: (item, Any)}.get(kind, (item,))
            return types.GenericAlias(kind, arguments)
    return kind


# -- comments ---------------------------------------------------------------------------------------------------------


def _comments(source: str) -> dict[int, str]:
    """By line."""
    with suppress(tokenize.TokenError, SyntaxError):
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        return {token.start[0]: token.string.lstrip("#").strip() for token in tokens if token.type == tokenize.COMMENT}
    return {}


def _comment(comments: dict[int, str], lines: list[str], first: int, last: int) -> str:
    behind = [comments[line] for line in range(first, last + 1) if line in comments]
    if behind:
        return " ".join(behind)
    above: list[str] = []
    line = first - 1
    while line in comments and lines[line - 1].lstrip().startswith("#"):
        above.insert(0, comments[line])
        line -= 1
    return " ".join(above)


def _bounds(kind: Any, text: str, here: str) -> tuple[Any, tuple[Any, ...], str]:
    """The type with the bounds of the comment, the choices, and the comment without them."""
    plain = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
    if (found := _RANGE.search(text)) and (found["low"] or found["high"]):
        low, high = (_number(found[side], here) for side in ("low", "high"))
        if low is not None and high is not None and low > high:
            raise ParameterError(f"the range {found.group()} is empty; {here}")
        limits: list[Any] = []
        if low is not None:
            limits.append(annotated_types.Gt(low) if found["open"] == "(" else annotated_types.Ge(low))
        if high is not None:
            limits.append(annotated_types.Lt(high) if found["close"] == ")" else annotated_types.Le(high))
        return Annotated[(kind, *limits)], (), _without(text, found)
    if found := _CHOICES.search(text):
        adapter = TypeAdapter(plain, config={"arbitrary_types_allowed": True})
        choices = []
        for word in found["all"].split("|"):
            word = word.strip().strip("\"'")
            try:
                choices.append(adapter.validate_python(word if plain is not Any else _literal(word)))
            except ValueError:
                raise ParameterError(f"the choice {word!r} is not {plain}; {here}") from None
        return kind, tuple(choices), _without(text, found)
    return kind, (), text


def _without(text: str, found: re.Match[str]) -> str:
    return " ".join((text[: found.start()] + text[found.end() :]).split())


def _number(text: str, here: str) -> Any:
    if not text:
        return None
    value = _literal(text.replace("_", ""))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    with suppress(ValueError):
        return datetime.date.fromisoformat(text)
    raise ParameterError(f"the bound {text!r} is no number and no date; {here}")


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _words(kind: Any) -> Iterator[str]:
    """The texts in an `Annotated`."""
    if typing.get_origin(kind) is Annotated:
        for item in kind.__metadata__:
            if isinstance(item, str):
                yield item
            elif isinstance(item, annotated_types.DocInfo):
                yield item.documentation
            elif getattr(item, "description", None):  # pydantic's Field
                yield str(item.description)
