"""Nested JSON as one level of dotted names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["flat"]


def flat(value: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """{"optim": {"lr": 1}} -> {"optim.lr": 1}; lists stay as they are, an empty mapping is left out."""
    found: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, Mapping):
            found |= flat(item, f"{before}{name}.")
        else:
            found[f"{before}{name}"] = item
    return found
