"""Where runs are kept."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["runs_root"]

FOLDER = "papermill_runs"


def runs_root() -> Path:
    """`$SCIML_RUNS`, else the nearest `papermill_runs/` from the current directory upwards, else `./papermill_runs`.

    Absolute; need not exist yet.
    """
    named = os.environ.get("SCIML_RUNS", "")
    if named:
        return Path(named).expanduser().absolute()
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / FOLDER).is_dir():
            return folder / FOLDER
    return here / FOLDER
