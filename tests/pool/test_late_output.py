"""Output that is still under way when the ranks have answered."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable

import pytest

from sciml_kernel.pool import Pool
from sciml_kernel.testing.pool_suite import wait_for

pytestmark = pytest.mark.mpi

Start = Callable[..., Pool]
N_PIECES = 300
SLOW_S = 0.01  # what a reader takes for each: three times the seconds that a call waits where no piece comes at all
CODE = f"for k in range({N_PIECES}):\n    print(k, flush=True)"
WHOLE = "".join(f"{k}\n" for k in range(N_PIECES))


def test_a_call_ends_when_a_slow_reader_has_all_of_its_output(start: Start) -> None:
    read = defaultdict[int, str](str)

    def slow(rank: int, _stream: str, text: str) -> None:
        time.sleep(SLOW_S)
        read[rank] += text

    pool = start(2)
    pool.execute(CODE, on_output=slow)
    assert dict(read) == {0: WHOLE, 1: WHOLE}


def test_an_interrupt_while_only_output_is_awaited_ends_the_call_and_keeps_the_ranks(start: Start) -> None:
    pool = start(2)
    before = list(pool.report()["pid"])
    go_on = threading.Event()
    call = pool._begin("cell", "execute", [CODE], on_output=lambda *_: go_on.wait(SLOW_S) or None)
    wait_for(lambda: len(call._replies) == 2)
    assert not call.done()
    call.interrupt()
    try:
        assert call.wait(1.0)
    finally:
        go_on.set()  # the reader is fast from here on
    assert call.result() == [None, None]
    assert pool.state == "ready"
    assert list(pool.report()["pid"]) == before
