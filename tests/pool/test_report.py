"""What one sees of a pool: one row a rank, the card, the list; measured, readable and never wrong about now."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sciml_kernel.contracts import RankExit, RankReport
from sciml_kernel.pool import FakePool, Pool
from sciml_kernel.pool.card import _LOOK, SHOWN_RANKS, Card
from sciml_kernel.pool.files import read_json, write_json
from sciml_kernel.pool.health import Health, describe_call, measure
from sciml_kernel.pool.processes import ProcessId
from sciml_kernel.pool.spec import STATES, PoolDir
from sciml_kernel.pool.tables import moment, one_line, rank_rows, ranks_table, span
from sciml_kernel.testing.pool_suite import HERE, wait_for

Start = Callable[..., Pool]


def utc(seconds_ago: float) -> str:
    at = datetime.now(UTC) - timedelta(seconds=seconds_ago)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def rank(number: int, *, host: str | None = None, n: int = 2) -> dict[str, Any]:
    """A rank that this process stands for, or one on another host."""
    process = ProcessId.of(os.getpid()) if host is None else ProcessId(4000 + number, 1, host)
    versions = {"python": "3.11", "numpy": "2"}
    report = RankReport(number, n, process.host, process.pid, 2, 16.0, "", versions, "MPICH", utc(100))
    return {"engine_id": number, "process": process.to_json(), "report": report.to_json()}


def health(state: str = "ready", **changes: Any) -> Health:
    ranks = [rank(0), rank(1)]
    return dataclasses.replace(Health(state, generation=1, n=2, ranks=ranks, n_here=2, seen_utc=utc(1.5)), **changes)


def text_of(html: str) -> str:
    return re.sub(r"<[^>]*>", "|", html)


# -- ranks ------------------------------------------------------------------------------------------------------------


def test_memory_used_is_what_the_kernel_says_of_the_process() -> None:
    (used, _) = ranks_table(health())["memory_used_gib"]
    status = Path("/proc/self/status").read_text()
    rss_kib = int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1))  # type: ignore[union-attr]
    assert used == pytest.approx(rss_kib / 2**20, rel=0.2)


def test_a_rank_elsewhere_is_reported_with_the_age_of_the_report_and_without_invented_memory() -> None:
    rows = rank_rows(health(ranks=[rank(0), rank(1, host="nid0012")]))
    assert (rows[0]["state"], rows[0]["last_seen_s"]) == ("alive", 0.0)
    assert (rows[1]["state"], rows[1]["memory_used_gib"]) == ("reported", None)
    assert rows[1]["last_seen_s"] == pytest.approx(1.5, abs=0.5)  # the keeper's last sign
    dead = rank_rows(health("dead", ranks=[rank(1, host="nid0012")]))
    assert dead[0]["state"] == "unknown"
    assert dead[0]["last_seen_s"] == pytest.approx(100.0, abs=1.0)  # what the rank said itself
    stop = {"rank": 1, "host": "nid0012", "pid": 4001, "signal": "SIGSTOP", "since_utc": utc(1)}
    assert rank_rows(health(ranks=[rank(1, host="nid0012")], stops=[stop]))[0]["state"] == "suspended"


def test_the_rank_that_ended_is_named_by_its_signal_or_exit_code() -> None:
    exits = [RankExit(1, "vm", 7, None, "SIGKILL", utc(3)).to_json(), RankExit(0, "vm", 8, 7, None, utc(2)).to_json()]
    rows = rank_rows(health("dead", exits=exits))
    assert [row["state"] for row in rows] == ["exit 7", "SIGKILL"]
    assert rows[1]["last_seen_s"] == pytest.approx(3.0, abs=0.5)


def test_what_each_rank_runs_is_in_its_row() -> None:
    marks = [{"rank": 1, "name": "m:f", "since_utc": utc(65)}]
    call = describe_call("m:f", utc(65), [1])
    now = health("busy", marks=marks, call=call)
    assert [row["call"] for row in rank_rows(now)] == ["", "m:f"]
    assert "running m:f for 1 min 05 s" in one_line("p", now)
    words = text_of(Card("p", now)._repr_html_())
    assert "|f, 1 min 05 s|" in words
    assert "|idle|" in words
    assert "; rank 1|" in words  # only that one is busy


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59.6, "1 min"), (185, "3 min 05 s"), (7620, "2 h 07 min"), (3600, "1 h"), (356400, "4 d 03 h")],
)
def test_lengths_of_time_are_for_people(seconds: float, words: str) -> None:
    assert span(seconds) == words


def test_a_time_is_in_utc_with_its_day() -> None:
    assert moment("2026-12-01T12:34:56.700000Z") == "12:34:56 UTC, 2026-12-01"


# -- the card ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
def test_every_state_has_a_word_a_sign_and_a_readable_colour(state: str) -> None:
    symbol, colour = _LOOK[state]
    html = Card("p", health(state))._repr_html_()
    assert f"{symbol} {state}</span>" in html
    # WCAG 2.1, 1.4.3: contrast of white text on the colour, at least 4.5.
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    assert 1.05 / (luminance + 0.05) >= 4.5


def test_signs_differ_between_states() -> None:
    signs = [_LOOK[state][0] for state in STATES]
    assert len(set(signs)) == len(signs)


def test_nothing_of_a_pool_becomes_markup() -> None:
    nasty = "<script>alert(1)</script>' onload='x\" & `<img src=x>`\n<b>more</b>"
    ranks = [rank(0, host=nasty)]
    mark = {"rank": 0, "name": nasty, "since_utc": utc(1)}
    users = [{"pid": 1, "host": nasty, "start_ticks": 1}]
    now = health("busy", reason=nasty, ranks=ranks, marks=[mark], call=describe_call(nasty, utc(1), [0]), users=users)
    card = Card(nasty, now, note=nasty)
    html = card._repr_html_()
    allowed = {"div", "span", "table", "thead", "tbody", "tr", "th", "td", "code", "pre"}
    tags = re.findall(r"<(/?)(\w+)([^>]*)>", html)
    assert {name for _, name, _ in tags} <= allowed
    assert all(re.fullmatch(r"( (style|colspan)='[^'<>]*')*", attributes) for _, _, attributes in tags)
    assert html.count("<") == len(tags)
    assert "&lt;script&gt;" in html
    assert "<script>alert(1)</script>" in str(card)  # text is text


def test_the_card_says_when_it_was_measured_and_how_to_mend() -> None:
    dead = health("dead", reason="rank 1 @ vm (pid 7) was ended by SIGKILL", measured_utc="2026-12-01T12:34:56.7Z")
    dead = dataclasses.replace(dead, exits=[RankExit(1, "vm", 7, None, "SIGKILL", utc(3)).to_json()])
    card = Card("p", dead)
    for words in (str(card), text_of(card._repr_html_())):
        assert "measured at 12:34:56 UTC, 2026-12-01" in words
        assert "rank 1 @ vm (pid 7) was ended by SIGKILL" in words
        assert "pool.restart()" in words
        assert "pool.logs(1)" in words


def test_time_left_is_said_for_each_kind_of_end() -> None:
    def left(**changes: Any) -> str:
        return dict(Card("p", health(**changes)).facts())["time left"]

    assert left() == "no limit"
    assert left(ttl_s=3600.0) == "ends 1 h after its last use"
    assert left(ttl_s=3600.0, expires_s=59.0) == "ends in 59 s unless it is used"
    assert re.fullmatch(r"the allocation ends at .* UTC, .* \(in (29 min 5\d s|30 min)\)", left(ends_utc=utc(-1800)))


def test_a_long_reason_and_many_ranks_are_bounded_and_the_rest_is_counted() -> None:
    ranks = [rank(number, n=100) for number in range(100)]
    stop = {"rank": 77, "signal": "SIGSTOP"}
    exits = [RankExit(77, "vm", 7, None, "SIGKILL", utc(3)).to_json()]
    many = health("dead", n=100, ranks=ranks, exits=exits, stops=[stop], reason="\n".join(map(str, range(500))))
    card = Card("p", many)
    assert card._repr_html_().count("<tr") < SHOWN_RANKS + 5
    for words in (str(card), card._repr_html_()):
        assert "SIGKILL" in words  # the one that matters is among those shown
        assert f"and {100 - SHOWN_RANKS} more ranks" in words
        assert "488 more lines" in words
    assert len(ranks_table(many)) == 100


def test_a_starting_pool_says_how_many_are_here_and_a_tainted_one_who_replaces_them() -> None:
    starting = health("starting", n=4, ranks=[], n_here=3)
    assert "; 3 of 4 ranks are here" in one_line("p", starting)
    assert dict(Card("p", starting).facts())["ranks"] == "3 of 4 are here"
    assert "being replaced" in dict(Card("p", health("tainted")).facts())["to mend"]
    assert "pool.restart()" in dict(Card("p", health("tainted", replaces=False)).facts())["to mend"]


@pytest.mark.parametrize(
    "content",
    [
        {"ranks": [{"engine_id": 0}]},
        {"ranks": [{"report": {"rank": 0}, "process": None}]},
        {"exits": [{"rank": "one"}]},
        {"ranks": None},
        {"users": [{"pid": "x"}]},
    ],
)
def test_a_file_with_anything_in_it_is_a_dead_pool_with_a_card(content: dict[str, Any]) -> None:
    directory = PoolDir.named("p")
    directory.create()  # removed here in every case: what ends a pool would end its keeper, which is this process
    whole = {"state": "ready", "reason": "", "generation": 1, "n": 1, "ranks": [], "exits": []}
    keeper = ProcessId.of(os.getpid()).to_json()
    write_json(directory.state_path, {**whole, "keeper": keeper, **content})
    try:
        pool = Pool(directory)
        assert measure(directory).state == "dead"
        assert "not of this version" in pool._repr_html_()
        assert "dead" in repr(pool)
        assert len(pool.report()) == 0
        assert repr(pool.report()) == "no ranks"
    finally:
        directory.remove()


# -- pools without processes ------------------------------------------------------------------------------------------


def test_a_fake_pool_shows_the_same() -> None:
    pool = FakePool.start(2)
    assert repr(pool).startswith("<FakePool 'fake': ready; 2 ranks on ")
    assert list(pool.report()["state"]) == ["alive", "alive"]
    call = pool.submit(f"{HERE}:sleep", 30)
    wait_for(lambda: pool.measure().state == "busy")
    assert f"{HERE}:sleep" in pool._repr_html_()
    assert list(pool.report()["call"]) == [f"{HERE}:sleep"] * 2
    pool.interrupt()
    assert call.wait(5.0)
    pool.lose_rank(1)
    assert list(pool.report()["state"]) == ["alive", "SIGKILL"]
    assert "SIGKILL" in pool._repr_html_()
    pool.stop()
    assert "stopped" in pool._repr_html_()
    assert len(pool.report()) == 0


def test_the_tables_are_data_frames_that_show_all_of_a_reason() -> None:
    directory = PoolDir.named("p")
    directory.create()
    directory.state_path.write_text("{")
    table = Pool.list()
    assert list(table["state"]) == ["dead"]
    reason = str(table.loc[0, "reason"])
    assert len(reason) > 60  # pandas would cut it
    assert reason in repr(table)
    assert reason in table._repr_html_()
    assert "✖" in table._repr_html_()
    assert "measured at" in repr(table)
    assert type(table[["name"]]).__name__ == "DataFrame"
    directory.remove()
    assert "no pools" in repr(Pool.list())


# -- real ranks -------------------------------------------------------------------------------------------------------


@pytest.mark.mpi
def test_a_real_pool_tells_its_users_its_times_and_its_end(start: Start) -> None:
    before = utc(0)
    pool = start(2, ttl_s=100.0)
    now = pool.health()
    assert [user["pid"] for user in now.users] == [os.getpid()]
    assert (now.ttl_s, now.expires_s, now.ends_utc) == (100.0, None, None)
    assert before < now.started_utc < now.ready_utc < now.measured_utc
    assert all(0.01 < used < 5 for used in pool.report()["memory_used_gib"])
    call = pool.submit(f"{HERE}:sleep", 30)
    wait_for(lambda: len(pool.health().marks) == 2)
    first = pool.health().call
    assert first is not None
    wait_for(lambda: (pool.health().call or {}).get("elapsed_s", 0) > first["elapsed_s"] + 0.2)
    assert f"{HERE}:sleep" in pool._repr_html_()
    assert [name.rpartition(":")[2] for name in pool.report()["call"]] == ["sleep", "sleep"]
    pool.interrupt()
    assert call.wait(5.0)
    pid = int(pool.report().loc[1, "pid"])
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: pool.state == "dead", 2.0)
    host = ProcessId.of(os.getpid()).host
    for words in (pool._repr_html_(), repr(pool)):
        assert f"rank 1 @ {host} (pid {pid}) was ended by SIGKILL" in words
    assert pool.report().loc[1, "state"] == "SIGKILL"
    assert "pool.restart()" in pool._repr_html_()


@pytest.mark.mpi
def test_a_suspended_rank_is_seen_at_once_and_named_when_it_is_given_up(start: Start) -> None:
    pool = start(2)
    pid = int(pool.report().loc[0, "pid"])
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: pool.report().loc[0, "state"] == "suspended", 1.0)
    assert "suspended" in pool._repr_html_()
    wait_for(lambda: pool.state == "dead", 5.0)
    assert "SIGSTOP" in pool._repr_html_()
    wait_for(lambda: pool.report().loc[0, "state"] == "SIGSTOP", 5.0)  # when its process is gone too


@pytest.mark.mpi
def test_time_to_live_runs_while_nobody_uses_it_and_looking_is_no_use() -> None:
    code = "import sciml_kernel as sk; print(sk.Pool.start(1, keep=True, ttl_s=60.0).name)"
    name = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    pool = Pool.find(name)
    wait_for(lambda: pool.health().expires_s is not None)
    left = pool.health().expires_s
    assert left is not None
    assert left <= 60.0
    wait_for(lambda: (pool.health().expires_s or 60.0) < left - 0.5)  # nobody renews it by looking
    assert "unless it is used" in pool._repr_html_()
    program = str(Path(sys.executable).with_name("sciml"))
    said = subprocess.run([program, "pool", "status", name, "--json"], capture_output=True, text=True, check=True)
    facts = json.loads(said.stdout)
    assert facts["expires_s"] < left
    assert facts["users"] == []
    assert [row["state"] for row in facts["ranks"]] == ["alive"]
    written = (pool.path / "pool.json").stat().st_ino
    time_seen = pool.health().seen_utc
    wait_for(lambda: pool.health().seen_utc > time_seen, 5.0)  # the keeper gives signs of life ...
    assert (pool.path / "pool.json").stat().st_ino == written  # ... without writing the file anew
    Pool.attach(name)
    wait_for(lambda: [user["pid"] for user in pool.health().users] == [os.getpid()], 2.0)
    assert pool.health().expires_s is None
    assert (read_json(pool.path / "pool.json") or {})["idle_since_utc"] is None
    begin = time.monotonic()
    for _ in range(20):
        pool.health()
    assert time.monotonic() - begin < 1.0
    pool.stop()
