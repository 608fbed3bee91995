"""What a run leaves to look at: the executed notebook, the same as HTML, every picture as a PNG."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Any

import nbformat

from sciml_kernel.records import write_atomic

__all__ = ["Streams", "pictures", "to_html", "write_notebook"]

MOST_CHARACTERS = 200_000  # of one stream of one cell in the notebook; the record's log has all


def write_notebook(node: nbformat.NotebookNode, path: Path) -> None:
    """Replace it as a whole: the earlier one stays readable until this one is complete."""
    write_atomic(path, nbformat.writes(node))


def to_html(notebook: Path, target: Path) -> None:
    """The notebook as one HTML file with its pictures inside."""
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(embed_images=True)
    exporter.log.setLevel("ERROR")  # it warns of pictures without alternative text
    node = nbformat.read(notebook, as_version=4)
    for cell in node.cells:  # HoloViews leaves outputs that hold nothing, and the exporter warns of each
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if output.get("data", True)]
    text, _ = exporter.from_notebook_node(node, resources={"metadata": {"name": notebook.parent.name}})
    write_atomic(target, text)


def pictures(node: nbformat.NotebookNode, folder: Path) -> list[Path]:
    """Write every PNG among the outputs to `folder` as cell-<index>-<number>.png."""
    written: list[Path] = []
    for index, cell in enumerate(node.cells):
        found = [
            output.data["image/png"] for output in cell.get("outputs", []) if "image/png" in output.get("data", {})
        ]
        for number, text in enumerate(found, start=1):
            try:
                data = base64.b64decode("".join(text))
            except (binascii.Error, ValueError):
                continue
            folder.mkdir(exist_ok=True)
            path = folder / f"cell-{index:02d}-{number}.png"
            write_atomic(path, data)
            written.append(path)
    return written


class Streams:
    """Keeps the text outputs of a cell small: neighbours are joined, a redrawn line keeps its last state, and of a
    flood the beginning and the end stay."""

    def add(self, outputs: list[Any], output: Any) -> Any:
        """Take a stream output into a cell's list of outputs; return the entry that holds its text."""
        last = outputs[-1] if outputs else None
        if last is None or last.get("output_type") != "stream" or last.get("name") != output["name"]:
            outputs.append(output)
            last = output
            before = ""
        else:
            before = last["text"]
        whole, newline, begun = before.rpartition("\n")
        fresh = begun + output["text"]
        if "\r" in fresh:
            fresh = "\n".join(map(_last_state, fresh.split("\n")))
        last["text"] = bounded(whole + newline + fresh)
        return last


def _last_state(line: str) -> str:
    """What is seen of a line that was redrawn after carriage returns; one at its end says that the next text will."""
    body = line.rstrip("\r")
    return body.rpartition("\r")[2] + line[len(body) :]


def bounded(text: str) -> str:
    """The beginning and the end of a long text, with a line between that says what is left out."""
    if len(text) <= MOST_CHARACTERS:
        return text
    half = MOST_CHARACTERS // 2
    head, tail = text[: half - 200], text[-half:]
    return f"{head}\n... characters were left out here; logs/notebook.log of the record has them ...\n{tail}"
