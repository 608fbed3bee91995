"""What is kept of a cell's output."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from sciml_kernel.batch.outputs import MOST_CHARACTERS, Streams, to_html


def collect(*texts: tuple[str, str]) -> list[tuple[str, str]]:
    outputs: list[dict[str, str]] = []
    for name, text in texts:
        Streams().add(outputs, new_output("stream", name=name, text=text))
    return [(output["name"], output["text"]) for output in outputs]


def test_neighbouring_texts_of_one_stream_are_one_output() -> None:
    assert collect(("stdout", "a"), ("stdout", "b\n"), ("stderr", "c"), ("stdout", "d")) == [
        ("stdout", "ab\n"),
        ("stderr", "c"),
        ("stdout", "d"),
    ]


def test_a_progress_bar_keeps_its_last_state() -> None:
    # Windows line ends are no redrawing.
    assert collect(("stdout", "\r1%"), ("stdout", "\r50%\r"), ("stdout", "\r100%\ndone\r\n")) == [
        ("stdout", "100%\ndone\r\n")
    ]


def test_a_flood_keeps_its_beginning_and_its_end() -> None:
    ((_, text),) = collect(("stdout", "first\n"), *[("stdout", "x" * 9_999 + "\n")] * 100, ("stdout", "last\n"))
    assert len(text) <= MOST_CHARACTERS
    assert text.startswith("first\n")
    assert text.endswith("last\n")
    assert "left out" in text


def test_the_page_holds_the_pictures_and_says_nothing_of_empty_outputs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    outputs = [new_output("display_data"), new_output("display_data", {"image/png": pixel})]
    cell = new_code_cell("1", outputs=outputs)
    nbformat.write(new_notebook(cells=[cell]), tmp_path / "notebook.ipynb")
    to_html(tmp_path / "notebook.ipynb", tmp_path / "notebook.html")  # a warning would be an error here
    assert pixel[:40] in (tmp_path / "notebook.html").read_text()
    assert not caplog.records
    assert len(nbformat.read(tmp_path / "notebook.ipynb", 4).cells[0].outputs) == 2  # the notebook keeps what was there
