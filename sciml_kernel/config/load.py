"""From what people write to a `RunConfig`, and back. One merge order; a later layer wins:

defaults < recipe < site < file < notebook < command line

Names may be leaves (`learning_rate`), dotted (`optim.learning_rate`) or nested (`{"optim": {"learning_rate": ...}}`).
"""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sciml_kernel.config.digest import canonical_json
from sciml_kernel.config.schema import DataConfig, OptimConfig, RunConfig, TrainConfig, checked
from sciml_kernel.errors import ConfigError, did_you_mean

__all__ = ["Layer", "Resolved", "file_layer", "from_json", "parse_assignments", "resolve", "site_layer", "to_json"]

_GROUPS: dict[str, type] = {"data": DataConfig, "optim": OptimConfig, "train": TrainConfig}


@dataclass(frozen=True)
class Layer:
    """Values from one place. `source` is what `explain` prints: "site /etc/...", "notebook", "--set"."""

    source: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Resolved:
    """A config and, for each dotted name, the source of its value."""

    config: RunConfig
    sources: Mapping[str, str]

    def explain(self) -> str:
        """One line a field: name, value, unit, where it came from, what it means."""
        lines = [f"recipe = {self.config.recipe}"]
        for name, (_, item, _) in _fields(type(self.config.model)).items():
            group, leaf = name.split(".")
            value = getattr(getattr(self.config, group), leaf)
            unit = f" {item.metadata['unit']}" if item.metadata.get("unit") else ""
            lines.append(f"{name} = {value!r}{unit}  [{self.sources[name]}]  {item.metadata.get('doc', '')}")
        return "\n".join(lines)


def _fields(model_type: type) -> dict[str, tuple[type, dataclasses.Field[Any], Any]]:
    """Dotted name -> (group class, field, type), over all groups."""
    found: dict[str, tuple[type, dataclasses.Field[Any], Any]] = {}
    for group, kind in {**_GROUPS, "model": model_type}.items():
        hints = typing.get_type_hints(kind)
        for item in dataclasses.fields(kind):
            found[f"{group}.{item.name}"] = (kind, item, hints[item.name])
    return found


def _flatten(values: Mapping[str, Any], names: Iterable[str], source: str) -> dict[str, Any]:
    """Give every value its dotted name. Raises ConfigError for an unknown or doubly written name."""
    known = list(names)
    leaves: dict[str, list[str]] = {}
    for name in known:
        leaves.setdefault(name.split(".")[1], []).append(name)
    flat: dict[str, Any] = {}

    def put(name: str, value: Any) -> None:
        if name in flat:
            raise ConfigError(f"{name} is written twice ({source})")
        flat[name] = value

    for key, value in values.items():
        if key in (*_GROUPS, "model") and isinstance(value, Mapping):
            for leaf, inner in value.items():
                if f"{key}.{leaf}" not in known:
                    near = did_you_mean(leaf, [n.split(".")[1] for n in known if n.startswith(key + ".")])
                    raise ConfigError(f"unknown setting '{key}.{leaf}' ({source}); {near}")
                put(f"{key}.{leaf}", inner)
        elif key in known:
            put(key, value)
        elif len(leaves.get(key, [])) == 1:
            put(leaves[key][0], value)
        elif key in leaves:
            raise ConfigError(f"setting {key!r} ({source}) is in several groups; write {' or '.join(leaves[key])}")
        else:
            raise ConfigError(f"unknown setting {key!r} ({source}); {did_you_mean(key, [*leaves, *known])}")
    return flat


def resolve(recipe: str, model_type: type, layers: Sequence[Layer]) -> Resolved:
    """Merge the layers, later ones winning, and check every value.

    Raises ConfigError for an unknown name (with the nearest), a wrong type, a value out of range, or no data path.
    """
    fields = _fields(model_type)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for layer in layers:
        for name, value in _flatten(layer.values, fields, layer.source).items():
            _, item, kind = fields[name]
            try:
                values[name] = checked(name, kind, value, item.metadata)
            except ConfigError as error:
                raise ConfigError(f"{error} ({layer.source})") from None
            sources[name] = layer.source
    for name, (_, item, _) in fields.items():
        if name not in values:
            if item.default is dataclasses.MISSING:
                raise ConfigError(f"{name} is missing: {item.metadata['doc']}; write {item.name}=...")
            sources[name] = "default"
    made = {
        group: kind(**{name.split(".")[1]: value for name, value in values.items() if name.startswith(group + ".")})
        for group, kind in {**_GROUPS, "model": model_type}.items()
    }
    return Resolved(RunConfig(recipe=recipe, **made), sources)


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """Read `key=value` as Python literals, else as text: `3`, `1e-3`, `true`, `(8, 16)`, `cosine`.

    Raises ConfigError where the equals sign or the key is missing, or a key is given twice.
    """
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key = key.strip()
        if not equals or not key:
            raise ConfigError(f"{assignment!r} is no setting; write key=value, for example learning_rate=1e-3")
        if key in values:
            raise ConfigError(f"{key} is written twice")
        words: dict[str, Any] = {"true": True, "false": False}
        try:
            values[key] = words[text.lower()] if text.lower() in words else ast.literal_eval(text)
        except (ValueError, SyntaxError):
            values[key] = text
    return values


def file_layer(path: str | Path) -> Layer:
    """Read a YAML or JSON file of settings. Raises ConfigError naming the file."""
    path = Path(path)
    try:
        values = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"settings file {path} can't be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"settings file {path} is no YAML: {error}") from error
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(f"settings file {path} must hold 'key: value' lines, got {type(values).__name__}")
    return Layer(f"file {path}", values)


def site_layer() -> Layer | None:
    """The site's own defaults: the file that `SCIML_SITE_CONFIG` names, else None."""
    path = os.environ.get("SCIML_SITE_CONFIG")
    if not path:
        return None
    return dataclasses.replace(file_layer(path), source=f"site {path}")


def to_json(config: RunConfig) -> str:
    """Canonical JSON of a config; its sha256 is the run's digest."""
    return canonical_json(dataclasses.asdict(config))


def from_json(text: str, model_type: type) -> RunConfig:
    """The config that `to_json` wrote. Raises ConfigError for a field that this version does not know."""
    data = json.loads(text)
    recipe = data.pop("recipe")
    return resolve(recipe, model_type, [Layer("config.json", data)]).config
