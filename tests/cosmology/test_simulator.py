"""The simulator against closed forms of Lagrangian perturbation theory and against linear theory."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.fft

from sciml_kernel import cosmology
from sciml_kernel.cosmology import lpt
from sciml_kernel.cosmology.linear import linear_power
from sciml_kernel.errors import UsageError

TRUTH = {"omega_m": 0.3, "sigma_8": 0.8628, "n_s": 0.95}
SMALL = TRUTH | {"n_particles": 16, "grid": 16, "box_size_mpc_h": 64.0, "seed": 1}


def power(k):
    return linear_power(k, **TRUTH)


def test_linear_field_has_the_spectrum_that_was_asked_for() -> None:
    # A shell with `modes` Fourier modes (pairs counted twice) of a Gaussian field scatters by sqrt(2 / modes); averaged
    # over 10 seeds the normalised residuals have unit variance. 32 shells: chi2 within 4 sigma of 32.
    n, box = 64, 256.0
    found = []
    for seed in range(10):
        field = scipy.fft.irfftn(lpt.gaussian_field(n, box_size_mpc_h=box, power=power, seed=seed), s=(n, n, n))
        found.append(cosmology.power_spectrum(field, box_size_mpc_h=box))
    k, modes = found[0]["k"].values, found[0]["modes"].values
    # P is averaged over the shell, not taken at its mean k: the fine average matters in the first shells.
    numbers = np.rint(np.fft.fftfreq(n) * n)
    radius = np.sqrt(numbers[:, None, None] ** 2 + numbers[:, None] ** 2 + numbers**2)
    theory = [
        power(2 * np.pi / box * radius[(radius >= i - 0.5) & (radius < i + 0.5)]).mean() for i in range(1, len(k) + 1)
    ]
    mean = np.mean([spectrum["power"].values for spectrum in found], axis=0)
    residual = (mean / theory - 1) / np.sqrt(2 / modes / len(found))
    assert abs(np.sum(residual**2) - len(k)) < 4 * np.sqrt(2 * len(k))
    assert abs(np.mean(mean / theory, where=modes > 1000) - 1) < 0.01


def test_linear_field_has_the_rms_that_sigma_8_says() -> None:
    # Same field smoothed with an 8 Mpc/h top hat, in Fourier space: its rms is sigma_8 up to the missing long waves.
    n, box = 64, 256.0
    m = np.fft.fftfreq(n) * n
    k = 2 * np.pi / box * np.sqrt(m[:, None, None] ** 2 + m[:, None] ** 2 + np.arange(n // 2 + 1) ** 2)
    x = np.where(k > 0, 8 * k, 1.0)
    window = np.where(k > 0, 3 * (np.sin(x) - x * np.cos(x)) / x**3, 0)
    rms = [
        scipy.fft.irfftn(window * lpt.gaussian_field(n, box_size_mpc_h=box, power=power, seed=s), s=(n, n, n)).std()
        for s in range(8)
    ]
    assert np.mean(rms) == pytest.approx(TRUTH["sigma_8"], rel=0.03)


def grid_waves(n: int, box: float):
    q = np.arange(n) * box / n
    return np.meshgrid(q, q, q, indexing="ij")


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_plane_wave_moves_as_zeldovich_says(axis: int) -> None:
    # delta = A cos(kq): psi = -A/k sin(kq) along the wave, nothing across, and no second order (phi_ii phi_jj = 0).
    n, box, amplitude = 16, 50.0, 0.3
    k = 2 * np.pi * 2 / box
    q = grid_waves(n, box)
    delta = (amplitude * np.cos(k * q[axis])).astype(np.float32)
    shift = lpt.displacement(scipy.fft.rfftn(delta), box_size_mpc_h=box, d1=0.7, d2=-0.2)
    for other in range(3):
        expected = -0.7 * amplitude / k * np.sin(k * q[other]) if other == axis else np.zeros((n, n, n))
        np.testing.assert_allclose(shift[other], expected, atol=2e-5)


def test_two_crossed_waves_move_as_second_order_theory_says() -> None:
    # delta = A (cos kx + cos ky): phi1_xx = A cos kx, phi1_yy = A cos ky, phi1_xy = 0, so lap phi2 = A^2 cos kx cos ky,
    # phi2 = -A^2 / (2 k^2) cos kx cos ky and d2 grad_x phi2 = d2 A^2 / (2k) sin kx cos ky.
    n, box, a, d2 = 16, 50.0, 0.4, -3 / 7
    k = 2 * np.pi / box
    _, y, x = grid_waves(n, box)
    delta = (a * (np.cos(k * x) + np.cos(k * y))).astype(np.float32)
    _, shift_y, shift_x = lpt.displacement(scipy.fft.rfftn(delta), box_size_mpc_h=box, d1=1.0, d2=d2)
    np.testing.assert_allclose(
        shift_x, -a / k * np.sin(k * x) + d2 * a**2 / (2 * k) * np.sin(k * x) * np.cos(k * y), atol=2e-5
    )
    np.testing.assert_allclose(
        shift_y, -a / k * np.sin(k * y) + d2 * a**2 / (2 * k) * np.cos(k * x) * np.sin(k * y), atol=2e-5
    )


def test_a_tilted_wave_has_no_second_order_either() -> None:
    # One wave in any direction moves in one dimension; here the mixed derivatives phi_xy must cancel phi_xx phi_yy.
    n, box = 16, 50.0
    k = 2 * np.pi / box
    z, y, x = grid_waves(n, box)
    delta_k = scipy.fft.rfftn((0.3 * np.cos(k * (x + 2 * y - z))).astype(np.float32))
    first = lpt.displacement(delta_k, box_size_mpc_h=box, d1=1.0, d2=0.0)
    both = lpt.displacement(delta_k, box_size_mpc_h=box, d1=1.0, d2=-3 / 7)
    for a, b in zip(first, both, strict=True):
        np.testing.assert_allclose(b, a, atol=2e-5)


def test_counting_agrees_with_counting_one_by_one() -> None:
    n, grid, box = 8, 6, 30.0
    rng = np.random.default_rng(3)
    shift = tuple(rng.normal(0, 20, (n, n, n)).astype(np.float32) for _ in range(3))
    expected = np.zeros((grid, grid, grid), dtype=int)
    for index in np.ndindex(n, n, n):
        place = [((index[i] + 0.5) * box / n + float(shift[i][index])) % box for i in range(3)]
        expected[tuple(int(p / box * grid) % grid for p in place)] += 1
    np.testing.assert_array_equal(lpt.count_particles(shift, grid=grid, box_size_mpc_h=box), expected)


def test_undisplaced_particles_fill_the_voxels_evenly() -> None:
    still = tuple(np.zeros((8, 8, 8), dtype=np.float32) for _ in range(3))
    assert np.all(lpt.count_particles(still, grid=4, box_size_mpc_h=10.0) == 8)


@pytest.mark.parametrize(("n_particles", "grid"), [(16, 16), (32, 16), (17, 11)])
def test_no_particle_is_lost(n_particles: int, grid: int) -> None:
    counts = cosmology.simulate(**(SMALL | {"n_particles": n_particles, "grid": grid}))
    assert counts.dims == ("z", "y", "x")
    assert counts.shape == (grid,) * 3
    assert counts.dtype == np.int16
    assert int(counts.sum()) == n_particles**3


def test_large_scales_follow_linear_theory() -> None:
    # 512 Mpc/h at k < 0.05 h/Mpc, where non-linear loss is a few per cent: mean of 4 seeds against linear theory within
    # 4 sigma of cosmic variance (2 / modes / 4) plus 6 %.
    spectra = [
        cosmology.power_spectrum(
            cosmology.simulate(**TRUTH, n_particles=64, grid=64, box_size_mpc_h=512.0, seed=seed),
            box_size_mpc_h=512.0,
            window="ngp",
        ).sel(k=slice(0, 0.05))
        for seed in range(4)
    ]
    modes = spectra[0]["modes"].values
    ratio = np.mean([s["power"].values for s in spectra], axis=0) / power(spectra[0]["k"].values)
    assert np.all(np.abs(ratio - 1) < 0.06 + 4 * np.sqrt(2 / modes / 4))


def test_more_sigma_8_means_more_structure_in_the_same_phases() -> None:
    low, high = (cosmology.simulate(**(SMALL | {"sigma_8": s})) for s in (0.5, 0.9))
    assert float(high.std()) > 1.2 * float(low.std())
    assert np.corrcoef(low.values.ravel(), high.values.ravel())[0, 1] > 0.5


def test_the_same_seed_gives_the_same_universe_and_another_seed_another() -> None:
    first = cosmology.simulate(**SMALL)
    assert first.identical(cosmology.simulate(**SMALL))
    assert not np.array_equal(first, cosmology.simulate(**(SMALL | {"seed": 2})))


def test_coordinates_are_voxel_centres_in_mpc_h() -> None:
    counts = cosmology.simulate(**SMALL)
    np.testing.assert_allclose(counts["x"], np.arange(16) * 4.0 + 2.0)
    assert counts["z"].attrs["units"] == "Mpc/h"
    assert counts.attrs["voxel_size_mpc_h"] == 4.0


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"method": "cola"}, "'cola' is not available; use '2lpt'"),
        ({"method": "2ltp"}, "2lpt"),
        ({"n_particles": 64**3}, r"262144 is 64\^3: write 64"),
        ({"n_particles": 8}, "n_particles 8 is less than grid 16"),
        ({"grid": 0}, "grid"),
        ({"grid": -4}, "grid"),
        ({"grid": 16.0}, "whole number"),
        ({"box_size_mpc_h": 0}, "box_size_mpc_h"),
        ({"box_size_mpc_h": float("inf")}, "box_size_mpc_h"),
        ({"seed": -1}, "seed"),
        ({"omega_m": -0.3}, "omega_m"),
        ({"n_particles": 64, "grid": 2}, "more than int16"),
    ],
)
def test_what_can_not_be_used_is_refused_by_name(changed: dict, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        cosmology.simulate(**(SMALL | changed))
