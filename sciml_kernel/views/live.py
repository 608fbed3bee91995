"""`LivePlot`: the training figure, redrawn in place while the run goes on.

It reads the history, which comes from the record, and so shows the same when the notebook is reloaded or another
process looks at a run. Without a display (see `shown`) it leaves only the PNG.
"""

from __future__ import annotations

import base64
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xarray as xr

from sciml_kernel.views.plot import Plot, write_png
from sciml_kernel.views.shown import Shown
from sciml_kernel.views.training import latest, training_curves

__all__ = ["LivePlot"]

log = logging.getLogger(__name__)

_POLL_S = 0.5
_MAX_SHARE = 0.05  # of the time may go into drawing: the ranks need the cores


def _fingerprint(history: xr.Dataset) -> tuple[float, ...]:
    """Changes with every new number, also with one for a step or an epoch that is there already."""
    times = (history[name] for name in ("wall_time_s", "epoch_wall_time_s") if name in history.coords)
    return (
        *(float(history[name].count()) for name in history.data_vars),
        *(float(time_s.max()) for time_s in times if time_s.size),
    )


class LivePlot(Shown):
    """Loss, learning rate, samples/s and the ranks' busy times of a run that may still be going on.

    read_history: returns the history so far (`Run.history`). is_over: True when no more will come. title: over the
    figure. min_interval_s: at most one redraw in this time, and none without new numbers. png_path: file that always
    holds the newest figure; replaced as a whole. status: returns how it stands with the run (`Run.status`); then the
    figure says how it ended, "(failed)", and not only "(over)".

    Made, it shows itself at once and goes on in a thread of its own, so that the cell may wait for the run. A figure
    that can't be drawn is logged and tried again; it never breaks a run.
    """

    def __init__(
        self,
        read_history: Callable[[], xr.Dataset],
        is_over: Callable[[], bool],
        *,
        title: str = "Training",
        min_interval_s: float = 3.0,
        png_path: str | Path | None = None,
        status: Callable[[], str] | None = None,
    ) -> None:
        super().__init__()
        self.title = title
        self.png_path = Path(png_path) if png_path is not None else None
        self.min_interval_s = min_interval_s
        self.n_drawn = 0
        self.error: Exception | None = None
        self._read_history = read_history
        self._is_over, self._status = is_over, status
        self._close = threading.Event()
        self._done = threading.Event()
        self._seen: tuple[float, ...] | None = None
        self._draw_s = 0.0
        self._png = b""
        self._text = ""
        self._draw(over=False)
        self._show_first()
        self._thread = threading.Thread(target=self._follow, name=f"plot {title}", daemon=True)
        self._thread.start()

    @property
    def text(self) -> str:
        """The newest numbers in words; the figure's alt text."""
        return self._text

    def wait(self, timeout: float | None = None) -> LivePlot:
        """Return when the run is over and the last figure is drawn and shown. Raises TimeoutError."""
        if not self._done.wait(timeout):
            raise TimeoutError(f"plot {self.title!r}: the run is not over after {timeout:g} s")
        return self

    def close(self) -> None:
        """Draw what there is a last time and stop following."""
        self._close.set()
        self._thread.join()

    def figure(self) -> Plot:
        """The figure of the history as it is now, to change or save elsewhere."""
        return training_curves(self._read_history(), title=self.title)

    def _follow(self) -> None:
        last = time.monotonic()
        try:
            while not self._close.wait(min(_POLL_S, max(self.min_interval_s, 0.02))):
                if self._ended():  # asked before reading: what came before the end is in the last figure
                    break
                if time.monotonic() - last >= max(self.min_interval_s, self._draw_s / _MAX_SHARE):
                    self._draw(over=False)
                    last = time.monotonic()
            self._draw(over=self._ended())
        finally:
            self._done.set()

    def _ended(self) -> bool:
        try:
            return self._is_over()
        except Exception as error:  # not known now; asked again
            self._note(error)
            return False

    def _how_it_ended(self) -> str:
        try:
            status = self._status() if self._status is not None else "over"
        except Exception as error:  # the figure is right without it
            self._note(error)
            status = "over"
        return f"({'over' if status in ('created', 'running') else status})"  # its record may lag

    def _note(self, error: Exception) -> None:
        """Log a failure once, not at every try."""
        if repr(error) != repr(self.error):
            log.warning("plot %s could not be drawn: %s: %s", self.title, type(error).__name__, error)
        self.error = error

    def _draw(self, *, over: bool) -> None:
        """Redraw, write and show if there is something new; note a failure and go on."""
        try:
            history = self._read_history()
            seen = (float(over), *_fingerprint(history))
            if seen == self._seen:
                self.error = None
                return
            start = time.thread_time()
            begun = "(running)" if history.data_vars else "(waiting for the first numbers)"
            note = self._how_it_ended() if over else begun
            plot = training_curves(history, title=self.title, note=note)
            png = plot.png()
            self._draw_s = time.thread_time() - start
            if self.png_path is not None:
                write_png(png, self.png_path)
            with self._lock:
                self._png, self._text, self._seen, self.error = (
                    png,
                    f"{self.title} {note}: {latest(history)}",
                    seen,
                    None,
                )
                self.n_drawn += 1
            self._update()
        except Exception as error:  # a view never breaks a run
            self._note(error)

    def _bundle(self) -> dict[str, Any]:
        with self._lock:
            bundle: dict[str, Any] = {"text/plain": self._text or f"{self.title}: {self.error}"}
            if self._png:
                bundle["image/png"] = base64.b64encode(self._png).decode("ascii")
            return bundle

    def _repr_png_(self) -> bytes | None:
        return self._png or None

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        return self._bundle(), {"image/png": {"alt": self._text}}

    def __repr__(self) -> str:
        return f"<LivePlot {self._text or self.title}>"
