"""What is kept of a cell's output."""

from __future__ import annotations

import pytest
from nbformat.v4 import new_output

from sciml_kernel.batch.outputs import MOST_CHARACTERS, Streams


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


@pytest.mark.parametrize("length", [1, 700])
def test_the_beginning_of_a_flood_stays_the_beginning_and_the_count_is_right(length: int) -> None:
    lines = [f"line {i}{' ' * (length - 1)}\n" for i in range(20_000)]
    ((_, text),) = collect(*[("stdout", line) for line in lines])
    assert len(text) <= MOST_CHARACTERS
    assert text.startswith("".join(lines[:2]))
    assert text.endswith("".join(lines[-2:]))
    head, _, rest = text.partition("... ")
    count, _, tail = rest.partition(" characters")
    tail = tail.partition("\n")[2]
    assert len(head) + int(count) + len(tail) == len("".join(lines))
    assert all(line + "\n" in lines for line in (head + tail).splitlines())  # no line is cut in two


def test_streams_that_alternate_stay_small_too() -> None:
    found = collect(*[(name, f"{i} {'x' * 500}\n") for i in range(2_000) for name in ("stdout", "stderr")])
    assert sum(len(text) for _, text in found) < 2 * MOST_CHARACTERS
    assert [name for name, _ in found[:4]] == ["stdout", "stderr", "stdout", "stderr"]
    assert found[0][1].startswith("0 ")
    assert "1999 xxx" in found[-1][1]
