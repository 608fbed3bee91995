"""Measured durations beside owed ones."""

from __future__ import annotations

import io

import matplotlib.image
import numpy as np
import pytest

from sciml_kernel import views
from sciml_kernel.errors import UsageError
from sciml_kernel.views.plot import COLOURS


def test_the_alt_text_says_all_that_the_bars_say() -> None:
    plot = views.durations({"start": 2.5, "stop": 0.125, "stall": 3.0}, {"start": 3.5, "stall": 2.0}, title="Pool")
    assert plot.alt_text == (
        "Pool, measured beside owed: start 2.50 s (owed 3.5 s); stop 0.12 s; stall 3.00 s (owed 2 s). "
        "Longer than owed: stall."
    )


def test_bars_are_as_long_as_their_seconds_and_late_ones_have_another_colour() -> None:
    """Counted in the picture: pixels of each colour along the middle of each bar."""
    picture = matplotlib.image.imread(io.BytesIO(views.durations({"a": 1.0, "b": 3.0}, {"a": 4.0, "b": 2.0}).png()))

    def widest(colour: str) -> int:
        rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        return int((np.abs(picture[..., :3] - rgb).max(axis=-1) < 0.01).sum(axis=1).max())

    in_time, late, owed = widest(COLOURS["orange"]), widest(COLOURS["vermilion"]), widest("#DDDDDD")
    assert late / in_time == pytest.approx(3.0, rel=0.02)
    assert owed / in_time == pytest.approx(4.0, rel=0.02)


@pytest.mark.parametrize(
    ("measured", "owed", "words"),
    [
        ({}, {}, "measured were"),
        ({"a": 1.0}, {"b": 1.0}, r"limits of \['b'\]"),
        ({"a": float("nan")}, {}, "'a' is nan"),
        ({"a": 1.0}, {"a": -1.0}, "'a' is -1"),
    ],
)
def test_what_can_not_be_drawn_is_refused(measured: dict[str, float], owed: dict[str, float], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        views.durations(measured, owed)
