"""Output of ranks as lines."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from sciml_kernel.jupyter.rank_output import Limits, RankPrinter


def test_lines_of_two_ranks_never_mix(capsys: pytest.CaptureFixture[str]) -> None:
    printer = RankPrinter(2)
    for rank, stream, text in [
        (0, "stdout", "one "),
        (1, "stdout", "other\nsecond"),
        (0, "stdout", "line\n"),
        (1, "result", "42"),
        (0, "stdout", "10%\r50%\r100%\n"),
        (0, "stderr", "no end"),
    ]:
        printer.text(rank, stream, text)
    printer.close()
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "[rank 1] other",
        "[rank 0] one line",
        "[rank 1] second",
        "[rank 1] 42",
        "[rank 0] 100%",
    ]
    assert printed.err == "[rank 0] no end\n"


def printed_by(ranks: int, pieces: list[tuple[int, str, str]], capsys: pytest.CaptureFixture[str]) -> list[str]:
    with RankPrinter(ranks, live=False) as printer:
        for piece in pieces:
            printer.text(*piece)
    return capsys.readouterr().out.splitlines()


def heard(lines: list[str], rank: int) -> list[str]:
    """What this rank says in lines that carry labels such as [ranks 0,2-3]."""
    found = []
    for line in lines:
        match = re.match(r"\[ranks? ([\d,-]+)\] ?(.*)", line)
        assert match, line
        named = set[int]()
        for part in match[1].split(","):
            first, _, last = part.partition("-")
            named |= {*range(int(first), int(last or first) + 1)}
        if rank in named:
            found.append(match[2])
    return found


@pytest.mark.parametrize("seed", range(10))
def test_each_rank_says_what_it_said_in_its_order_however_pieces_come(
    seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some lines are said by all ranks, some by one; each text is cut anywhere and the ranks take turns at random."""
    source = random.Random(seed)
    said = {r: [source.choice(["same", f"own {r}", "", f"line {k}"]) for k in range(40)] for r in range(4)}
    queues = {}
    for rank, lines in said.items():
        text = "".join(line + "\n" for line in lines)
        cuts = sorted(source.sample(range(1, len(text)), 25))
        queues[rank] = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    pieces = []
    while queues:
        rank = source.choice([*queues])
        pieces.append((rank, "stdout", queues[rank].pop(0)))
        if not queues[rank]:
            del queues[rank]
    lines = printed_by(4, pieces, capsys)
    assert {rank: heard(lines, rank) for rank in said} == said


def test_what_all_ranks_say_at_once_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed_by(64, [(rank, "stdout", "epoch 1\n") for rank in range(64)], capsys)
    assert [heard(lines, rank) for rank in range(64)] == [["epoch 1"]] * 64
    assert len(lines) < 8  # one, unless the machine was busy for a while between two of them


def test_of_a_flood_head_tail_and_count_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    limits = Limits.of(1)
    lines = printed_by(1, [(0, "stdout", f"{k}\n") for k in range(10_000)], capsys)
    head = [f"[rank 0] {k}" for k in range(limits.head_lines)]
    tail = [f"[rank 0] {k}" for k in range(10_000 - limits.tail_lines, 10_000)]
    n_left_out = 10_000 - limits.head_lines - limits.tail_lines
    assert lines == [*head, f"[rank 0] ... {n_left_out:,} lines left out; pool.logs(0) has them ...", *tail]


def test_a_flood_of_64_ranks_is_as_small_as_that_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    pieces = [(rank, "stdout", f"rank {rank} line {k} {'x' * 80}\n") for k in range(1_000) for rank in range(64)]
    lines = printed_by(64, pieces, capsys)
    assert sum(map(len, lines)) < 250_000
    for rank in range(64):
        said = heard(lines, rank)
        assert said[0].startswith(f"rank {rank} line 0 ")
        assert said[-1].startswith(f"rank {rank} line 999 ")


def test_a_long_line_is_cut_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = printed_by(1, [(0, "stdout", "y" * 1_000_000 + "\n")], capsys)
    assert line == f"[rank 0] {'y' * 10_000} ... 990,000 characters left out ..."


def test_an_error_stream_keeps_its_place_and_its_own_limits(capsys: pytest.CaptureFixture[str]) -> None:
    with RankPrinter(1, live=False) as printer:
        printer.text(0, "stdout", "".join(f"{k}\n" for k in range(5_000)))
        printer.text(0, "stderr", "warning\n")
    assert capsys.readouterr().err == "[rank 0] warning\n"


def test_after_its_end_a_printer_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    printer = RankPrinter(1, live=False)
    printer.text(0, "stdout", "before\n")
    printer.close()
    printer.text(0, "stdout", "after\n")
    printer.close()
    assert capsys.readouterr().out == "[rank 0] before\n"
