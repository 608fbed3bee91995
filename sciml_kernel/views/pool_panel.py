"""`LivePool`: the card of a pool, renewed in place while somebody may look at it.

It measures; what it shows is never remembered. What stays in a saved notebook is the card of the last moment, with the
time at which it was true.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from sciml_kernel.pool.card import Card
from sciml_kernel.pool.health import Health
from sciml_kernel.pool.tables import rank_rows, span
from sciml_kernel.views.shown import Shown, can_show

if TYPE_CHECKING:
    from sciml_kernel.pool.base import BasePool

__all__ = ["LivePool", "watch"]

log = logging.getLogger(__name__)

LOOK_S = 0.5
RENEW_S = 15.0  # without a change
RENEW_BUSY_S = 5.0  # the same while a call runs: its elapsed time is shown
QUIET_S = 3600.0
_MOVING = ("queued", "starting", "busy", "tainted")  # in these it is waited for a change, however long it takes

_live: weakref.WeakSet[LivePool] = weakref.WeakSet()


def watch(pool: BasePool | str | None = None) -> LivePool:
    """Show a pool and keep what is shown true, until it is stopped. pool: one, its name, or the newest live one.

    In a notebook the card is renewed in place; at a terminal and in a batch run it is said once. To watch is not to
    use: the pool's time to live runs on. Raises NotFoundError when there is no such pool.
    """
    if pool is None or isinstance(pool, str):
        from sciml_kernel.pool import Pool

        pool = Pool.find(pool)
    return LivePool(pool)


class LivePool(Shown):
    """The card of a pool that goes on.

    look_s: the pool is looked at this often. It is shown anew when something changed, and each renew_s (renew_busy_s
    while a call runs) for the times in it. quiet_s: it ends after this time without a change, unless a call runs or the
    pool starts. It ends too when the pool is stopped, after `close()`, with this process, and when the same pool is
    watched once more, which then goes on in the later cell.

    Made, it shows itself at once and goes on in a thread of its own. A pool that can't be looked at is logged and tried
    again.
    """

    def __init__(
        self,
        pool: BasePool,
        *,
        look_s: float = LOOK_S,
        renew_s: float = RENEW_S,
        renew_busy_s: float = RENEW_BUSY_S,
        quiet_s: float = QUIET_S,
    ) -> None:
        super().__init__()
        self.pool = pool
        self.look_s, self.renew_s, self.renew_busy_s, self.quiet_s = look_s, renew_s, renew_busy_s, quiet_s
        self.n_shown = 0
        self.ended = ""  # why it is no longer updated
        self.error: Exception | None = None
        self._close = threading.Event()
        self._done = threading.Event()
        self._key = str(getattr(pool, "path", pool.name))
        self._name = pool.name
        self._health = pool.health()
        self._started_utc = self._health.started_utc
        self._facts = _facts(self._health)
        self._changed_at = self._shown_at
        self.static = not can_show() or bool(os.environ.get("SCIML_PARENT_RUN"))
        if self.static:
            self.ended = "shown once"
            self._done.set()
            self._show_first() if can_show() else print(self.card())
            return
        for other in list(_live):
            if other._key == self._key:
                other._end("it is watched in a later cell")
        self._show_first()
        _live.add(self)
        self._thread = threading.Thread(target=self._follow, name=f"watch {self._name}", daemon=True)
        self._thread.start()

    def card(self) -> Card:
        """What is shown now."""
        with self._lock:
            if self.static:
                note = ""
            elif self.ended:
                note = f"no longer updated: {self.ended}"
            else:
                note = f"renewed every {self._interval_s(self._health):g} s while it is watched"
            return Card(self._name, self._health, note)

    def close(self) -> None:
        """Show it a last time and stop watching."""
        self._end("closed")

    def wait(self, timeout: float | None = None) -> LivePool:
        """Return when it is no longer updated. Raises TimeoutError."""
        if not self._done.wait(timeout):
            raise TimeoutError(f"pool {self._name!r} is still watched after {timeout:g} s")
        return self

    def __repr__(self) -> str:
        return f"<LivePool {self._name!r}: {self._health.state}; {self.card().measured()}>"

    def _repr_html_(self) -> str:
        return self.card()._repr_html_()

    def _bundle(self) -> dict[str, Any]:
        card = self.card()
        return {"text/plain": str(card), "text/html": card._repr_html_()}

    # -- the watch ----------------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        try:
            while not self._close.wait(self.look_s):
                try:
                    self._look()
                except Exception as error:  # not known now; tried again
                    self._note(error)
        finally:
            self._done.set()

    def _look(self) -> None:
        health, now = self.pool.health(), time.monotonic()
        facts = _facts(health)
        changed = facts != self._facts
        if changed:
            self._facts, self._changed_at = facts, now
        why = self._over(health, now - self._changed_at)
        if why:
            self._finish(why, health)
        elif changed or now - self._shown_last >= self._interval_s(health):
            with self._lock:
                self._health = health
            self._renew()
        self.error = None

    def _over(self, health: Health, quiet_s: float) -> str:
        if health.state == "stopped":
            return "the pool was stopped"
        if self._started_utc and health.started_utc not in ("", self._started_utc):
            return "the pool was stopped and another has its name"
        moving = health.state in _MOVING and (health.state != "tainted" or health.replaces)
        if quiet_s > self.quiet_s and not moving:
            return f"nothing changed for {span(quiet_s)}"
        return ""

    def _interval_s(self, health: Health) -> float:
        return self.renew_busy_s if health.state == "busy" else self.renew_s

    def _renew(self) -> None:
        self._update()
        self.n_shown += 1
        self._shown_last = time.monotonic()

    def _show_first(self) -> None:
        super()._show_first()
        self.n_shown, self._shown_last = 1, time.monotonic()

    def _end(self, why: str) -> None:
        """From another thread: look and show a last time."""
        if self.static or self._done.is_set():
            return
        self._close.set()
        self._thread.join(5.0)
        if self.ended:
            return
        try:
            health = self.pool.health()
        except Exception as error:
            self._note(error)
            health = self._health
        self._finish("the pool was stopped" if health.state == "stopped" else why, health)

    def _finish(self, why: str, health: Health) -> None:
        another = self._started_utc and health.started_utc not in ("", self._started_utc)
        with self._lock:
            self.ended, self._health = why, self._health if another else health
        _live.discard(self)
        self._close.set()
        try:
            self._renew()
        except Exception as error:  # its notebook is gone
            self._note(error)

    def _note(self, error: Exception) -> None:
        """Log a failure once, not at every look."""
        if repr(error) != repr(self.error):
            log.warning("pool %s can't be shown: %s: %s", self._name, type(error).__name__, error)
        self.error = error


def _facts(health: Health) -> tuple[Any, ...]:
    """Changes with everything that is shown, save times and memory."""
    call = health.call or {}
    return (
        health.state,
        health.reason,
        health.generation,
        (health.n, health.n_here),
        tuple((row["rank"], row["state"], row["pid"], row["call"]) for row in rank_rows(health)),
        (call.get("name"), call.get("since_utc"), tuple(call.get("ranks", ()))),
        tuple((user["host"], user["pid"]) for user in health.users),
        (health.ends_utc, health.ttl_s),
    )


def _end_all() -> None:
    """A process that ends says so on the cards that it leaves."""
    for view in list(_live):
        view._end("the kernel ended")


atexit.register(_end_all)
