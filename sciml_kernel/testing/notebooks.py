"""Small notebooks and a `sciml` kernel for tests, without touching the environment or the home of a person."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

__all__ = ["kernel_path", "write_notebook"]


def kernel_path(folder: Path) -> str:
    """Install the kernelspec of this Python under `folder`; return the JUPYTER_PATH that finds it first."""
    from sciml_kernel.jupyter import kernelspec

    kernelspec.install(folder)
    return os.pathsep.join([str(folder / "share" / "jupyter"), os.environ.get("JUPYTER_PATH", "")]).rstrip(os.pathsep)


def write_notebook(path: Path, *cells: str, parameters: str | None = None, markdown: Sequence[str] = ()) -> Path:
    """A notebook: markdown cells first, then the cell tagged `parameters` if there is one, then the code cells."""
    nodes = [new_markdown_cell(text) for text in markdown]
    if parameters is not None:
        nodes.append(new_code_cell(parameters, metadata={"tags": ["parameters"]}))
    nodes += [new_code_cell(text) for text in cells]
    nbformat.write(new_notebook(cells=nodes), path)
    return path
