"""Which samples train and which are held out: whole simulations, never their parts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sciml_kernel.errors import DataError

__all__ = ["Split", "split_by_simulation"]


@dataclass(frozen=True)
class Split:
    """Sample numbers, int64, ascending."""

    train: NDArray[np.int64]
    validation: NDArray[np.int64]


def split_by_simulation(simulation: NDArray[np.int64], *, validation_fraction: float, seed: int) -> Split:
    """Hold out the nearest whole number of simulations to the fraction, at least one.

    simulation: (sample,), int64: the simulation that each sample is cut from. The choice depends on the seed and on the
    set of simulations, not on the number of ranks. Raises DataError for fewer than two simulations.
    """
    every = np.unique(simulation)
    if len(every) < 2:
        raise DataError(f"a split needs at least two simulations, got {len(every)}; simulate more universes")
    n_held_out = min(max(1, round(validation_fraction * len(every))), len(every) - 1)
    held_out = np.random.default_rng([seed, 0x5CA1E]).permutation(every)[:n_held_out]
    is_held_out = np.isin(simulation, held_out)
    return Split(np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out))
