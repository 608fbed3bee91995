"""How an error looks in a cell: where the person's own code is, and what went wrong, without this package's inside.

An error that the package raises on purpose (`SciMLError`) and an interrupt say all in their message, so its own frames
are left out. What happened on a rank comes first, as that rank saw it. Any other exception is shown whole: then it is
our own fault and every frame counts. `%debug` and `%tb` work on the whole in each case.
"""

from __future__ import annotations

import linecache
import os
import re
from pathlib import Path
from types import TracebackType
from typing import Any

from sciml_kernel.errors import RemoteError, SciMLError

__all__ = ["add", "render", "shorten"]

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_FRAME = re.compile(r'^( *)File "(.+)", line (\d+)(.*)$')


def add(shell: Any) -> None:
    """Show the package's errors this way in an IPython shell. Twice is no harm."""
    SciMLError._render_traceback_ = lambda error: render(shell, error)  # type: ignore[attr-defined]


def shorten(shell: Any, error: BaseException) -> None:
    """Show this one error so, whatever its class."""
    error._render_traceback_ = lambda: render(shell, error)  # type: ignore[attr-defined]


def render(shell: Any, error: BaseException) -> list[str]:
    """Lines of text with IPython's colours, the last one is the error itself; called by IPython."""
    notes = list(getattr(error, "__notes__", ()))
    if isinstance(error, RemoteError):
        notes = [note for note in notes if not note.startswith("--- traceback")]
    if isinstance(error.__cause__, Exception):
        notes.append(f"because of {type(error.__cause__).__name__}: {error.__cause__}")
    shown = _bare(error, notes)
    frames = _own(error.__traceback__)
    lines = shell.InteractiveTB.structured_traceback(type(shown), shown, frames, tb_offset=0)
    if frames is None:
        lines = lines[2:]  # a rule and "Traceback (most recent call last)", which nothing would follow
    if isinstance(error, RemoteError) and error.traceback:
        lines = [*_of_rank(shell, error), "", *lines]
    return [str(line) for line in lines]


def _bare(error: BaseException, notes: list[str]) -> BaseException:
    """An exception that prints as this one does, with other notes and nothing chained to it."""
    text = str(error)
    kind = type(type(error).__name__, (BaseException,), {"__str__": lambda self: text, "__module__": "builtins"})
    bare: BaseException = kind()
    for note in notes:
        bare.add_note(note)
    return bare


def _own(frames: TracebackType | None) -> TracebackType | None:
    """The frames up to the first one of this package, and later ones in cells (a function that we called back)."""
    kept, inside = list[TracebackType](), False
    while frames is not None:
        name = frames.tb_frame.f_code.co_filename
        inside = inside or name.startswith(_PACKAGE)
        if _is_cell(name) or not (inside or "/IPython/core/" in name):
            kept.append(frames)
        frames = frames.tb_next
    if kept and "run_cell_magic" in kept[-1].tb_frame.f_code.co_names:
        kept.pop()  # what IPython made of a cell with %%: all of it in one line
    chain: TracebackType | None = None
    for frame in reversed(kept):
        chain = TracebackType(chain, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return chain


def _is_cell(name: str) -> bool:
    return "ipykernel_" in name or name.startswith(("<ipython-input", "<cell"))


def _of_rank(shell: Any, error: RemoteError) -> list[str]:
    """Its traceback. A function that came from this notebook has no source there; it is added, with the cell's name."""
    lines = error.traceback.rstrip().splitlines()
    if lines and lines[0].startswith("Traceback"):
        del lines[0]
    shown = [f"Traceback on rank {error.rank} (most recent call last):"]
    for at, line in enumerate(lines):
        match = _FRAME.match(line)
        source = linecache.getline(match[2], int(match[3])).strip() if match and _is_cell(match[2]) else ""
        if not (match and source):
            shown.append(line)
            continue
        kind, name = shell.compile.format_code_name(match[2]) or ("File", f'"{match[2]}"')
        shown.append(f"{match[1]}{kind} {name}, line {match[3]}{match[4]}")
        if at + 1 == len(lines) or _FRAME.match(lines[at + 1]) or not lines[at + 1].startswith(match[1] + "  "):
            shown.append(f"{match[1]}  {source}")
    return shown
