"""`Plot`: a matplotlib Figure that shows itself as a PNG and says in words what is to be seen."""

from __future__ import annotations

import base64
import io
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

from matplotlib import rcParams, rcParamsDefault
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

__all__ = ["COLOURS", "Plot", "parameter_label", "write_png"]

DPI = 100

# Okabe & Ito (2008): told apart with every common colour-vision deficiency, and in grey by lightness.
COLOURS = {
    "blue": "#0072B2",
    "orange": "#E69F00",
    "green": "#009E73",
    "vermilion": "#D55E00",
    "purple": "#CC79A7",
    "sky": "#56B4E9",
    "grey": "#7F7F7F",
}

_STYLE = {
    "font.size": 10.0,
    "axes.titlesize": 10.5,
    "axes.labelsize": 10.0,
    "legend.fontsize": 9.0,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
}

# matplotlib's font cache and mathtext parser are shared by all figures of the process.
_LOCK = threading.RLock()

_SYMBOLS = {
    "omega_m": r"$\Omega_{\mathrm{m}}$",
    "sigma_8": r"$\sigma_8$",
    "n_s": r"$n_{\mathrm{s}}$",
    "h_0": r"$H_0$",
    "h": r"$h$",
}


def parameter_label(name: str) -> str:
    """The symbol of a cosmological parameter, else its name.

    >>> parameter_label("sigma_8"), parameter_label("other")
    ('$\\\\sigma_8$', 'other')
    """
    return _SYMBOLS.get(name.lower(), name)


# What a figure's look hangs on. The rest (backend, key bindings, ...) is none of ours.
_LOOKS = (
    "axes", "errorbar", "figure", "font", "grid", "image", "legend", "lines", "markers", "mathtext", "patch", "path",
    "savefig", "scatter", "text", "xaxis", "xtick", "yaxis", "ytick",
)  # fmt: skip
_OURS: dict[Any, Any] = {k: v for k, v in rcParamsDefault.items() if k.split(".")[0] in _LOOKS} | _STYLE


class style:
    """Context for drawing: matplotlib's defaults and our style over them, one thread at a time.

    A reader's own settings have no part in our figures, and stay as they are. The settings belong to the whole process,
    so one that is changed in another thread while a live figure is drawn must survive: only what is still ours is put
    back. (`rc_context` would put back everything.)
    """

    def __enter__(self) -> None:
        _LOCK.acquire()
        now: dict[Any, Any] = rcParams
        self._theirs = {key: now[key] for key, ours in _OURS.items() if now[key] != ours}
        rcParams.update({key: _OURS[key] for key in self._theirs})
        self._set = {key: now[key] for key in self._theirs}  # as matplotlib spells them

    def __exit__(self, *error: object) -> None:
        now: dict[Any, Any] = rcParams
        rcParams.update({key: theirs for key, theirs in self._theirs.items() if now[key] == self._set[key]})
        _LOCK.release()


class Plot(Figure):
    """A Figure with `alt_text`: what a reader who can't see it should know. Shown in a notebook as a plain PNG."""

    def __init__(self, width_in: float = 8.0, height_in: float = 4.0, *, alt_text: str = "") -> None:
        super().__init__(figsize=(width_in, height_in), dpi=DPI, layout="constrained")
        FigureCanvasAgg(self)
        self.alt_text = alt_text

    def png(self) -> bytes:
        """The figure as a PNG file; the alt text is in it as `Description`."""
        with style():
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=DPI, facecolor="white", metadata={"Description": self.alt_text})
            return buffer.getvalue()

    def save(self, path: str | Path) -> Path:
        """Write the PNG; an earlier file stays until the new one is whole."""
        return write_png(self.png(), path)

    def _repr_png_(self) -> bytes:
        return self.png()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        image = base64.b64encode(self.png()).decode("ascii")
        bundle = {"image/png": image, "text/plain": self.alt_text or repr(self)}
        return bundle, {"image/png": {"alt": self.alt_text}}


def write_png(data: bytes, path: str | Path) -> Path:
    """Write bytes to `path` whole or not at all; makes the folder."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)  # mkstemp makes 0600; a figure is as readable as the rest of the record
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path
