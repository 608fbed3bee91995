"""What a kernel in a batch run tells the run beside the cell's output: the error that ended a cell, field by field.

The message of an exception is for people. Which rank, host and signal it was must not be read out of it again.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from sciml_kernel.contracts import ERROR_VARIABLE

__all__ = ["add"]


def add(shell: Any) -> None:
    """Write the record's error entry of a cell that raised to the file that the variable names. Twice is no harm."""
    path = os.environ.get(ERROR_VARIABLE)
    if path and not hasattr(shell, "_sciml_notes_errors"):
        shell._sciml_notes_errors = True
        shell.events.register("post_run_cell", lambda result: _note(Path(path), result.error_in_exec))


def _note(path: Path, error: BaseException | None) -> None:
    if error is not None:
        from sciml_kernel.records import error_fields, write_atomic

        with suppress(OSError, ValueError, TypeError):  # the output says it too, if less exactly
            write_atomic(path, json.dumps(error_fields(error)))
