"""A config says where each value came from, refuses what it does not know, and is named by its content."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from sciml_kernel.config import DataConfig, Layer, OptimConfig, RunConfig, TrainConfig, load, resolve, to_json
from sciml_kernel.config.digest import canonical_json, digest
from sciml_kernel.config.load import file_layer, from_json, parse_assignments, site_layer
from sciml_kernel.cosmology.config import COSMOFLOW, CosmoFlowConfig, CosmoFlowMLPerfConfig
from sciml_kernel.errors import ConfigError


def _resolve(*layers: Layer | dict[str, Any]) -> load.Resolved:
    made = [layer if isinstance(layer, Layer) else Layer("notebook", layer) for layer in layers]
    return resolve("cosmoflow", CosmoFlowConfig, made)


def _every_field() -> list[tuple[type, str]]:
    groups = {
        "data": DataConfig,
        "optim": OptimConfig,
        "train": TrainConfig,
        "model": CosmoFlowConfig,
    }
    return [(kind, f"{group}.{item.name}") for group, kind in groups.items() for item in dataclasses.fields(kind)]


def _another(item: dataclasses.Field[Any], value: Any) -> Any:
    """A legal value that differs."""
    if item.metadata["choices"]:
        return next(choice for choice in item.metadata["choices"] if choice != value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, tuple):
        return (*value, 3)
    if isinstance(value, int):
        return value + 1
    return value / 2 if value else 0.5


@pytest.mark.parametrize(("kind", "name"), _every_field(), ids=lambda x: x if isinstance(x, str) else "")
def test_every_field_changes_the_digest_and_survives_json(kind: type, name: str) -> None:
    group, leaf = name.split(".")
    before = _resolve({"path": "p"}).config
    item = next(f for f in dataclasses.fields(kind) if f.name == leaf)
    value = _another(item, getattr(getattr(before, group), leaf))
    after = _resolve({"data.path": "p", name: value} if name != "data.path" else {name: value}).config
    assert digest(to_json(after)) != digest(to_json(before))
    assert from_json(to_json(after), CosmoFlowConfig) == after
    assert getattr(getattr(after, group), leaf) == value


@pytest.mark.parametrize(("kind", "name"), _every_field(), ids=lambda x: x if isinstance(x, str) else "")
def test_every_field_has_a_meaning(kind: type, name: str) -> None:
    item = next(f for f in dataclasses.fields(kind) if f.name == name.split(".")[1])
    assert len(item.metadata["doc"]) > 10


def test_leaf_names_are_unique_over_the_groups_of_each_recipe() -> None:
    for model in (CosmoFlowConfig, CosmoFlowMLPerfConfig):
        names = [f.name for kind in (DataConfig, OptimConfig, TrainConfig, model) for f in dataclasses.fields(kind)]
        assert len(names) == len(set(names))


def test_a_later_layer_wins_and_the_source_of_each_value_is_known() -> None:
    resolved = _resolve(
        Layer("recipe", COSMOFLOW.defaults),
        Layer("site /etc/site.yaml", {"optim": {"learning_rate": 2e-3}, "batch_size": 16}),
        Layer("file my.yaml", {"batch_size": 32}),
        Layer("notebook", {"path": "p", "optim.learning_rate": 5e-3}),
    )
    assert resolved.config.optim.learning_rate == 5e-3
    assert resolved.config.data.batch_size == 32
    assert resolved.sources["optim.learning_rate"] == "notebook"
    assert resolved.sources["data.batch_size"] == "file my.yaml"
    assert resolved.sources["optim.schedule"] == "recipe"
    assert resolved.sources["train.epochs"] == "default"
    assert "data.batch_size = 32 samples  [file my.yaml]" in resolved.explain()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epoch": 3}, r"unknown setting 'epoch' \(notebook\); did you mean 'epochs'\?"),
        ({"optim": {"learning_rte": 1.0}}, r"unknown setting 'optim.learning_rte' .*did you mean 'learning_rate'"),
        ({"epochs": 2.5}, r"train.epochs must be int, got 2.5 \(float\)"),
        ({"epochs": True}, r"train.epochs must be int, got True \(bool\)"),
        ({"epochs": "3"}, r"train.epochs must be int, got '3' \(str\)"),
        ({"epochs": -1}, r"train.epochs must be >= 0, got -1"),
        ({"learning_rate": 0.0}, r"optim.learning_rate must be > 0, got 0.0"),
        ({"learning_rate": float("nan")}, r"optim.learning_rate must be > 0, got nan"),
        ({"validation_fraction": 1.0}, r"validation_fraction must be < 1, got 1.0"),
        ({"schedule": "cosin"}, r"schedule must be one of 'constant', 'linear', 'cosine', got 'cosin'"),
        ({"channels": []}, r"model.channels needs at least one block, got \(\)"),
        ({"channels": [8, 0]}, r"model.channels must be >= 1, got \(8, 0\)"),
        ({"epochs": 2, "train.epochs": 2}, r"train.epochs is written twice"),
    ],
)
def test_what_is_not_a_setting_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _resolve({"path": "p", **values})


def test_a_config_without_data_says_what_is_missing() -> None:
    with pytest.raises(ConfigError, match=r"data.path is missing: folder or file with the samples; write path="):
        _resolve({"epochs": 1})


def test_whole_numbers_are_taken_for_real_ones() -> None:
    rate = _resolve({"path": "p", "learning_rate": 1}).config.optim.learning_rate
    assert isinstance(rate, float)
    assert rate == 1.0


def test_assignments_are_read_as_literals_else_as_text() -> None:
    read = parse_assignments(["a=3", "b=1e-3", "c=true", "d=False", "e=(1, 2)", "f=cosine", "g=a=b", "h="])
    assert read == {"a": 3, "b": 1e-3, "c": True, "d": False, "e": (1, 2), "f": "cosine", "g": "a=b", "h": ""}
    assert isinstance(read["a"], int)


@pytest.mark.parametrize("bad", [["epochs"], ["=3"], ["a=1", "a=2"]])
def test_a_malformed_assignment_is_refused(bad: list[str]) -> None:
    with pytest.raises(ConfigError):
        parse_assignments(bad)


def test_settings_files_and_the_site_file_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "site.yaml"
    path.write_text("optim:\n  learning_rate: 0.002\nepochs: 7\n")
    assert site_layer() is None
    monkeypatch.setenv("SCIML_SITE_CONFIG", str(path))
    layer = site_layer()
    assert layer is not None
    resolved = _resolve(layer, {"path": "p"})
    assert (resolved.config.train.epochs, resolved.config.optim.learning_rate) == (7, 0.002)
    assert resolved.sources["train.epochs"] == f"site {path}"
    path.write_text("- a list\n")
    with pytest.raises(ConfigError, match="must hold 'key: value' lines, got list"):
        file_layer(path)
    with pytest.raises(ConfigError, match="can't be read: No such file"):
        file_layer(tmp_path / "none.yaml")


def test_canonical_json_does_not_depend_on_order_and_refuses_what_json_lacks() -> None:
    assert canonical_json({"b": 1, "a": [1.5, "ü"]}) == '{"a":[1.5,"ü"],"b":1}'
    assert digest("abc") == hashlib.sha256(b"abc").hexdigest()
    with pytest.raises(ConfigError):
        canonical_json({"a": float("nan")})
    with pytest.raises(ConfigError):
        canonical_json({"a": Path("x")})


def test_a_config_can_not_be_changed() -> None:
    config: RunConfig = _resolve({"path": "p"}).config
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.train.epochs = 5  # type: ignore[misc]
    assert json.loads(to_json(config))["recipe"] == "cosmoflow"
