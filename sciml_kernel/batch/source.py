"""Reads a notebook: `.ipynb`, or a script of jupytext's (`.py` with `# %%` cells)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import nbformat

from sciml_kernel.errors import NotFoundError, UsageError

__all__ = ["Source", "read"]


@dataclass(frozen=True)
class Source:
    """path: absolute. node: nbformat 4. sha256: of the file's bytes."""

    path: Path
    node: nbformat.NotebookNode
    sha256: str

    @property
    def name(self) -> str:
        return self.path.stem


def read(notebook: str | Path) -> Source:
    """Raises NotFoundError for a missing file, UsageError for one that is no notebook, or no Python notebook."""
    path = Path(notebook).expanduser().absolute()
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        near = sorted(other.name for other in path.parent.glob("*.ipynb")) if path.parent.is_dir() else []
        from sciml_kernel.errors import did_you_mean

        raise NotFoundError(f"no notebook {path}; {did_you_mean(path.name, near)}") from None
    except OSError as error:
        raise UsageError(f"notebook {path} can't be read: {error.strerror}") from error
    try:
        node = _parse(path, data.decode("utf-8"))
        nbformat.validate(node)
    except (ValueError, KeyError, AttributeError, TypeError, nbformat.ValidationError) as error:
        raise UsageError(f"{path} is no notebook: {str(error).splitlines()[0][:200]}") from error
    language = node.metadata.get("kernelspec", {}).get("language") or node.metadata.get("language_info", {}).get("name")
    if language not in (None, "python", "Python"):
        raise UsageError(f"{path} is a notebook in {language}; the sciml kernel runs Python")
    return Source(path, node, hashlib.sha256(data).hexdigest())


def _parse(path: Path, text: str) -> nbformat.NotebookNode:
    if path.suffix == ".ipynb":
        node = nbformat.reads(text, as_version=4)
    else:
        import jupytext

        node = jupytext.reads(text, fmt=path.suffix.lstrip("."))
    node = nbformat.v4.upgrade(node)
    for index, cell in enumerate(node.cells):
        cell.setdefault("id", f"cell-{index}")
    return node
