"""Look-up of plug-ins. The only caller of `importlib.metadata.entry_points`.

Built-in recipes and readers enter by entry points like anyone else's. A plug-in that can't be imported warns by name
and is skipped, so that one broken package does not take the rest down.
"""

from __future__ import annotations

import importlib
import warnings
from importlib.metadata import entry_points
from typing import Any

from sciml_kernel.contracts import Reader, Recipe, RecipeSpec
from sciml_kernel.errors import NotFoundError, did_you_mean

__all__ = ["load_recipe", "load_target", "readers", "recipe_names", "recipe_spec"]

RECIPES = "sciml_kernel.recipes"
READERS = "sciml_kernel.readers"


def load_target(target: str) -> Any:
    """Import "package.module:attribute".

    Raises NotFoundError when the module or the attribute does not exist; an ImportError inside the module is passed on.
    """
    module_name, _, attribute = target.partition(":")
    if not attribute:
        raise NotFoundError(f"{target!r} names no attribute; write 'package.module:attribute'")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and module_name.startswith(error.name):
            raise NotFoundError(f"no module named {error.name!r} (from {target!r})") from error
        raise
    try:
        return getattr(module, attribute)
    except AttributeError:
        raise NotFoundError(
            f"module {module_name!r} has no {attribute!r}; {did_you_mean(attribute, vars(module))}"
        ) from None


def recipe_names() -> list[str]:
    """Names of the installed recipes, sorted."""
    return sorted(point.name for point in entry_points(group=RECIPES))


def recipe_spec(name: str) -> RecipeSpec:
    """The TensorFlow-free description of a recipe. Raises NotFoundError with the nearest name."""
    for point in entry_points(group=RECIPES):
        if point.name == name:
            spec: RecipeSpec = point.load()
            return spec
    names = recipe_names()
    raise NotFoundError(f"unknown recipe {name!r}; {did_you_mean(name, names)} (installed: {', '.join(names)})")


def load_recipe(name: str) -> Recipe:
    """The recipe itself. Imports TensorFlow: call it on a rank only."""
    recipe: Recipe = load_target(recipe_spec(name).recipe)
    return recipe


def readers() -> list[Reader]:
    """Every reader that can be imported, in the order of their names."""
    found: list[Reader] = []
    for point in sorted(entry_points(group=READERS), key=lambda p: p.name):
        try:
            found.append(point.load())
        except Exception as error:  # a broken plug-in must not break the others
            warnings.warn(f"reader {point.name!r} ({point.value}) is skipped: {error}", stacklevel=2)
    return found
