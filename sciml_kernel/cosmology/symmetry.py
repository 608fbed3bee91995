"""The 48 symmetries of the cube: mirrors and axis permutations leave the statistics of a universe alone."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

__all__ = ["SYMMETRIES", "apply", "turned"]

SYMMETRIES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = tuple(
    (order, mirrored)
    for order in itertools.permutations((0, 1, 2))
    for n in range(4)
    for mirrored in itertools.combinations((0, 1, 2), n)
)
"""(order of the axes, axes that are mirrored), 48 of them; the first changes nothing."""


def apply(counts: NDArray[np.int16], i_symmetry: int) -> NDArray[np.int16]:
    """One symmetry of a volume (z, y, x, channel) of equal sides; a view."""
    order, mirrored = SYMMETRIES[i_symmetry]
    return np.flip(counts.transpose(*order, 3), axis=mirrored)


def turned(counts: NDArray[np.int16], *, seed: int, epoch: int, sample: int) -> NDArray[np.int16]:
    """The volume under the symmetry drawn for (seed, epoch, sample): no state, so any rank draws the same."""
    return apply(counts, int(np.random.default_rng([seed, epoch, sample]).integers(len(SYMMETRIES))))
