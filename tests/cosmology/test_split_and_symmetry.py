"""Held-out simulations stay whole; the cube has 48 symmetries and they leave P(k) alone."""

from __future__ import annotations

import numpy as np
import pytest

from sciml_kernel.cosmology.spectrum import power_spectrum
from sciml_kernel.cosmology.split import split_by_simulation
from sciml_kernel.cosmology.symmetry import SYMMETRIES, apply, turned
from sciml_kernel.errors import DataError


def test_no_simulation_is_on_both_sides_and_no_sample_is_lost() -> None:
    simulation = np.repeat(np.arange(50), 8)[np.random.default_rng(0).permutation(400)]  # eight sub-volumes each
    split = split_by_simulation(simulation, validation_fraction=0.2, seed=3)
    assert not set(simulation[split.train]) & set(simulation[split.validation])
    assert sorted([*split.train, *split.validation]) == list(range(400))
    assert len(split.validation) == 80
    other = split_by_simulation(simulation, validation_fraction=0.2, seed=4)
    assert set(split.validation) != set(other.validation)


def test_at_least_one_simulation_is_held_out_and_one_is_left() -> None:
    assert len(split_by_simulation(np.arange(3), validation_fraction=0.01, seed=1).validation) == 1
    assert len(split_by_simulation(np.arange(3), validation_fraction=0.99, seed=1).train) == 1
    with pytest.raises(DataError, match="at least two simulations, got 1"):
        split_by_simulation(np.zeros(9, np.int64), validation_fraction=0.5, seed=1)


def test_the_cube_has_48_different_symmetries_which_keep_the_power_spectrum() -> None:
    counts = np.random.default_rng(1).poisson(3.0, size=(6, 6, 6, 1)).astype(np.int16)
    turns = [np.ascontiguousarray(apply(counts, i)) for i in range(len(SYMMETRIES))]
    assert len({turn.tobytes() for turn in turns}) == 48  # 3! axis orders x 2^3 mirrors
    before = power_spectrum(counts[..., 0], box_size_mpc_h=10.0)
    for turn in turns:
        after = power_spectrum(turn[..., 0], box_size_mpc_h=10.0)
        np.testing.assert_allclose(after.power, before.power, rtol=1e-9)


def test_a_turn_depends_on_seed_epoch_and_sample_and_on_nothing_else() -> None:
    counts = np.arange(27, dtype=np.int16).reshape(3, 3, 3, 1)
    made = {key: turned(counts, seed=key[0], epoch=key[1], sample=key[2]).tobytes() for key in np.ndindex(2, 6, 6)}
    assert len(set(made.values())) > 20  # of 48, in 72 draws
    assert turned(counts, seed=1, epoch=5, sample=3).tobytes() == made[1, 5, 3]
