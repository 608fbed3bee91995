"""Where data sets that a notebook makes by itself lie."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from sciml_kernel.errors import DataError

__all__ = ["data_root"]


def data_root() -> Path:
    """`$SCIML_DATA`, else the user's cache folder: what lies there can be made again. The folder is made.

    Raises DataError, naming the variable, where it can't be.
    """
    chosen = os.environ.get("SCIML_DATA")
    path = Path(chosen).expanduser().absolute() if chosen else platformdirs.user_cache_path("sciml") / "data"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"no data can be kept in {path}: {error.strerror}; set SCIML_DATA to a folder") from error
    return path
