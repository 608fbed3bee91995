"""Histories and pictures for the tests of the views."""

from __future__ import annotations

import io

import numpy as np
import xarray as xr
from PIL import Image

from sciml_kernel.contracts import MetricEvent
from sciml_kernel.metrics.history import history
from sciml_kernel.views import Plot


def event(name: str, value: float, *, step: int = 1, epoch: int = 0, rank: int = 0, at: float = 1e9) -> MetricEvent:
    return MetricEvent("run", rank, step, epoch, name, value, "", at + step)


def training(n_steps: int = 6, n_epochs: int = 2) -> list[MetricEvent]:
    """Loss 1, 1/2, 1/3...; validation loss 2, 1...; learning rate 0.001; 10, 11, 12... samples/s, on average 10."""
    per_epoch = n_steps // n_epochs
    events = []
    for step in range(1, n_steps + 1):
        epoch = (step - 1) // per_epoch
        for name, value in {
            "train/loss": 1.0 / step,
            "train/learning_rate": 1e-3,
            "train/samples_per_s": 9.0 + step,
            "train/samples_per_s_avg": 10.0,
        }.items():
            events.append(event(name, value, step=step, epoch=epoch))
        if step % per_epoch == 0:
            events.append(event("val/loss", 2.0 / (epoch + 1), step=step, epoch=epoch))
    return events


def dataset(*events: MetricEvent) -> xr.Dataset:
    return history(events)


def pixels(png: bytes) -> np.ndarray:
    """(height, width, 3), uint8. Fails unless the bytes are a whole PNG."""
    with Image.open(io.BytesIO(png)) as image:
        assert image.format == "PNG"
        image.load()
        return np.asarray(image.convert("RGB"))


def nothing_cut_off(plot: Plot) -> None:
    """Titles, labels and legends lie inside the figure and titles don't run into each other."""
    plot.canvas.draw()
    renderer = plot.canvas.get_renderer()
    words = {text for axes in plot.axes for text in (axes.xaxis.label, axes.yaxis.label)}
    titles = {title for axes in plot.axes for title in (axes.title, axes._left_title, axes._right_title)}
    titles |= {plot._suptitle} if plot._suptitle is not None else set()
    legends = {axes.get_legend() for axes in plot.axes} | set(plot.legends)
    shown = {text for text in words | titles if text.get_text()} | {legend for legend in legends if legend}
    for artist in shown:
        box = artist.get_window_extent(renderer)
        where = getattr(artist, "get_text", lambda: "legend")()
        assert box.x0 >= -1, where
        assert box.y0 >= -1, where
        assert box.x1 <= plot.bbox.x1 + 1, where
        assert box.y1 <= plot.bbox.y1 + 1, where
    boxes = [(title.get_text(), title.get_window_extent(renderer)) for title in titles if title.get_text()]
    for i, (one, box) in enumerate(boxes):
        for other, another in boxes[i + 1 :]:
            assert not box.overlaps(another), (one, other)
