"""`sciml config explain`; and the config that `sciml train` would use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sciml_kernel.cli.shared import Group, echo_json, json_option

if TYPE_CHECKING:
    from sciml_kernel.config import Resolved
    from sciml_kernel.contracts import RecipeSpec

__all__ = ["config", "resolved"]


@click.group(cls=Group)
def config() -> None:
    """Settings of a run."""


@config.command()
@click.argument("recipe")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="As for `sciml train`.")
@click.option("--settings", type=click.Path(path_type=Path), help="YAML file of settings.")
@json_option
def explain(recipe: str, assignments: tuple[str, ...], settings: Path | None, as_json: bool) -> None:
    """Every setting of a recipe: its value, where that comes from, and what it means."""
    _, found = resolved(recipe, assignments, settings, data=None)
    if not as_json:
        click.echo(found.explain())
        return
    values = {name: getattr(getattr(found.config, name.split(".")[0]), name.split(".")[1]) for name in found.sources}
    echo_json({name: {"value": value, "source": found.sources[name]} for name, value in values.items()})


def resolved(
    recipe: str, assignments: Sequence[str], settings: Path | None, *, data: Path | None
) -> tuple[RecipeSpec, Resolved]:
    """The recipe and its config. data: None leaves the path open. Raises NotFoundError, ConfigError."""
    from sciml_kernel import config as configs
    from sciml_kernel import registry

    spec = registry.recipe_spec(recipe)
    path: Any = configs.Layer("--data", {"data.path": str(data.expanduser().resolve()) if data else "(--data)"})
    layers = [
        configs.Layer("recipe", spec.defaults),
        configs.site_layer(),
        configs.load.file_layer(settings) if settings is not None else None,
        configs.Layer("--set", configs.load.parse_assignments(assignments)),
        path,
    ]
    return spec, configs.resolve(spec.name, spec.model_type, [layer for layer in layers if layer is not None])
