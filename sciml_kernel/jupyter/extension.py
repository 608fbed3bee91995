"""`%load_ext sciml_kernel`; the `sciml` kernel has it loaded."""

from __future__ import annotations

from typing import Any

from sciml_kernel.jupyter import batch_notes, display, help, ownership, stages, tracebacks
from sciml_kernel.jupyter.magics import SciMLMagics

__all__ = ["load"]


def load(shell: Any) -> None:
    """Add the magics to an IPython shell, show live figures and short errors in its cells, tie a kernel's pools to it.

    In IPython at a terminal the normal end of the process stops its pools. Loading it twice is no harm.
    """
    shell.register_magics(SciMLMagics)
    help.add(shell)
    display.register()
    tracebacks.add(shell)
    batch_notes.add(shell)
    stages.add(shell)
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        ownership.tie(kernel)
