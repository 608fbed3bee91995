"""What every pool does with a call, whatever its ranks are: `Pool` adds processes, `FakePool` adds threads."""

from __future__ import annotations

import dataclasses
import json
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from sciml_kernel.errors import PoolBusyError, PoolDeadError, PoolTaintedError, UsageError
from sciml_kernel.pool import setups, tables
from sciml_kernel.pool.calls import Call, Link, OnData, OnDisplay, OnOutput
from sciml_kernel.pool.card import Card
from sciml_kernel.pool.health import Health, describe_call
from sciml_kernel.pool.setups import SetUp

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["BasePool"]

INTERRUPT_WAIT_S = 5.0
HELP = "Pool.list() shows all pools; Pool.start(n=...) starts one"


class BasePool(ABC):
    """Runs calls; asks the subclass for the measured state and the way to the ranks."""

    def __init__(self) -> None:
        self._link: Link | None = None
        self._call: Call | None = None
        self._lock = threading.RLock()

    # -- what a subclass knows ----------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def name(self) -> str: ...

    @property
    @abstractmethod
    def id(self) -> str:
        """Differs from every other pool's, also from one that had the same name before; "" once it is stopped."""

    @property
    @abstractmethod
    def n(self) -> int:
        """Ranks; 0 once it is stopped."""

    @abstractmethod
    def measure(self) -> Health:
        """The state, looked up now."""

    @abstractmethod
    def taint(self, generation: int, reason: str) -> None:
        """Have that engine set replaced."""

    @abstractmethod
    def _settle(self, generation: int) -> Health:
        """Wait while the pool starts; return what became of it."""

    @abstractmethod
    def _open_link(self, health: Health) -> Link: ...

    @abstractmethod
    def _replaces(self) -> bool:
        """Whether a tainted engine set is replaced without being asked."""

    @abstractmethod
    def _read_set_ups(self) -> list[SetUp]: ...

    @abstractmethod
    def _write_set_ups(self, cells: list[SetUp]) -> None: ...

    @abstractmethod
    def _claim(self, health: Health) -> Callable[[], None]:
        """Be the one who sends the next call, until the function returned is called. Raises PoolBusyError."""

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """ "queued", "starting", "ready", "busy", "tainted", "dead", "expired" or "stopped"; measured now."""
        return self.health().state

    def health(self) -> Health:
        """The state with its reason, the ranks, who ended how, and what runs."""
        health = self.measure()
        if health.state == "ready" and self._call is not None and not self._call.done():
            # Sent a moment ago: the ranks have not set their marks yet.
            call = describe_call(self._call.name, self._call.since_utc, self._call.ranks)
            return dataclasses.replace(health, state="busy", call=call)
        return health

    def report(self) -> pd.DataFrame:
        """One row a rank: state, host, pid, cores, memory of its host and its own, gpu, versions, last seen, call."""
        return tables.ranks_table(self.health())

    def __reduce__(self) -> Any:
        raise TypeError("a pool is processes, which can't be kept; start it again")

    def __sciml_fingerprint__(self) -> str:
        """What a result may hang on: not which processes they are, but how many."""
        return f"pool of {self.n} ranks"

    def __repr__(self) -> str:
        return tables.one_line(self.name, self.health(), type(self).__name__)

    def _repr_html_(self) -> str:
        return Card(self.name, self.health())._repr_html_()

    # -- run ----------------------------------------------------------------------------------------------------------

    def run(
        self, fn_or_name: Callable[..., Any] | str, *args: Any, timeout: float | None = None, **kwargs: Any
    ) -> list[Any]:
        """Call a function on every rank; return its values by rank.

        fn_or_name: "module:function", which crosses as a name with JSON arguments, or a function object, which
        ipyparallel sends. The first rank that fails ends the call everywhere. While the pool is starting, it waits.

        Raises RemoteError naming rank and host, with the traceback of the rank; PoolBusyError; PoolDeadError naming
        the rank, host and signal; RunTimeoutError after `timeout` seconds; UsageError for arguments that are not JSON.
        """
        if isinstance(fn_or_name, str):
            return self._run(fn_or_name, "call", [fn_or_name, _json(fn_or_name, args, kwargs)], timeout=timeout)
        name = getattr(fn_or_name, "__qualname__", repr(fn_or_name))
        return self._run(name, "call_object", [fn_or_name, args, kwargs], timeout=timeout)

    def submit(
        self, name: str, *args: Any, timeout: float | None = None, publish: OnData | None = None, **kwargs: Any
    ) -> Call:
        """Begin "module:function" with JSON arguments on every rank; return at once.

        timeout: seconds until the call is ended everywhere. publish: called as publish(rank, data) for each
        `publish_data` of a rank that gets through.
        Raises PoolBusyError, PoolDeadError, UsageError.
        """
        return self._begin(name, "call", [name, _json(name, args, kwargs)], timeout=timeout, publish=publish)

    def execute(
        self,
        code: str,
        targets: Sequence[int] | None = None,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
        on_display: OnDisplay | None = None,
    ) -> None:
        """Run a cell on ranks (default: all); its names stay there. on_output(rank, stream, text) gets output live.

        stream: "stdout", "stderr" or "result" (the value of a last expression, or what `display` shows, as text).
        on_display(rank, content) gets the results instead, in every form that they have: content is Jupyter's message
        of the `kind` "execute_result", "display_data", "update_display_data" or "clear_output".

        Both are called in a thread of the pool and must not wait. Raises as `run` does.
        """
        n = self.n
        wrong = [rank for rank in targets or () if not 0 <= rank < n]
        if wrong or (targets is not None and not targets):
            raise UsageError(f"targets {list(targets or ())} can't be used; write ranks from 0 to {n - 1}")
        ranks = sorted(set(targets)) if targets is not None else None
        self._run("cell", "execute", [code], ranks=ranks, timeout=timeout, on_output=on_output, on_display=on_display)

    # -- set-up cells -------------------------------------------------------------------------------------------------

    def set_up(
        self,
        code: str,
        *,
        name: str | None = None,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
        on_display: OnDisplay | None = None,
    ) -> None:
        """Run a cell on all ranks now, and again on every engine set that takes the place of this one.

        A new engine set counts as ready when its set-up cells have run; one that fails there is dead and says which.
        name: a later cell of this name takes its place. The same code is kept once. A cell that fails now is not kept.

        Raises as `execute` does.
        """
        while True:
            generation, begin = self._wait_ready().generation, time.monotonic()
            self.execute(code, timeout=timeout, on_output=on_output, on_display=on_display)
            cell = SetUp(code, name, round(time.monotonic() - begin, 3))
            self._write_set_ups(setups.added(self._read_set_ups(), cell))
            if self.measure().generation == generation:  # else the new set may have started without it
                return

    @property
    def set_ups(self) -> list[str]:
        """Code of the set-up cells, in the order in which they run."""
        return [cell.code for cell in self._read_set_ups()]

    def forget_set_ups(self) -> None:
        """Later engine sets run no set-up cells. What they did on the present ranks stays."""
        self._write_set_ups([])

    def interrupt(self, *, timeout: float = 10.0) -> None:
        """SIGINT to the engine process of each busy rank; return when the ranks have answered.

        Raises PoolBusyError when ranks are still busy after `timeout` seconds (blocked in C code); restart() helps.
        """
        own = self._call if self._call is not None and not self._call.done() else None
        if own is not None:
            own.interrupt()
        reached: set[int] = set()
        deadline = time.monotonic() + timeout
        while (health := self.health()).state == "busy":
            new = set(health.call["ranks"] if health.call else ()) - reached
            if own is None and new:  # a call of another process
                self._connect(health).signal(signal.SIGINT, sorted(new))
                reached |= new
            if time.monotonic() > deadline:
                raise PoolBusyError(
                    f"pool {self.name!r}: rank {health.call and health.call['ranks']} did not answer the interrupt in "
                    f"{timeout:g} s; restart() frees them"
                )
            time.sleep(0.02)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _begin(
        self,
        name: str,
        function: str,
        arguments: Sequence[Any],
        *,
        ranks: Sequence[int] | None = None,
        timeout: float | None = None,
        on_output: OnOutput | None = None,
        on_display: OnDisplay | None = None,
        publish: OnData | None = None,
    ) -> Call:
        with self._lock:
            health = self._wait_ready()
            if health.state == "busy":
                what = health.call["name"] if health.call else "a call"
                raise PoolBusyError(f"pool {self.name!r} is running {what}; wait for it, or interrupt() it")
            link = self._connect(health)
            release = self._claim(health)
            link.hear()
            hosts = {entry["report"]["rank"]: entry["report"]["host"] for entry in health.ranks}
            targets = [*ranks] if ranks is not None else [*range(link.n)]
            call = Call(
                self,
                link,
                name,
                targets,
                hosts=hosts,
                timeout=timeout,
                on_output=on_output,
                on_display=on_display,
                publish=publish,
                on_begun=release,
            )
            self._call = call
            return call.start(function, [*arguments])

    def _run(self, name: str, function: str, arguments: Sequence[Any], **options: Any) -> list[Any]:
        """Begin and wait; a KeyboardInterrupt goes to the ranks and comes back when they have answered."""
        earlier = self._call
        try:
            return self._begin(name, function, arguments, **options).result()
        except KeyboardInterrupt as error:
            call = self._call
            if call is not None and call is not earlier and not call.done():
                try:
                    call.interrupt()
                    answered = call.wait(INTERRUPT_WAIT_S)
                except KeyboardInterrupt:  # a second one is hard
                    answered = call.wait(0.0)
                if not answered:
                    call.abort(f"{call.name} did not answer an interrupt")
                how = "stopped" if answered else "did not answer: new ranks take their place"
                error.add_note(f"rank {', '.join(map(str, call.ranks))} {how}; pool {self.name!r} is {self.state}")
            raise

    def _wait_ready(self) -> Health:
        """Wait while it starts. Raises PoolDeadError for all that can't become ready by itself."""
        health = self.health()
        if health.state == "tainted" and not self._replaces():
            raise PoolTaintedError(
                f"pool {self.name!r} is tainted: {health.reason.splitlines()[0]}; restart() replaces the ranks"
            )
        if health.state in ("queued", "starting", "tainted"):
            health = self._settle(health.generation)
        if health.state not in ("ready", "busy"):
            reason = health.reason or "it was stopped"
            mend = "restart() brings the ranks back" if health.state == "dead" else HELP
            raise PoolDeadError(f"pool {self.name!r} is {health.state}: {reason}; {mend}", exits=health.exits)
        return health

    def _connect(self, health: Health | None = None) -> Link:
        """The link to the present engine set; the one to an earlier set is closed."""
        with self._lock:
            health = health or self._wait_ready()
            if self._link is None or self._link.generation != health.generation:
                self._disconnect()
                self._link = self._open_link(health)
            return self._link

    def _disconnect(self) -> None:
        with self._lock:
            link, self._link = self._link, None
            if link is not None:
                if self._call is not None:
                    self._call.wait(2.0)
                link.close()


def _json(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Arguments as JSON text. Raises UsageError when they are none, or would come out different."""
    if ":" not in name:
        raise UsageError(f"{name!r} names no function; write 'package.module:function'")
    given = {"args": list(args), "kwargs": kwargs}
    try:
        return json.dumps(given)
    except (TypeError, ValueError) as error:
        raise UsageError(f"arguments of {name} must be JSON: {error}; or pass the function itself") from error
