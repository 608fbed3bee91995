"""The notebook's end of one engine set: an ipyparallel client, and how a request gets to a rank.

Requests go straight through ipyparallel's message futures, because its output callbacks are then in place before the
first message can arrive.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import ipyparallel as ipp
from ipyparallel.serialize import deserialize_object

from sciml_kernel.errors import PoolDeadError
from sciml_kernel.pool.files import read_json
from sciml_kernel.pool.health import measure
from sciml_kernel.pool.spec import PoolDir

__all__ = ["Connection", "RanksMissingError"]

_HEAR_S = 3.0  # to hear a rank's output channel; without it calls still work, only their output may be late
_FIRST_RETRY_S, _LAST_RETRY_S = 0.05, 0.5
_REPORT_S = 0.5  # for the controller's message on a rank that came in the same moment

_SHOWN = ("execute_result", "display_data", "update_display_data", "clear_output")

# What is called on the rank, as names: no code crosses the wire.
_RANK_MODULE = "__import__('sciml_kernel.pool.rank', fromlist=['call'])"


class RanksMissingError(PoolDeadError):
    """The controller answers, but does not know ranks that live: it gave them up when they registered."""


class Connection:
    """Connected to all n ranks of one generation, or not made at all.

    Raises PoolDeadError when the controller does not answer or a rank is lost, RanksMissingError when the controller
    does not know a rank within `timeout_s`.
    """

    def __init__(self, directory: PoolDir, generation: int, n: int, *, timeout_s: float = 10.0) -> None:
        self.generation, self.n = generation, n
        self._heard = False
        deadline = time.monotonic() + timeout_s
        while True:
            self.client: Any = self._client(directory, min(deadline, time.monotonic() + _REPORT_S), timeout_s)
            if len(self.client.ids) >= n:
                return
            health = measure(directory)
            missing = sorted(set(range(n)) - set(self.client.ids))
            self.close()
            if not health.live:
                raise PoolDeadError(f"pool {directory.name!r}: {health.reason}", exits=health.exits)
            if time.monotonic() > deadline:
                raise RanksMissingError(
                    f"pool {directory.name!r}: after {timeout_s:g} s the controller does not know rank "
                    f"{', '.join(map(str, missing))}",
                    exits=health.exits,
                )

    def _client(self, directory: PoolDir, until: float, timeout_s: float) -> Any:
        """A client that knows all ranks, or as many as it was told of until then.

        The controller tells a client which ranks there are when it connects, and of later ones by messages that a new
        client may miss (its subscription takes a moment): then only a new client learns of them.
        """
        try:
            client = ipp.Client(
                str(directory.connection_file(self.generation)),
                ipython_dir=str(directory.generation(self.generation) / "ipython"),
                timeout=timeout_s,
            )
        except (OSError, ValueError, KeyError, TypeError, ipp.error.TimeoutError) as error:
            health = measure(directory)
            file = directory.connection_file(self.generation)
            reason = (
                health.reason or f"its controller does not answer ({type(error).__name__}: {error}); restart() helps"
            )
            if not health.reason and read_json(file) is None:
                reason = f"{file} is missing or truncated; restart() makes a new one"
            raise PoolDeadError(f"pool {directory.name!r} can't be reached: {reason}", exits=health.exits) from error
        while len(client.ids) < self.n and time.monotonic() < until and measure(directory).live:
            time.sleep(0.01)
        return client

    def send(
        self,
        rank: int,
        function: str,
        arguments: list[Any],
        *,
        on_reply: Callable[[int, Any], None],
        on_idle: Callable[[int], None],
        on_text: Callable[[int, str, str], None],
        on_data: Callable[[int, Mapping[str, Any]], None],
        on_display: Callable[[int, Mapping[str, Any]], None],
    ) -> None:
        """Call `pool.rank.<function>(*arguments)` on one rank. The callbacks run in the client's own thread.

        on_reply: (rank, answer), an exception object where ipyparallel had none. on_idle: after the last output.
        """

        def on_published(message: Mapping[str, Any]) -> None:
            content, kind = message["content"], message["header"]["msg_type"]
            self._forget_output(message)
            if kind == "stream":
                on_text(rank, content["name"], content["text"])
            elif kind in _SHOWN:
                on_display(rank, {"kind": kind, **content})
            elif kind == "data_message":
                on_data(rank, deserialize_object(list(message["buffers"]))[0])

        def hook(future: Any) -> None:
            future.iopub_callbacks.append(on_published)
            future.add_done_callback(lambda done: on_reply(rank, _outcome(done)))
            future.output.add_done_callback(lambda _done: on_idle(rank))

        self._request(rank, f"{_RANK_MODULE}.{function}", arguments, hook)

    def _forget_output(self, message: Mapping[str, Any]) -> None:
        """The client would keep all that a rank prints until its call ends, and copy it for every further line."""
        kept = self.client.metadata.get(message["parent_header"]["msg_id"])
        if kept is not None:
            kept.update(stdout="", stderr="", outputs=[], data={}, execute_result=None)

    def hear(self) -> None:
        """Return when the output of every rank arrives here. A subscription takes a moment to reach the ranks, and what
        they print until then is lost: a pool that was just attached to would swallow the first lines.

        Does something before the first call only, while no rank is in one; a rank that does not answer is left to the
        call, which says so better.
        """
        deadline = time.monotonic() + _HEAR_S
        waiting = set(range(self.n)) if not self._heard else set()
        self._heard = True
        patience = _FIRST_RETRY_S
        while waiting and time.monotonic() < deadline:
            asked: list[tuple[int, Any]] = []
            for rank in waiting:
                futures: list[Any] = []
                self._request(rank, "__import__('os').getpid", [], futures.append)
                asked.append((rank, futures[0]))
            retry_at, patience = time.monotonic() + patience, min(2 * patience, _LAST_RETRY_S)
            for rank, future in asked:
                try:
                    future.result(timeout=max(0.0, deadline - time.monotonic()))
                    future.output.result(timeout=max(0.0, retry_at - time.monotonic()))
                except TimeoutError:
                    continue
                except Exception:
                    return
                waiting.discard(rank)

    def _request(self, rank: int, function: str, arguments: list[Any], hook: Callable[[Any], None]) -> None:
        idents, _ = self.client._build_targets(rank)
        self.client.send_apply_request(
            self.client._mux_stream, ipp.Reference(function), arguments, ident=idents[0], message_future_hook=hook
        )
        self.client.history.clear()  # it would grow with every call

    def signal(self, number: int, ranks: list[int]) -> None:
        """Signal the engine process of each rank, one by one, never mpiexec: that would end the job."""
        here = [rank for rank in ranks if rank in self.client.ids]
        if here:
            self.client.send_signal(number, targets=here, block=False)

    def close(self) -> None:
        self.client.close(linger=0)


def _outcome(future: Any) -> Any:
    """The answer of `pool.rank`; where ipyparallel answered for it, an exception or the same kind of mapping."""
    try:
        answer = future.result()
    except BaseException as error:
        return error
    if isinstance(answer, ipp.error.RemoteError) and answer.ename != "EngineError":
        # Raised outside the guard of `pool.rank`, say by an interrupt that came a moment late.
        text = _strip_ansi(answer.traceback or "")
        return {
            "ok": False,
            "type": answer.ename,
            "message": answer.evalue,
            "traceback": text,
            "step": None,
            "exit_code": 130 if answer.ename == "KeyboardInterrupt" else 1,
        }
    return answer


def _strip_ansi(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
