"""What stays of bars, colours and other things that redraw: the last state, as a terminal would show it."""

from __future__ import annotations

import io
import random

import pytest
from rich.console import Console
from rich.progress import Progress
from tqdm import tqdm

from sciml_kernel.jupyter.rank_screen import MOST_CHARACTERS, Screen


def shown(text: str, cuts: list[int] | None = None) -> list[str]:
    """All lines, when the text comes in these pieces."""
    screen, lines, begin = Screen(), list[str](), 0
    for cut in [*(cuts or []), len(text)]:
        lines += screen.write(text[begin:cut], 0.0)
        begin = cut
    return lines + screen.end()


CASES = {
    "nothing": ("", []),
    "two lines": ("one\ntwo\n", ["one", "two"]),
    "no end": ("one\ntwo", ["one", "two"]),
    "empty lines": ("\n\na\n", ["", "", "a"]),
    "Windows": ("one\r\ntwo\r\n", ["one", "two"]),
    "bar": ("10%\r50%\r100%\n", ["100%"]),
    "shorter over longer": ("abcdef\rxy\n", ["xycdef"]),
    "erased": ("abcdef\r\x1b[Kxy\n", ["xy"]),
    "blanks paint over": ("loading\r       \rok\n", ["ok"]),
    "backspace": ("1%\b\b2%\b\b3%\n", ["3%"]),
    "two bars": ("\ra 0\nb 0\x1b[A\ra 1\x1b[B\rb 1\n", ["a 1", "b 1"]),
    "nested, as tqdm leaves them": ("\router 0\n\rinner 9\x1b[A\router 1\n\x1b[K\x1b[A\router 2\n", ["outer 2"]),
    "column": ("abc\x1b[2GX\n", ["aXc"]),
    "left and right": ("abc\x1b[3D1\x1b[C3\n", ["1b3"]),
    "bell and title": ("\x1b]0;window\x07a\x07b\n", ["ab"]),
    "link": ("\x1b]8;;http://x\x1b\\text\x1b]8;;\x1b\\\n", ["text"]),
    "tab": ("a\tb\n", ["a\tb"]),
    "whole screen erased": ("\ra\nb\x1b[2Jc\n", ["c"]),
    "colour": ("\x1b[31mred\x1b[0m plain\n", ["\x1b[31mred\x1b[0m plain"]),
    "colour left on": ("\x1b[31mred\nstill\x1b[0m\n", ["\x1b[31mred\x1b[0m", "\x1b[31mstill\x1b[0m"]),
    "coloured bar": ("\x1b[32m1\x1b[0m\r\x1b[32m22\x1b[0m\n", ["\x1b[32m22\x1b[0m"]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_terminal_would_end_with_these_lines(name: str) -> None:
    text, lines = CASES[name]
    assert shown(text) == lines


@pytest.mark.parametrize("name", CASES)
def test_the_size_of_the_pieces_does_not_matter(name: str) -> None:
    text, lines = CASES[name]
    assert shown(text, [*range(len(text))]) == lines
    chance = random.Random(name)
    for _ in range(20):
        assert shown(text, sorted(chance.choices(range(len(text) + 1), k=3))) == lines


def test_a_line_that_ends_before_anything_was_redrawn_is_printed_at_once() -> None:
    screen = Screen()
    assert screen.write("whole\n", 0.0) == ["whole"]
    assert screen.write("\x1b[Aother\n", 0.0) == []  # too late to take its place
    assert screen.end() == ["other"]


def test_a_bar_of_tqdm_leaves_its_last_state() -> None:
    out = io.StringIO()
    for _ in tqdm(range(1000), file=out, mininterval=0, ncols=60, ascii=True, desc="steps"):
        pass
    (line,) = shown(out.getvalue())
    assert len(out.getvalue()) > 30_000
    assert line.startswith("steps: 100%|###")
    assert "1000/1000" in line


def test_nested_bars_of_tqdm_leave_the_outer_one() -> None:
    out = io.StringIO()
    for _ in tqdm(range(3), file=out, mininterval=0, ncols=60, ascii=True, desc="outer"):
        for _ in tqdm(range(20), file=out, mininterval=0, ncols=60, ascii=True, desc="inner", position=1, leave=False):
            pass
    (line,) = [line for line in shown(out.getvalue()) if line.strip()]
    assert line.startswith("outer: 100%")


def test_bars_of_rich_leave_their_last_state() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system=None, width=60)
    with Progress(console=console) as progress:
        tasks = [progress.add_task(name, total=30) for name in ("read", "train")]
        for _ in range(30):
            for task in tasks:
                progress.advance(task)
                progress.refresh()
    lines = [line for line in shown(out.getvalue()) if line.strip()]
    assert [line.split()[0] for line in lines] == ["read", "train"]
    assert all("100%" in line for line in lines)


def test_a_line_without_an_end_takes_bounded_memory() -> None:
    screen = Screen()
    for _ in range(1000):
        assert screen.write("x" * 1000, 0.0) == []
    (line,) = screen.end()
    assert line == "x" * MOST_CHARACTERS + f" ... {1_000_000 - MOST_CHARACTERS:,} characters left out ..."


def test_rows_that_are_left_alone_are_printed_while_the_others_go_on() -> None:
    screen = Screen()
    assert screen.write("step 1\rstep 2\nepoch 1 is over\n", 0.0) == []
    assert screen.restless()
    assert screen.settle(0.1) == []
    assert screen.settle(1.0) == ["step 2", "epoch 1 is over"]
    assert screen.write("\r50%", 1.0) == []
    assert screen.current() == ["50%"]
