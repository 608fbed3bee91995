"""The estimator against closed forms and a brute-force transform."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from sciml_kernel.cosmology import power_spectrum
from sciml_kernel.errors import DataError, UsageError


@pytest.mark.parametrize("n", [4, 5, 6])
def test_agrees_with_a_brute_force_transform(n: int) -> None:
    box = 30.0
    field = np.random.default_rng(n).normal(size=(n, n, n))
    numbers = np.arange(n)
    phase = np.exp(-2j * np.pi * np.outer(numbers, numbers) / n)
    modes = np.einsum("az,by,cx,zyx->abc", phase, phase, phase, field)
    wrapped = np.where(numbers > n // 2, numbers - n, numbers)
    power: dict[int, list[float]] = {}
    radius: dict[int, list[float]] = {}
    for index in np.ndindex(n, n, n):
        r = np.sqrt(sum(float(wrapped[i]) ** 2 for i in index))
        shell = int(r + 0.5)
        if 1 <= shell <= n // 2:
            power.setdefault(shell, []).append(box**3 * abs(modes[index]) ** 2 / n**6)
            radius.setdefault(shell, []).append(2 * np.pi / box * r)
    got = power_spectrum(field, box_size_mpc_h=box)
    shells = sorted(power)
    np.testing.assert_array_equal(got["modes"], [len(power[s]) for s in shells])
    np.testing.assert_allclose(got["k"], [np.mean(radius[s]) for s in shells], rtol=1e-12)
    np.testing.assert_allclose(got["power"], [np.mean(power[s]) for s in shells], rtol=1e-10)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_plane_wave_puts_all_its_power_in_one_shell(axis: int) -> None:
    # A cos(3 k_f x): two modes of |delta_k| = A N^3 / 2, so the sum over the shell is V A^2 / 2; elsewhere nothing.
    n, box, amplitude = 16, 100.0, 0.2
    wave = amplitude * np.cos(2 * np.pi * 3 * np.arange(n) / n)
    shape = [1, 1, 1]
    shape[axis] = n
    spectrum = power_spectrum(np.broadcast_to(wave.reshape(shape), (n, n, n)), box_size_mpc_h=box)
    total = (spectrum["power"] * spectrum["modes"]).values
    assert total[2] == pytest.approx(box**3 * amplitude**2 / 2, rel=1e-12)
    np.testing.assert_allclose(np.delete(total, 2), 0, atol=1e-9 * total[2])


def test_white_noise_is_flat_at_its_variance_times_the_voxel_volume() -> None:
    # P = sigma^2 V / N^3 in every shell, to sqrt(2 / modes).
    n, box = 48, 96.0
    spectrum = power_spectrum(np.random.default_rng(1).normal(0, 0.5, (n, n, n)), box_size_mpc_h=box)
    level = 0.25 * box**3 / n**3
    assert np.all(np.abs(spectrum["power"] / level - 1) < 4 * np.sqrt(2 / spectrum["modes"]))


def test_random_particles_have_shot_noise_and_nothing_else() -> None:
    # Poisson counts: P = V / number of particles; with shot_noise=True it is gone.
    n, box = 32, 64.0
    counts = np.random.default_rng(2).poisson(3.0, (n, n, n)).astype(np.int16)
    spectrum = power_spectrum(counts, box_size_mpc_h=box)
    noise = box**3 / counts.sum()
    assert np.all(np.abs(spectrum["power"] / noise - 1) < 4 * np.sqrt(2 / spectrum["modes"]))
    without = power_spectrum(counts, box_size_mpc_h=box, shot_noise=True)
    np.testing.assert_allclose(without["power"], spectrum["power"] - noise)
    assert "shot noise subtracted" in without["power"].attrs["comment"]
    assert "shot noise left in" in spectrum["power"].attrs["comment"]


def test_window_correction_restores_a_wave_averaged_over_voxels() -> None:
    # A wave averaged over cubic voxels loses the factor sinc(pi m / N) in amplitude, exactly.
    n, box, m = 16, 100.0, 5
    loss = np.sin(np.pi * m / n) / (np.pi * m / n)
    wave = np.broadcast_to(0.1 * np.cos(2 * np.pi * m * np.arange(n) / n), (n, n, n))
    seen = power_spectrum(loss * wave, box_size_mpc_h=box, window="ngp")["power"].values[m - 1]
    assert seen == pytest.approx(power_spectrum(wave, box_size_mpc_h=box)["power"].values[m - 1], rel=1e-12)


def test_counts_and_their_contrast_have_one_spectrum() -> None:
    counts = np.random.default_rng(4).poisson(2.0, (8, 8, 8))
    np.testing.assert_allclose(
        power_spectrum(counts, box_size_mpc_h=10.0)["power"],
        power_spectrum(counts / counts.mean() - 1, box_size_mpc_h=10.0)["power"],
    )


def test_turning_and_shifting_the_periodic_box_changes_nothing() -> None:
    field = np.random.default_rng(5).normal(size=(8, 8, 8))
    expected = power_spectrum(field, box_size_mpc_h=10.0)["power"]
    for other in (np.rot90(field, axes=(0, 2)), field[::-1], np.roll(field, (1, 2, 3), axis=(0, 1, 2))):
        np.testing.assert_allclose(power_spectrum(other, box_size_mpc_h=10.0)["power"], expected)


def test_takes_a_data_array_and_integers() -> None:
    counts = np.random.default_rng(6).poisson(9.0, (8, 8, 8)).astype(np.int16)
    array = xr.DataArray(counts, dims=("z", "y", "x"))
    assert power_spectrum(array, box_size_mpc_h=10.0).identical(power_spectrum(counts, box_size_mpc_h=10.0))


@pytest.mark.parametrize(
    ("density", "said"),
    [
        (np.ones((4, 4)), "cube"),
        (np.ones((4, 4, 5)), "cube"),
        (np.zeros((4, 4, 4)), "no particles"),
        (np.full((4, 4, 4), np.nan), "not finite"),
    ],
)
def test_a_volume_that_can_not_be_used_is_refused(density: np.ndarray, said: str) -> None:
    with pytest.raises(DataError, match=said):
        power_spectrum(density, box_size_mpc_h=10.0)


def test_options_are_checked() -> None:
    contrast = np.random.default_rng(7).normal(size=(4, 4, 4))
    with pytest.raises(UsageError, match="window 'cic'"):
        power_spectrum(contrast, box_size_mpc_h=10.0, window="cic")
    with pytest.raises(UsageError, match="from counts only"):
        power_spectrum(contrast, box_size_mpc_h=10.0, shot_noise=True)
    with pytest.raises(UsageError, match="box_size_mpc_h"):
        power_spectrum(contrast, box_size_mpc_h=-1.0)
