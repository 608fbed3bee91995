"""Canonical JSON and its digest: the same configuration has the same name on every machine."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from sciml_kernel.errors import ConfigError

__all__ = ["canonical_json", "digest"]


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys, no spaces, UTF-8 as it is. Raises ConfigError for NaN, infinity or an object."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"this configuration can't be written as JSON: {error}") from error


def digest(text: str) -> str:
    """Return the sha256 of the text in UTF-8, as 64 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()
