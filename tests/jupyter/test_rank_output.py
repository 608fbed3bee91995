"""Output of ranks as lines."""

from __future__ import annotations

import pytest

from sciml_kernel.jupyter.rank_output import RankPrinter


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
