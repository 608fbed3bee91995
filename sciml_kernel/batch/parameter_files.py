"""Parameters as a person writes them: `-p NAME VALUE`, a YAML file, a JSON file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from sciml_kernel.batch.values import Text
from sciml_kernel.errors import ParameterError

__all__ = ["as_written", "from_pairs", "load", "read_file", "written"]


def from_pairs(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Parameters of `-p NAME VALUE`: texts whose meaning the parameter's type decides. Twice is refused."""
    found: dict[str, Any] = {}
    for name, text in pairs:
        if name in found:
            raise ParameterError(f"parameter {name} is given twice: {found[name].text!r} and {text!r}")
        found[name] = Text(text)
    return found


def read_file(path: str | Path) -> dict[str, Any]:
    """Parameters of a YAML file, or of a JSON one (`.json`). In YAML a text parameter gets what is written there:
    `007` stays "007".

    Raises ParameterError naming the file, and for a name that is there twice.
    """
    return as_written(*load(path))


def load(path: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The mapping that a YAML or JSON file holds: once as YAML means it, once with every scalar as the text that is
    written there. Raises ParameterError as `read_file`."""
    is_json = Path(path).suffix == ".json"
    try:
        source = Path(path).read_text(encoding="utf-8")
        if is_json:
            plain = text = json.loads(source, object_pairs_hook=_once, parse_constant=float)
        else:
            plain, text = yaml.load(source, _Plain), yaml.load(source, _Texts)
    except OSError as error:
        raise ParameterError(f"parameter file {path} can't be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ParameterError(f"parameter file {path} is no {'JSON' if is_json else 'YAML'}: {error}") from error
    if plain is None:
        return {}, {}
    if not isinstance(plain, dict) or not all(isinstance(name, str) for name in plain):
        raise ParameterError(f"parameter file {path} must hold 'name: value' lines, got {type(plain).__name__}")
    return plain, text


def as_written(plain: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    """Values of which a text parameter takes the text; where both are one (JSON), a text has quotes and nothing is
    open."""
    if plain is text:
        return dict(plain)
    return {name: written(value, text[name]) for name, value in plain.items()}


def written(plain: Any, text: Any) -> Any:
    """One value of `as_written`."""
    return Text(text, plain) if isinstance(text, str) and plain is not text else plain


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name!r} is there twice")
    return dict(pairs)


class _OnceOnly:
    """YAML would take the last of two equal names without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:merge" and isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.YAMLError(f"{key.value!r} is there twice, again in line {key.start_mark.line + 1}")
                seen.add(key.value)
        found: dict[Any, Any] = super().construct_mapping(node, deep)  # type: ignore[misc]
        return found


class _Plain(_OnceOnly, yaml.SafeLoader):
    pass


class _Texts(_OnceOnly, yaml.BaseLoader):
    pass
