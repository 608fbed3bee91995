"""Outputs of cells that are replaced in place: what live views have in common.

How an output is made is said from outside (`register_display`): views know no IPython and work without it. Small on
purpose: a kernel imports it at its start.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Display", "Shown", "can_show", "register_display"]

_SAME_CELL_S = 1.0


class Display(Protocol):
    """One output of a notebook cell that can be changed later, also from another thread. Takes MIME bundles."""

    def show(self, bundle: dict[str, Any]) -> None: ...

    def update(self, bundle: dict[str, Any]) -> None: ...


_factory: Callable[[], Display] | None = None


def register_display(factory: Callable[[], Display] | None) -> None:
    """Say how live views are shown: `factory()` makes one new output each time. None: not at all."""
    global _factory
    _factory = factory


def can_show() -> bool:
    """Whether there are outputs that can be replaced."""
    return _factory is not None


class Shown(ABC):
    """A view that shows itself in the cell that made it, and again wherever it is the last expression of a later one;
    all its outputs are updated together."""

    def __init__(self) -> None:
        self._displays: list[Display] = []
        self._lock = threading.RLock()
        self._shown_at = time.monotonic()

    @abstractmethod
    def _bundle(self) -> dict[str, Any]:
        """What is to be seen now: {MIME type: data}."""

    def _show(self) -> None:
        """One more output, where there are any."""
        if _factory is None:
            return
        with self._lock:
            display = _factory()
            display.show(self._bundle())
            self._displays.append(display)

    def _show_first(self) -> None:
        self._shown_at = time.monotonic()
        self._show()

    def _update(self) -> None:
        """Replace every output."""
        with self._lock:
            displays = list(self._displays)
        for display in displays:
            display.update(self._bundle())

    def _ipython_display_(self) -> None:
        # The last expression of the cell that made the view: it is shown there already.
        if _factory is None:
            raise NotImplementedError  # IPython then takes the other representations
        if time.monotonic() - self._shown_at > _SAME_CELL_S:
            self._show()
