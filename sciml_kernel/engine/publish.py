"""The fast road of the metrics, through ipyparallel's data channel. It may drop; the file is the truth.

The client finds `{"events": [...]}` in the call's data: the newest events, each as `MetricEvent.to_json`. One message
replaces the one before, so each holds the last `_KEPT` events: a reader that looks now and then misses little. What is
reported for each rank does not go this way: it would push the rest out.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from sciml_kernel.contracts import MetricEvent
from sciml_kernel.metrics.names import TRAIN_BUSY_S

__all__ = ["DataPublisher"]

_KEPT = 200


class DataPublisher:
    """A `contracts.Sink` that is silent outside an ipyparallel engine.

    every_s: least time between two messages; what comes between waits for the next message, or for `close`. send and
    clock are for tests.
    """

    def __init__(
        self,
        *,
        every_s: float = 0.5,
        send: Callable[[dict[str, Any]], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send if send is not None else _engine_send()
        self._every_s, self._clock = every_s, clock
        self._events: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._sent_at = -float("inf")
        self._waiting = False

    def publish(self, events: Iterable[MetricEvent]) -> None:
        if self._send is None:
            return
        self._events.extend(event.to_json() for event in events if event.name != TRAIN_BUSY_S)
        self._waiting = True
        if self._clock() - self._sent_at >= self._every_s:
            self._flush()

    def close(self) -> None:
        if self._waiting:
            self._flush()
        self._send = None

    def _flush(self) -> None:
        if self._send is None:
            return
        self._sent_at, self._waiting = self._clock(), False
        with contextlib.suppress(Exception):  # nobody may be looking: never a reason to stop a training
            self._send({"events": list(self._events)})


def _engine_send() -> Callable[[dict[str, Any]], None] | None:
    """ipyparallel's `publish_data` in an engine, else None. A process that never loaded ipykernel is no engine, and
    asking ipykernel for its shell would make one."""
    module = sys.modules.get("ipykernel.zmqshell")
    shell = getattr(module, "ZMQInteractiveShell", None)
    if shell is None or not shell.initialized() or not hasattr(shell.instance(), "data_pub"):
        return None
    from ipyparallel.engine.datapub import publish_data

    send: Callable[[dict[str, Any]], None] = publish_data
    return send
