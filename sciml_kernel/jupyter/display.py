"""Live views: an output of a cell that is shown once and then replaced, also from another thread."""

from __future__ import annotations

from typing import Any

from IPython.core.getipython import get_ipython
from IPython.display import DisplayHandle

from sciml_kernel.views import shown

__all__ = ["Updatable", "register", "updatable"]


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
    """Have live views show themselves here. Not at a terminal, where an update would be printed below the earlier one:
    there they print or leave one static text."""
    in_a_kernel = getattr(get_ipython(), "kernel", None) is not None
    shown.register_display(updatable if in_a_kernel else None)
