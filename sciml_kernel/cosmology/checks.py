"""Checks of arguments that several modules share. Each returns the value or raises UsageError saying what to write."""

from __future__ import annotations

import math
import operator
from typing import Any

from sciml_kernel.errors import UsageError

__all__ = ["real", "whole"]


def real(name: str, value: Any, *, above: float, up_to: float = math.inf, unit: str = "") -> float:
    """A finite number with above < value <= up_to."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{name} must be a number, got {value!r}") from None
    if not math.isfinite(number) or not above < number <= up_to:
        upper = f" and at most {up_to:g}" if math.isfinite(up_to) else ""
        raise UsageError(f"{name} must be above {above:g}{upper}{' ' + unit if unit else ''}, got {value!r}")
    return number


def whole(name: str, value: Any, *, at_least: int, at_most: int | None = None, meaning: str = "") -> int:
    """An integer with at_least <= value <= at_most; a bool or a float such as 8.0 is refused."""
    said = f"{name}{f' ({meaning})' if meaning else ''}"
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"{said} must be a whole number, got {value!r}") from None
    if number < at_least or (at_most is not None and number > at_most):
        span = f"from {at_least} to {at_most}" if at_most is not None else f"{at_least} or more"
        raise UsageError(f"{said} must be {span}, got {value!r}")
    return number
