"""What a run leaves to look at: the executed notebook, with texts that are bounded, and every picture as a PNG."""

from __future__ import annotations

import base64
import binascii
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import nbformat

from sciml_kernel.records import write_atomic

__all__ = ["Streams", "add_kept_outputs", "pictures", "write_notebook"]

MOST_CHARACTERS = 40_000  # of what a cell prints, in the notebook; the record's log has all
MOST_STREAMS = 20  # changes between standard output and error in a cell; what comes later is joined
LEAST_CHARACTERS = 2_000
_ROOM = 200
_LEFT_OUT = re.compile(r"\.\.\. (\d+) characters are left out here; [^\n]*\n")


def write_notebook(node: nbformat.NotebookNode, path: Path) -> None:
    """Replace it as a whole: the earlier one stays readable until this one is complete."""
    write_atomic(path, nbformat.writes(node))


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


def add_kept_outputs(cell: Any, earlier: Path) -> None:
    """Show in a cell that was kept as a whole what it showed when it was run, below the line that says so.

    earlier: the executed notebook of that run. Nothing is added where it can't be read or has no such cell.
    """
    kept = [output.get("metadata", {}).get("sciml", {}) for output in cell.outputs]
    if not any(note.get("kept") and note.get("whole") for note in kept):
        return
    with suppress(OSError, ValueError, nbformat.ValidationError):
        for before in nbformat.read(earlier, as_version=4).cells:
            if before.cell_type == "code" and before.source == cell.source:
                cell.outputs += [one for one in before.outputs if "sciml" not in one.get("metadata", {})]
                return


class Streams:
    """Keeps the text outputs of a cell small: neighbours are joined, a redrawn line keeps its last state, and of a
    flood the beginning and the end stay."""

    def add(self, outputs: list[Any], output: Any) -> Any:
        """Take a stream output into a cell's list of outputs; return the entry that holds its text."""
        entry = _goes_into(outputs, output["name"])
        if entry is None:
            entry, fresh = output, output["text"]
            outputs.append(output)
            whole = newline = ""
        else:
            whole, newline, begun = entry["text"].rpartition("\n")
            fresh = begun + output["text"]
        if "\r" in fresh:
            fresh = "\n".join(map(_last_state, fresh.split("\n")))
        text = whole + newline + fresh
        if len(text) > LEAST_CHARACTERS:
            others = sum(len(one["text"]) for one in outputs if one["output_type"] == "stream" and one is not entry)
            text = bounded(text, max(LEAST_CHARACTERS, MOST_CHARACTERS - others))
        entry["text"] = text
        return entry


def _goes_into(outputs: list[Any], name: str) -> Any:
    """The entry that takes text of this stream: the last one, or an earlier one where there are many; else None."""
    if outputs and outputs[-1].get("output_type") == "stream" and outputs[-1].get("name") == name:
        return outputs[-1]
    streams = [one for one in outputs if one.get("output_type") == "stream"]
    same = [one for one in streams if one["name"] == name]
    return same[-1] if len(streams) >= MOST_STREAMS and same else None


def _last_state(line: str) -> str:
    """What is seen of a line that was redrawn after carriage returns; one at its end says that the next text will."""
    body = line.rstrip("\r")
    return body.rpartition("\r")[2] + line[len(body) :]


def bounded(text: str, most: int = MOST_CHARACTERS) -> str:
    """The beginning and the end of a long text, whole lines where there are any, with a line between that says what is
    left out."""
    if len(text) <= most:
        return text
    half = (most - _ROOM) // 2
    before = _LEFT_OUT.search(text)
    if before:  # it was cut before: the beginning stays, and the count goes on
        head, cut_before = text[: before.start()], int(before.group(1)) - len(before.group())
    else:
        head, cut_before = text[:half], 0
        head = head[: head.rfind("\n") + 1] or head + "\n"
    tail = text[-half:]
    tail = tail[tail.find("\n") + 1 :] or tail
    cut = len(text) - len(head) - len(tail) + cut_before
    return f"{head}... {cut} characters are left out here; logs/notebook.log in the record has them ...\n{tail}"
