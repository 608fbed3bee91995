"""`%load_ext sciml_kernel`; the `sciml` kernel has it loaded."""

from __future__ import annotations

from typing import Any

from sciml_kernel.jupyter import display
from sciml_kernel.jupyter.magics import SciMLMagics

__all__ = ["load"]


def load(shell: Any) -> None:
    """Add the magics to an IPython shell and show live figures in its cells. Loading it twice is no harm."""
    shell.register_magics(SciMLMagics)
    display.register()
