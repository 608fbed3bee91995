"""What a terminal would show of one stream of a rank: lines that are done, and rows that are still redrawn.

Progress bars redraw one line (carriage return, backspace), nested ones several (cursor up), rich hides the cursor while
it does so. Of all that only the last state counts. Bounded: a line of any length takes `MOST_CHARACTERS`.
"""

from __future__ import annotations

import re

__all__ = ["MOST_CHARACTERS", "Screen"]

MOST_CHARACTERS = 10_000  # of one line
MOST_ROWS = 60  # that may still be redrawn
QUIET_S = (
    0.5  # a row above the cursor that is left alone for so long is done: nested bars come back within milliseconds
)

_MOVES = re.compile(r"\r(?!\n)|[\b\x0b\x0c]|\x1b(?!\[[0-9;:]*m)")
_STYLE = re.compile(r"\x1b\[([0-9;:]*)m")
_TOKEN = re.compile(
    r"\x1b\[(?P<given>[0-?]*)[ -/]*(?P<final>[@-~])"
    r"|\x1b\][^\x07\x1b]*"
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"
    r"|\x1b[ -/]*[0-~]"
    r"|(?P<control>[\r\n\b])"
)
# An escape sequence that the next text ends, or a carriage return that may belong to a newline.
_CUT = re.compile(r"(?:\r|\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b]{0,500})?)\Z")
_TITLE = re.compile(r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")  # of windows, and the targets of links
_NO_CONTROLS = {code: None for code in [*range(32), 127] if chr(code) not in "\t\x1b"}


class Screen:
    """Takes text as it comes, in pieces of any size. Each line returned is whole, with its own colours."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._begun, self._over = "", 0  # the line under way, while nothing was redrawn
        self._rows: list[_Row] = []  # from the first redraw on
        self._row = self._column = 0
        self._style = ""  # colours that are on
        self._cut = ""
        self._hidden = False  # a program that hides the cursor comes back to its rows, whenever

    def write(self, text: str, now: float) -> list[str]:
        """The lines that this text ends. now: seconds of a monotonic clock."""
        text = self._cut + text
        if "\x1b]" in text:
            text = _TITLE.sub("", text)
        cut = _CUT.search(text, max(0, len(text) - 600))
        self._cut = cut.group() if cut else ""
        text = text[: len(text) - len(self._cut)]
        if not self._rows and not _MOVES.search(text):
            return self._plain(text.replace("\r\n", "\n"))
        if not self._rows:
            self._rows.append(_Row(self._begun, self._over))
            self._column, self._begun, self._over = len(self._rows[0].characters), "", 0
        self._draw(text, now)
        return self.settle(now)

    def settle(self, now: float) -> list[str]:
        """Rows above the cursor that nothing will redraw any more."""
        done = 0
        while done < self._row and (
            self._row - done > MOST_ROWS or (not self._hidden and now - self._rows[done].changed >= QUIET_S)
        ):
            done += 1
        lines = [row.text() for row in self._rows[:done]]
        del self._rows[:done]
        self._row -= done
        return lines

    def end(self) -> list[str]:
        """All that is left; the screen is empty afterwards."""
        lines = self.current()
        self._reset()
        return lines

    def current(self) -> list[str]:
        """What is not done yet: the line under way, or rows that may be redrawn."""
        if not self._rows:
            return [_closed(self._begun) + _left_out(self._over)] if self._begun else []
        lines = [row.text() for row in self._rows]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def restless(self) -> bool:
        """Whether `settle` may find something later."""
        return self._row > 0

    # -- nothing is redrawn -------------------------------------------------------------------------------------------

    def _plain(self, text: str) -> list[str]:
        *ended, rest = text.split("\n")
        lines = []
        for line in ended:
            self._append(line)
            lines.append(_closed(self._begun) + _left_out(self._over))
            self._begun, self._over = self._style, 0
        self._append(rest)
        return lines

    def _append(self, text: str) -> None:
        room = MOST_CHARACTERS - len(self._begun)
        self._over += max(0, len(text) - max(0, room))
        text = text[: max(0, room)]
        if "\x1b" in text:
            self._style = _style(self._style, text)
        self._begun += text.translate(_NO_CONTROLS) if not text.isprintable() else text

    # -- a terminal ---------------------------------------------------------------------------------------------------

    def _draw(self, text: str, now: float) -> None:
        at = 0
        for match in _TOKEN.finditer(text):
            self._put(text[at : match.start()], now)
            at = match.end()
            if match["control"]:
                self._control(match["control"], now)
            elif match["final"]:
                self._command(match["final"], match["given"], match.group(), now)
        self._put(text[at:], now)

    def _put(self, text: str, now: float) -> None:
        text = text.translate(_NO_CONTROLS).replace("\x1b", "")
        if text:
            self._rows[self._row].put(self._column, text, self._style, now)
            self._column += len(text)

    def _control(self, control: str, now: float) -> None:
        if control == "\b":
            self._column = max(0, self._column - 1)
            return
        self._column = 0
        if control == "\n":
            self._rows[self._row].changed = now
            self._row += 1
            if self._row == len(self._rows):
                self._rows.append(_Row())

    def _command(self, final: str, given: str, whole: str, now: float) -> None:
        number = int(given) if given.isdigit() else 0
        row = self._rows[self._row]
        match final:
            case "m":
                self._style = _style(self._style, whole)
            case "A" | "F":
                self._row = max(0, self._row - max(1, number))
                self._column = self._column if final == "A" else 0
            case "B" | "E":
                self._row = min(len(self._rows) - 1, self._row + max(1, number))
                self._column = self._column if final == "B" else 0
            case "C":
                self._column = min(MOST_CHARACTERS, self._column + max(1, number))
            case "D":
                self._column = max(0, self._column - max(1, number))
            case "G":
                self._column = min(MOST_CHARACTERS, max(1, number)) - 1
            case "K":
                row.erase(self._column if number == 0 else 0, self._column if number == 1 else None, now)
            case "J":
                if number:
                    self._rows, self._row, self._column = [_Row()], 0, 0
                else:
                    row.erase(self._column, None, now)
                    del self._rows[self._row + 1 :]
            case "H":
                self._row = self._column = 0
            case "h" | "l" if given == "?25":
                self._hidden = final == "l"
                if not self._hidden:
                    for over in self._rows[: self._row]:
                        over.changed = -QUIET_S


class _Row:
    """Characters with the colours of each."""

    def __init__(self, text: str = "", over: int = 0) -> None:
        self.characters: list[str] = []
        self.styles: list[str] = []
        self.changed, self.over = 0.0, over
        at = 0
        for match in [*_STYLE.finditer(text), None]:
            self._add(text[at : match.start() if match else None], _style("", text[:at]))
            at = match.end() if match else at

    def _add(self, text: str, style: str) -> None:
        self.characters += text
        self.styles += [style] * len(text)

    def put(self, column: int, text: str, style: str, now: float) -> None:
        self.changed = now
        if column == 0:
            self.over = 0
        end = column + len(text)
        if end > MOST_CHARACTERS:
            self.over += end - max(column, MOST_CHARACTERS)
            text = text[: max(0, MOST_CHARACTERS - column)]
            end = column + len(text)
        gap = column - len(self.characters)
        if gap > 0:
            self._add(" " * gap, "")
        self.characters[column:end] = text
        self.styles[column:end] = [style] * len(text)

    def erase(self, begin: int, end: int | None, now: float) -> None:
        self.changed = now
        if end is None:
            del self.characters[begin:], self.styles[begin:]
            self.over = 0
        else:
            self.put(begin, " " * (end - begin), "", now)

    def text(self) -> str:
        """Without the blanks at its end, which only paint over what was there."""
        length = len("".join(self.characters).rstrip())
        parts, style = [], ""
        for character, wanted in zip(self.characters[:length], self.styles, strict=False):
            if wanted != style:
                parts.append(("\x1b[0m" if style else "") + wanted)
                style = wanted
            parts.append(character)
        return "".join(parts) + ("\x1b[0m" if style else "") + _left_out(self.over)


def _style(style: str, text: str) -> str:
    """The colours that are on after this text, as the sequences that switch them on."""
    for match in _STYLE.finditer(text):
        given = match.group(1)
        if given.strip("0") == "" or given.startswith("0;"):
            style = match.group() if ";" in given.strip("0;") or given.strip("0;") else ""
        elif not style.endswith(match.group()):
            style = (style + match.group())[-200:]
            style = style[max(0, style.find("\x1b")) :]
    return style


def _closed(line: str) -> str:
    """With its colours switched off at the end: they would run on into the next label."""
    if "\x1b" not in line:
        return line
    if not _STYLE.sub("", line):
        return ""  # only colours that were on
    return line + "\x1b[0m" if _style("", line) else line


def _left_out(over: int) -> str:
    return f" ... {over:,} characters left out ..." if over else ""
