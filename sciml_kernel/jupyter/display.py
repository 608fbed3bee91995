"""Live figures: an output of a cell that is shown once and then replaced, also from another thread."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from IPython.display import DisplayHandle

__all__ = ["Updatable", "register", "updatable"]

LIVE = "sciml_kernel.views.live"


class Updatable:
    """One output. `show` it in a cell, then `update` it from anywhere. A bundle is {MIME type: data}."""

    def __init__(self) -> None:
        self._handle = DisplayHandle()

    def show(self, bundle: dict[str, Any]) -> None:
        self._handle.display(bundle, raw=True)

    def update(self, bundle: dict[str, Any]) -> None:
        self._handle.update(bundle, raw=True)


def updatable() -> Updatable:
    """A new output, not yet shown."""
    return Updatable()


def register() -> None:
    """Have `views.live` show its figures here: now, or as soon as somebody imports it.

    Importing it takes about a second, which a kernel's start need not wait for.
    """
    if LIVE in sys.modules:
        sys.modules[LIVE].register_display(updatable)
    elif not any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenImported())


class _WhenImported(importlib.abc.MetaPathFinder):
    """Lets the usual finders find `views.live`, then registers the display once it is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != LIVE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_register(module: ModuleType) -> None:
                load(module)
                module.register_display(updatable)

            spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec
