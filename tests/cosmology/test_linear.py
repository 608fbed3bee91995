"""Linear theory against colossus (an independent implementation), closed forms and fits from the literature."""

from __future__ import annotations

import numpy as np
import pytest

from sciml_kernel.cosmology import linear
from sciml_kernel.errors import UsageError

PARAMETERS = [(0.25, 0.78, 0.90), (0.30, 0.8628, 0.95), (0.35, 0.95, 1.0)]


def colossus(omega_m: float, sigma_8: float, n_s: float):
    cosmology = pytest.importorskip("colossus.cosmology.cosmology")
    return cosmology.Cosmology(
        name="flat",
        flat=True,
        H0=70.3,
        Om0=omega_m,
        Ob0=0.045,
        sigma8=sigma_8,
        ns=n_s,
        relspecies=False,
        persistence="",
    )


@pytest.mark.parametrize(("omega_m", "sigma_8", "n_s"), PARAMETERS)
def test_spectrum_agrees_with_colossus(omega_m: float, sigma_8: float, n_s: float) -> None:
    k = np.logspace(-3, 1, 200)
    other = colossus(omega_m, sigma_8, n_s).matterPowerSpectrum(k, 0.0, model="eisenstein98")
    ours = linear.linear_power(k, omega_m=omega_m, sigma_8=sigma_8, n_s=n_s)
    np.testing.assert_allclose(ours, other, rtol=2e-3)


def test_spectrum_at_another_redshift_agrees_with_colossus() -> None:
    k = np.logspace(-2, 0, 20)
    other = colossus(0.3, 0.85, 0.95).matterPowerSpectrum(k, 1.5, model="eisenstein98")
    ours = linear.linear_power(k, omega_m=0.3, sigma_8=0.85, n_s=0.95, z=1.5)
    np.testing.assert_allclose(ours, other, rtol=3e-3)


@pytest.mark.parametrize(("omega_m", "sigma_8", "n_s"), PARAMETERS)
def test_top_hat_integral_gives_sigma_8_back(omega_m: float, sigma_8: float, n_s: float) -> None:
    # Written out again here with a plain trapezoid sum, on a finer and wider grid than the code's own.
    k = np.logspace(-6, 3, 60_000)
    power = linear.linear_power(k, omega_m=omega_m, sigma_8=sigma_8, n_s=n_s)
    x = 8 * k
    window = np.where(x < 1e-2, 1.0, 3 * (np.sin(x) - x * np.cos(x)) / x**3)
    sigma = np.sqrt(np.trapezoid(k**2 * power * window**2 / (2 * np.pi**2), k))
    assert sigma == pytest.approx(sigma_8, rel=1e-3)


def test_spectrum_scales_with_sigma_8_squared_and_tilts_with_n_s() -> None:
    k = np.array([0.01, 0.1, 1.0])
    low = linear.linear_power(k, omega_m=0.3, sigma_8=0.8, n_s=0.95)
    np.testing.assert_allclose(linear.linear_power(k, omega_m=0.3, sigma_8=1.6, n_s=0.95), 4 * low, rtol=1e-12)
    tilted = linear.linear_power(k, omega_m=0.3, sigma_8=0.8, n_s=1.0) / low
    np.testing.assert_allclose(tilted / tilted[0], (k / k[0]) ** 0.05, rtol=1e-12)


def test_spectrum_has_the_shape_of_k_and_no_power_at_zero() -> None:
    power = linear.linear_power(np.zeros((2, 3)), omega_m=0.3, sigma_8=0.8, n_s=0.95)
    assert power.shape == (2, 3)
    assert np.all(power == 0)
    assert linear.linear_power(0.1, omega_m=0.3, sigma_8=0.8, n_s=0.95).shape == ()


def test_transfer_goes_to_one_on_large_scales() -> None:
    assert linear.transfer(1e-6, omega_m=0.3) == pytest.approx(1, abs=1e-3)


def test_baryons_leave_wiggles() -> None:
    # The sound horizon is about 105 Mpc/h here: T divided by a smooth curve has its first maxima near k = 0.075 h/Mpc.
    k = np.linspace(0.02, 0.3, 400)
    with_baryons = linear.transfer(k, omega_m=0.3, omega_b=0.06) / linear.transfer(k, omega_m=0.3, omega_b=1e-4)
    smooth = np.polynomial.Polynomial.fit(np.log(k), np.log(with_baryons), 3)(np.log(k))
    wiggle = np.log(with_baryons) - smooth
    assert np.sum(np.diff(np.sign(wiggle)) != 0) >= 5


@pytest.mark.parametrize("z", [0.0, 0.5, 1.0, 3.0, 9.0])
def test_growth_in_an_einstein_de_sitter_universe_is_the_scale_factor(z: float) -> None:
    # Omega_m = 1: D1 = a, D2 = -3/7 a^2, f1 = 1, f2 = 2 exactly.
    a = 1 / (1 + z)
    np.testing.assert_allclose(linear.growth(z, omega_m=1.0), (a, -3 / 7 * a**2, 1, 2), rtol=1e-6)


@pytest.mark.parametrize("omega_m", [0.25, 0.3, 0.35])
@pytest.mark.parametrize("z", [0.5, 3.0, 20.0])
def test_growth_factor_agrees_with_colossus(omega_m: float, z: float) -> None:
    other = float(colossus(omega_m, 0.85, 0.95).growthFactor(z))
    assert linear.growth(z, omega_m=omega_m).d1 == pytest.approx(other, rel=1e-3)


@pytest.mark.parametrize("z", [0.0, 1.0, 9.0])
def test_second_order_growth_and_rates_agree_with_the_published_fits(z: float) -> None:
    # Bouchet et al. 1995, flat: D2 = -3/7 Om^(-1/143) D1^2, f1 = Om^(5/9), f2 = 2 Om^(6/11).
    omega_m = 0.3
    om = omega_m * (1 + z) ** 3 / (omega_m * (1 + z) ** 3 + 1 - omega_m)
    got = linear.growth(z, omega_m=omega_m)
    assert got.d2 == pytest.approx(-3 / 7 * om ** (-1 / 143) * got.d1**2, rel=2e-3)
    assert got.f1 == pytest.approx(om ** (5 / 9), rel=0.01)
    assert got.f2 == pytest.approx(2 * om ** (6 / 11), rel=0.01)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"omega_m": 0.0}, "omega_m"),
        ({"omega_m": 1.2}, "omega_m"),
        ({"omega_m": 0.04}, "omega_b 0.045 must be smaller"),
        ({"sigma_8": -1}, "sigma_8"),
        ({"n_s": float("nan")}, "n_s"),
        ({"h": "x"}, "h must be a number"),
        ({"z": -1}, "z must be above"),
    ],
)
def test_a_value_out_of_range_is_named(changed: dict, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        linear.linear_power(0.1, **({"omega_m": 0.3, "sigma_8": 0.8, "n_s": 0.95} | changed))


def test_a_negative_wave_number_is_refused() -> None:
    with pytest.raises(UsageError, match="k_h_mpc"):
        linear.linear_power([-0.1, 0.1], omega_m=0.3, sigma_8=0.8, n_s=0.95)
