"""One call on all ranks, as the notebook sees it: first failure first, and an end in every case."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from sciml_kernel.errors import PoolDeadError, RemoteError, RunInterruptedError, RunTimeoutError
from sciml_kernel.pool.files import now_utc
from sciml_kernel.pool.health import Health

__all__ = ["Call", "Link", "Owner", "RankOutput", "remote_error"]

GRACE_S = 0.7  # what the other ranks have, after one failed, to end by themselves
INTERRUPT_GRACE_S = 1.0  # the same after a time limit
HEALTH_S = 0.2
OWED_S = 0.02
QUIET_S = 2.0  # after the answers: as long without output, though more is due, and it counts as lost
KEPT_CHARACTERS = 1_000_000  # of each rank's output; all of it is in logs/rank-<r>.log

OnOutput = Callable[[int, str, str], None]
OnData = Callable[[int, Mapping[str, Any]], None]
OnDisplay = Callable[[int, Mapping[str, Any]], None]  # see `BasePool.execute`


class Owner(Protocol):
    """What a call asks of the pool that it belongs to."""

    @property
    def name(self) -> str: ...

    def measure(self) -> Health: ...

    def taint(self, generation: int, reason: str) -> None:
        """Have the engine set `generation` replaced; no matter if it was already. Never raises for a dead pool."""


class Link(Protocol):
    """The way to the ranks of one engine set: `connection.Connection`, or the threads of a FakePool."""

    generation: int
    n: int

    def hear(self) -> None:
        """Return when output of the ranks arrives; asked while no rank is in a call."""

    def send(
        self,
        rank: int,
        function: str,
        arguments: list[Any],
        *,
        on_reply: Callable[[int, Any], None],
        on_idle: Callable[[int], None],
        on_text: OnOutput,
        on_data: OnData,
        on_display: OnDisplay,
    ) -> None: ...

    def signal(self, number: int, ranks: list[int]) -> None: ...

    def close(self) -> None: ...


class RankOutput:
    """Text that a rank printed, bounded: the middle of a flood is left out and counted."""

    def __init__(self) -> None:
        self._head, self._tail, self._left_out = "", "", 0

    def add(self, text: str) -> None:
        room = KEPT_CHARACTERS // 2 - len(self._head)
        if room > 0 and not self._tail:
            self._head, text = self._head + text[:room], text[room:]
        self._tail += text
        surplus = len(self._tail) - KEPT_CHARACTERS // 2
        if surplus > 0:
            self._tail, self._left_out = self._tail[surplus:], self._left_out + surplus

    def text(self) -> str:
        gap = f"\n... {self._left_out} characters left out; pool.logs(rank) has them ...\n" if self._left_out else ""
        return self._head + gap + self._tail


class Call:
    """A function under way on ranks. A thread of its own watches it, whether or not anybody waits.

    It ends when all ranks have answered; when one failed and the others did not end within `GRACE_S` (the pool is then
    tainted and its engine set replaced); when its time is over; or when the pool is dead.
    """

    def __init__(
        self,
        owner: Owner,
        link: Link,
        name: str,
        ranks: list[int],
        *,
        hosts: Mapping[int, str],
        timeout: float | None = None,
        on_output: OnOutput | None = None,
        on_display: OnDisplay | None = None,
        publish: OnData | None = None,
        on_begun: Callable[[], None] = lambda: None,
    ) -> None:
        self.name, self.ranks, self.since_utc = name, ranks, now_utc()
        self._owner, self._link, self._hosts = owner, link, hosts
        self._timeout, self._on_output, self._on_display, self._publish = timeout, on_output, on_display, publish
        self._changed = threading.Condition()
        self._replies: dict[int, Any] = {}  # by rank, in the order of arrival
        self._idle: set[int] = set()
        self._arrived, self._enough = 0, False  # pieces of output; whether the rest of it is not waited for
        self._text = {rank: RankOutput() for rank in ranks}
        self._data: dict[int, Mapping[str, Any]] = {}
        self._owed: set[int] = set()  # ranks that an interrupt has not reached yet
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._aborted = ""  # why an interrupt had to take the ranks with it
        self._on_begun, self._begun = on_begun, False

    def start(self, function: str, arguments: list[Any]) -> Call:
        """Send it and watch it, both in the call's own thread: a KeyboardInterrupt here can't leave it half sent."""
        watch = threading.Thread(
            target=self._watch, args=(function, arguments), name=f"pool call {self.name}", daemon=True
        )
        watch.start()
        return self

    def _send(self, function: str, arguments: list[Any]) -> None:
        for rank in self.ranks:
            self._link.send(
                rank,
                function,
                arguments,
                on_reply=self._take_reply,
                on_idle=self._take_idle,
                on_text=self._take_text,
                on_data=self._take_data,
                on_display=self._take_display,
            )

    # -- what the caller asks -----------------------------------------------------------------------------------------

    def done(self) -> bool:
        return self._over.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Whether the call was over within `timeout` seconds. Never raises for a failed call."""
        return self._over.wait(timeout)

    def result(self) -> list[Any]:
        """Return values by rank. Raises as soon as it is known: RemoteError, PoolDeadError, RunTimeoutError, or
        RunInterruptedError where an interrupt had to take the ranks with it."""
        self._over.wait()
        if self._error is not None:
            raise self._error
        return [self._replies[rank]["value"] for rank in self.ranks]

    def interrupt(self) -> None:
        """Send SIGINT once to each rank that has not answered, rank by rank; `wait` for the answers.

        A rank that has not begun yet would ignore it: it gets it as soon as it has. Where all have answered, what they
        printed and is still under way is not waited for any more.
        """
        with self._changed:
            self._owed = {rank for rank in self.ranks if rank not in self._replies}
            self._enough = not self._owed  # only output is still awaited
            self._changed.notify_all()
        self._deliver_interrupt()

    def _deliver_interrupt(self) -> None:
        call = self._owner.measure().call if self._owed else None
        with self._changed:
            ranks = sorted(self._owed & set(call["ranks"] if call else []) - set(self._replies))
            self._owed -= {*ranks, *self._replies}
        if ranks:
            self._link.signal(signal.SIGINT, ranks)

    def abort(self, reason: str) -> None:
        """A second, hard interrupt: ranks that do not answer it at once lose their engine set."""
        self.interrupt()
        if not self.wait(INTERRUPT_GRACE_S):
            self._aborted = reason
            self._taint(reason)
            self.wait(INTERRUPT_GRACE_S)

    def data(self, rank: int = 0) -> Mapping[str, Any]:
        """What that rank published last with `publish_data`; {} before the first. May skip some: the fast road."""
        return self._data.get(rank, {})

    def outputs(self) -> dict[int, str]:
        """What each rank printed so far (stdout and stderr in order)."""
        with self._changed:
            return {rank: output.text() for rank, output in self._text.items()}

    # -- what arrives, in the client's thread -------------------------------------------------------------------------

    def _take_reply(self, rank: int, answer: Any) -> None:
        if isinstance(answer, str):
            answer = json.loads(answer)
        with self._changed:
            self._replies[rank] = answer
            self._changed.notify_all()

    def _take_idle(self, rank: int) -> None:
        with self._changed:
            self._idle.add(rank)
            self._changed.notify_all()

    def _take_text(self, rank: int, stream: str, text: str) -> None:
        with self._changed:
            self._text[rank].add(text)
            self._arrived += 1
        if self._on_output is not None:
            self._on_output(rank, stream, text)

    def _take_display(self, rank: int, content: Mapping[str, Any]) -> None:
        text = str(content.get("data", {}).get("text/plain", "")) + "\n"
        if self._on_display is None:
            if content["kind"] in ("execute_result", "display_data"):
                self._take_text(rank, "result", text)
            return
        with self._changed:
            self._text[rank].add(text)
            self._arrived += 1
        self._on_display(rank, content)

    def _take_data(self, rank: int, data: Mapping[str, Any]) -> None:
        self._data[rank] = data
        if self._publish is not None:
            self._publish(rank, data)

    # -- the watch ----------------------------------------------------------------------------------------------------

    def _watch(self, function: str, arguments: list[Any]) -> None:
        try:
            self._send(function, arguments)
            self._error = self._outcome()
            if isinstance(self._error, RemoteError | None):
                self._take_last_lines()
        except BaseException as error:
            self._error = error
        finally:
            self._on_begun()
            self._over.set()

    def _take_last_lines(self) -> None:
        """A rank's answer overtakes what it printed: take all of that, unless none comes though more is due."""
        arrived = -1
        while arrived != self._arrived:
            arrived = self._arrived
            if self._wait_until(lambda: self._enough or len(self._idle) >= len(self._replies), QUIET_S):
                return

    def _outcome(self) -> BaseException | None:
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        while True:
            self._wait_until(self._settled, OWED_S if self._owed or not self._begun else HEALTH_S)
            self._deliver_interrupt()
            failed = self._first_failure()
            if failed is not None:
                return self._fail(failed)
            if len(self._replies) == len(self.ranks):
                return None
            health = self._owner.measure()
            if not self._begun and {*self.ranks} <= {*self._replies, *(health.call["ranks"] if health.call else ())}:
                self._begun = True  # all ranks show that they are busy: no other process can take them for idle
                self._on_begun()
            if not health.live or health.state == "tainted" or health.generation != self._link.generation:
                return self._lost(health)
            if deadline is not None and time.monotonic() > deadline:
                return self._out_of_time()

    def _settled(self) -> bool:
        return len(self._replies) == len(self.ranks) or self._first_failure() is not None

    def _first_failure(self) -> int | None:
        for rank, answer in list(self._replies.items()):
            if not (isinstance(answer, dict) and answer.get("ok")):
                return rank
        return None

    def _wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(condition, timeout_s)

    def _all_answer(self, timeout_s: float) -> bool:
        """Whether all ranks have answered within that time; an interrupt under way goes on meanwhile."""
        deadline = time.monotonic() + timeout_s
        while len(self._replies) < len(self.ranks):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._deliver_interrupt()
            self._wait_until(lambda: len(self._replies) == len(self.ranks), min(left, OWED_S if self._owed else left))
        return True

    def _fail(self, rank: int) -> BaseException:
        """A rank failed: give the others a moment, else have the engine set replaced. Its error comes first."""
        answer = self._replies[rank]
        if not isinstance(answer, dict):  # ipyparallel's own error: the engine is gone, or the answer was no answer
            return self._no_answer(rank, answer)
        error = remote_error(rank, self._hosts.get(rank), answer)
        if self._all_answer(GRACE_S):
            others = [other for other, reply in self._replies.items() if other != rank and not _ok(reply)]
            if others:
                error.add_note(f"also failed: rank {', '.join(map(str, sorted(others)))}")
        else:
            waiting = sorted(set(self.ranks) - set(self._replies))
            error.add_note(f"rank {', '.join(map(str, waiting))} did not end; the engine set is being replaced")
        gone = [other for other, reply in self._replies.items() if _engine_died(reply)]
        if gone or not self._owner.measure().live:  # it failed because another was lost: that comes first
            lost = self._no_answer(gone[0] if gone else rank, self._replies[gone[0]] if gone else answer)
            lost.add_note(f"then {error}")
            return lost
        spent = [other for other, reply in self._replies.items() if isinstance(reply, dict) and reply.get("spent")]
        if spent and len(self._replies) == len(self.ranks):
            error.add_note("no collective works in these processes any more; the engine set is being replaced")
        if spent or len(self._replies) < len(self.ranks):
            self._taint(str(error))
        return error

    def _no_answer(self, rank: int, answer: Any) -> BaseException:
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline:
            health = self._owner.measure()
            if not health.live or health.generation != self._link.generation:
                return self._lost(health)
            if not _engine_died(answer):
                break
            time.sleep(0.02)
        self._taint(f"rank {rank} gave no answer: {answer}")
        return PoolDeadError(f"rank {rank} @ {self._hosts.get(rank)} gave no answer: {answer}")

    def _lost(self, health: Health) -> BaseException:
        if health.live and self._aborted:
            return RunInterruptedError(f"{self._aborted}; the engine set was replaced")
        if health.live:
            reason = health.reason or "the engine set was replaced"
            return PoolDeadError(f"{self.name} was ended: {reason}", exits=health.exits)
        reason = health.reason or f"pool {self._owner.name!r} was stopped"
        return PoolDeadError(f"pool {self._owner.name!r} is {health.state}: {reason}", exits=health.exits)

    def _out_of_time(self) -> BaseException:
        self.interrupt()
        done = sorted(self._replies)
        if not self._all_answer(INTERRUPT_GRACE_S):
            self._taint(f"{self.name} ran longer than {self._timeout:g} s")
        text = f"rank {', '.join(map(str, done))} had answered" if done else "no rank had answered"
        return RunTimeoutError(f"{self.name} was ended after {self._timeout:g} s; {text}")

    def _taint(self, reason: str) -> None:
        self._owner.taint(self._link.generation, reason)


def remote_error(rank: int, host: str | None, answer: Mapping[str, Any]) -> RemoteError:
    """The error of a rank, with the traceback that it had there."""
    error = RemoteError(
        type_name=answer["type"],
        message=answer["message"],
        rank=rank,
        host=host,
        step=answer["step"],
        traceback=answer["traceback"],
        exit_code=answer["exit_code"],
    )
    error.add_note(f"--- traceback on rank {rank}\n{answer['traceback']}".rstrip())
    return error


def _ok(answer: Any) -> bool:
    return isinstance(answer, dict) and bool(answer.get("ok"))


def _engine_died(answer: Any) -> bool:
    """Whether ipyparallel says so; its classes are not imported here, `connection` is the door."""
    return getattr(answer, "ename", type(answer).__name__) == "EngineError"
