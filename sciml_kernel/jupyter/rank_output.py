"""What `%%ranks` prints: lines of ranks, labelled, as they come; a flood, bars and figures bounded.

Each rank's output begins as it is (`Limits`); what comes after that is held back, counted, and its end is printed at
the end of the cell. The pool's log of the rank has all of it. Lines that are not whole yet (progress bars, dots) are
seen in one output that is replaced in place; where there is none (a terminal, a batch run) as a line now and then.
"""

from __future__ import annotations

import contextvars
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from IPython.display import DisplayHandle

from sciml_kernel.jupyter.rank_screen import Screen
from sciml_kernel.views import shown

__all__ = ["Limits", "RankPrinter", "label"]

GATHER_S = 0.03  # lines that several ranks print at the same time are printed once
LIVE_S = 0.25  # between two states of the output that is replaced in place
FIRST_SIGN_S, LAST_SIGN_S = 10.0, 600.0  # without one: a line after 10 s, 20 s, 40 s... at most every 10 min
MOST_LIVE_LINES = 24
MOST_DISPLAYS = 50  # figures and tables of one cell, all ranks together
MOST_DISPLAY_CHARACTERS = 20_000_000
BATCH_VARIABLE = "SCIML_BATCH_LOG"  # see `kernel`


@dataclass(frozen=True)
class Limits:
    """Of each stream of each rank: lines and characters at its beginning and at its end."""

    head_lines: int = 200
    head_characters: int = 50_000
    tail_lines: int = 20
    tail_characters: int = 5_000

    @classmethod
    def of(cls, n: int) -> Limits:
        """The more ranks, the less of each: a notebook of a cell on 64 ranks must stay small."""

        def share(most: int, of_all: int, least: int) -> int:
            return max(least, min(most, of_all // max(1, n)))

        return cls(share(200, 2_000, 20), share(50_000, 100_000, 2_000), share(20, 200, 3), share(5_000, 20_000, 500))


@dataclass(frozen=True)
class _Item:
    """One line of a stream, or something to display."""

    kind: str  # "stdout", "stderr", "display"
    payload: Any


@dataclass
class _Lane:
    """One stream of one rank."""

    limits: Limits
    screen: Screen = field(default_factory=Screen)
    lines: int = 0
    characters: int = 0
    held: int = 0
    tail: deque[str] = field(default_factory=deque)
    tail_characters: int = 0
    begun: float = 0.0  # when the line under way was seen first

    def take(self, line: str) -> bool:
        """Whether it is printed now; else it is held back, and after it all others."""
        limits = self.limits
        self.lines, self.characters = self.lines + 1, self.characters + len(line)
        fits = self.lines <= limits.head_lines and self.characters <= limits.head_characters
        if not self.held and (fits or self.lines == 1):
            return True
        self.held += 1
        self.tail.append(line)
        self.tail_characters += len(line)
        while len(self.tail) > 1 and (
            len(self.tail) > limits.tail_lines or self.tail_characters > limits.tail_characters
        ):
            self.tail_characters -= len(self.tail.popleft())
        return False


class RankPrinter:
    """Takes what ranks print (`text`, in any thread) and display (`display`); prints in a thread of its own until
    `close`. Use it as a context. ranks: how many print. live: show bars and what is held back in an output that is
    replaced; by default where there are such outputs, but not in a batch run, whose log is read as lines."""

    def __init__(self, ranks: int = 1, *, live: bool | None = None) -> None:
        self._limits = Limits.of(ranks)
        self._in_place = shown.can_show() and not os.environ.get(BATCH_VARIABLE) if live is None else live
        self._rich = shown.can_show()
        self._changed = threading.Condition()
        self._lanes: dict[tuple[int, str], _Lane] = {}
        self._queue: list[tuple[int, _Item]] = []
        self._closed = False
        self._displays = _Displays()
        self._live: DisplayHandle | None = None
        self._live_text, self._live_at = "", 0.0
        self._sign_at, self._sign_s = time.monotonic() + FIRST_SIGN_S, FIRST_SIGN_S
        # With the cell's own context, what is printed belongs to this cell and to no later one.
        self._thread = threading.Thread(
            target=contextvars.copy_context().run, args=(self._print,), name="output of ranks", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> RankPrinter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- what arrives -------------------------------------------------------------------------------------------------

    def text(self, rank: int, stream: str, text: str) -> None:
        """Called with every piece that a rank prints. stream: "stdout", "stderr", or "result", a line of its own."""
        with self._changed:
            if self._closed:
                return
            now = time.monotonic()
            if stream == "result":
                self._end_line(rank)
                stream, text = "stdout", text.rstrip("\n") + "\n"
            lane = self._lane(rank, stream)
            lines = lane.screen.write(text, now)
            self._take(rank, stream, lines)
            if not lane.screen.current():
                lane.begun = 0.0
            elif lines or not lane.begun:
                lane.begun = now
            self._changed.notify()

    def display(self, rank: int, content: Mapping[str, Any]) -> None:
        """Called with what a rank displays; content as in `BasePool.execute`."""
        if not self._rich or _is_text(content):
            if content["kind"] in ("execute_result", "display_data"):
                self.text(rank, "result", str(content["data"].get("text/plain", "")))
            return
        with self._changed:
            if self._closed:
                return
            self._end_line(rank)
            self._queue.append((rank, _Item("display", content)))
            self._changed.notify()

    def close(self) -> None:
        """Print what is left: lines that were begun, and of what was held back its count and its end."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            for (rank, stream), lane in sorted(self._lanes.items()):
                self._take(rank, stream, lane.screen.end())
            self._changed.notify()
        self._thread.join()

    def _lane(self, rank: int, stream: str) -> _Lane:
        return self._lanes.setdefault((rank, stream), _Lane(self._limits))

    def _end_line(self, rank: int) -> None:
        self._take(rank, "stdout", self._lane(rank, "stdout").screen.end())

    def _take(self, rank: int, stream: str, lines: Sequence[str]) -> None:
        lane = self._lane(rank, stream)
        self._queue += [(rank, _Item(stream, line)) for line in lines if lane.take(line)]

    # -- the printing thread ------------------------------------------------------------------------------------------

    def _print(self) -> None:
        while True:
            with self._changed:
                if not (self._queue or self._closed):
                    self._changed.wait(LIVE_S if self._pending() else None)
                closed = self._closed
                if not closed:
                    self._changed.wait_for(lambda: self._closed, GATHER_S)
                now = time.monotonic()
                for (rank, stream), lane in list(self._lanes.items()):
                    if lane.screen.restless():
                        self._take(rank, stream, lane.screen.settle(now))
                queue, self._queue = self._queue, []
                live = "" if closed else "\n".join(self._live_lines(now))
            try:
                self._emit(queue)
                self._show_live(live, now, closed)
                if closed:
                    self._write([*self._tails(), *self._displays.left_out()])
            except Exception as error:  # output that can't be printed must not end the cell
                print(f"output of ranks can't be shown: {error!r}", file=sys.__stderr__)
            if closed:
                return

    def _pending(self) -> bool:
        """Whether something is to be done though nothing more arrives."""
        return any(lane.begun or lane.held or lane.screen.restless() for lane in self._lanes.values())

    def _emit(self, queue: list[tuple[int, _Item]]) -> None:
        texts: list[tuple[str, str]] = []
        for ranks, item in _together(queue):
            if item.kind != "display":
                texts.append((item.kind, f"{label(ranks)} {item.payload}".rstrip() + "\n"))
                continue
            self._write(texts)
            texts = []
            self._write(self._displays.show(ranks, item.payload))
        self._write(texts)

    def _write(self, texts: Sequence[tuple[str, str]]) -> None:
        """Write and flush in this order, though a kernel sends its two streams independently."""
        at = 0
        while at < len(texts):
            name, end = texts[at][0], at
            while end < len(texts) and texts[end][0] == name:
                end += 1
            _put(sys.stderr if name == "stderr" else sys.stdout, "".join(text for _, text in texts[at:end]))
            at = end

    def _tails(self) -> Iterator[tuple[str, str]]:
        for (rank, stream), lane in sorted(self._lanes.items()):
            left_out = lane.held - len(lane.tail)
            if left_out:
                plural = "s" if left_out != 1 else ""
                yield (
                    stream,
                    f"[rank {rank}] ... {left_out:,} line{plural} left out; pool.logs({rank}) has them ...\n",
                )
            for line in lane.tail:
                yield stream, f"[rank {rank}] {line}".rstrip() + "\n"

    # -- what is not whole yet ----------------------------------------------------------------------------------------

    def _live_lines(self, now: float) -> list[str]:
        rows: list[tuple[int, _Item]] = []
        for (rank, stream), lane in sorted(self._lanes.items()):
            if lane.held:
                last = f", the last: {lane.tail[-1][:100]}" if lane.tail else ""
                rows.append((rank, _Item(stream, f"... {lane.held:,} lines held back{last}")))
            if lane.begun and now - lane.begun > LIVE_S:
                rows += [(rank, _Item(stream, row[:300])) for row in lane.screen.current()[-8:]]
        lines = [f"{label(ranks)} {item.payload}" for ranks, item in _together(rows)]
        if len(lines) > MOST_LIVE_LINES:
            lines[MOST_LIVE_LINES:] = [f"... and {len(lines) - MOST_LIVE_LINES} more lines of other ranks"]
        return lines

    def _show_live(self, text: str, now: float, closed: bool) -> None:
        if text == self._live_text:
            return
        if not self._in_place:
            if text and now >= self._sign_at:
                self._write([("stdout", text + "\n")])
                self._live_text = text
                self._sign_s = min(2 * self._sign_s, LAST_SIGN_S)
                self._sign_at = now + self._sign_s
            return
        if now - self._live_at < LIVE_S and not closed:
            return
        bundle = {"text/plain": text}
        if self._live is None:
            self._live = DisplayHandle()
            self._live.display(bundle, raw=True)
        else:
            self._live.update(bundle, raw=True)
        self._live_text, self._live_at = text, now


class _Displays:
    """Figures and tables that ranks show, each under its label."""

    def __init__(self) -> None:
        self._handles: dict[tuple[Sequence[int], str], DisplayHandle] = {}
        self._last: dict[int, DisplayHandle] = {}
        self._cleared: set[int] = set()
        self._left = MOST_DISPLAY_CHARACTERS
        self._n = self._n_left_out = 0

    def show(self, ranks: Sequence[int], content: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Display it; return what remains to be printed."""
        kind, bundle = content["kind"], dict(content.get("data", {}))
        if kind == "clear_output":  # the next display takes the place of the last one
            self._cleared |= {*ranks}
            return []
        metadata = dict(content.get("metadata", {}))
        name = (content.get("transient") or {}).get("display_id", "")
        size = sum(len(str(value)) for value in bundle.values())
        earlier = self._handles.get((tuple(ranks), name)) if name else None
        if earlier is None and {*ranks} <= self._cleared:
            earlier = self._last.get(ranks[0])
        self._cleared -= {*ranks}
        if earlier is not None:
            earlier.update(bundle, raw=True, metadata=metadata)
            return []
        if self._n >= MOST_DISPLAYS or size > self._left:
            self._n_left_out += 1
            return []
        self._n, self._left = self._n + 1, self._left - size
        words = str(bundle.get("text/plain", ""))
        words = words if "\n" not in words and len(words) < 100 else ""
        line = f"{label(ranks)} {words}".rstrip() + "\n"
        handle = DisplayHandle()
        _put(sys.stdout, line)
        handle.display(bundle, raw=True, metadata=metadata)
        for rank in ranks:
            self._last[rank] = handle
        if name:
            self._handles[tuple(ranks), name] = handle
        return []

    def left_out(self) -> Iterator[tuple[str, str]]:
        if self._n_left_out:
            yield "stdout", f"... {self._n_left_out:,} figures or tables of ranks left out ...\n"


def _put(stream: Any, text: str) -> None:
    """Not stream.write: IPython puts a method there that keeps a copy of all output of all cells in memory."""
    type(stream).write(stream, text)
    stream.flush()


def label(ranks: Sequence[int]) -> str:
    """ "[rank 2]", "[ranks 0-3]", "[ranks 0,2-3]"."""
    ordered, parts = sorted(ranks), []
    begin = 0
    for at in range(1, len(ordered) + 1):
        if at == len(ordered) or ordered[at] != ordered[at - 1] + 1:
            first, last = ordered[begin], ordered[at - 1]
            parts.append(f"{first}" if first == last else f"{first}-{last}")
            begin = at
    return f"[rank{'s' if len(ordered) > 1 else ''} {','.join(parts)}]"


def _together(queue: Sequence[tuple[int, _Item]]) -> Iterator[tuple[list[int], _Item]]:
    """Items in the order of their arrival; what several ranks say next is said once. No rank's order changes."""
    waiting: dict[int, deque[_Item]] = {}
    for rank, item in queue:
        waiting.setdefault(rank, deque()).append(item)
    taken = dict.fromkeys(waiting, 0)
    seen = dict.fromkeys(waiting, 0)
    for rank, item in queue:
        seen[rank] += 1
        if seen[rank] <= taken[rank]:
            continue  # said with another rank's
        ranks = [other for other, items in waiting.items() if items and items[0] == item]
        for other in ranks:
            waiting[other].popleft()
            taken[other] += 1
        yield sorted(ranks), item


def _is_text(content: Mapping[str, Any]) -> bool:
    """Whether it has no other form than text and stays as it is."""
    named = (content.get("transient") or {}).get("display_id")
    return (
        content["kind"] in ("execute_result", "display_data") and not named and set(content["data"]) <= {"text/plain"}
    )
