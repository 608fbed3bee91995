"""Linear theory of a flat universe of cold dark matter, baryons and a cosmological constant.

Spectrum: transfer function of Eisenstein & Hu 1998 (ApJ 496, 605; "EH98"), with baryon wiggles. Growth: radiation and
neutrinos are neglected, as in the simulations of arXiv 1808.04728. Against a Boltzmann code EH98 is off by up to about
4 % over the priors for 0.01 < k < 10 h/Mpc.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import simpson, solve_ivp
from scipy.special import hyp2f1

from sciml_kernel.cosmology.checks import real
from sciml_kernel.errors import UsageError

__all__ = ["OMEGA_B", "T_CMB_K", "Growth", "H", "growth", "linear_power", "top_hat_sigma", "transfer"]

OMEGA_B = 0.045  # of the paper's simulations, as is h below
H = 0.703
T_CMB_K = 2.7255

Array = NDArray[np.float64]


def linear_power(
    k_h_mpc: ArrayLike,
    *,
    omega_m: float,
    sigma_8: float,
    n_s: float,
    omega_b: float = OMEGA_B,
    h: float = H,
    z: float = 0.0,
) -> Array:
    """Linear matter power spectrum.

    k_h_mpc: any shape, h/Mpc, 0 or more. omega_m: matter, baryons included. sigma_8: rms contrast today in spheres of
    8 Mpc/h. n_s: spectral index. z: redshift.

    Returns power: the shape of k, float64, (Mpc/h)^3; 0 at k = 0. P(k) = A k^n_s T(k)^2 D1(z)^2 with D1(0) = 1 and A
    from sigma_8. Raises UsageError for a value out of range.
    """
    omega_m, omega_b, h = _checked(omega_m, omega_b, h)
    sigma_8 = real("sigma_8", sigma_8, above=0, up_to=10)
    n_s = real("n_s", n_s, above=-3, up_to=10)
    z = real("z", z, above=-1)
    k = np.asarray(k_h_mpc, dtype=np.float64)
    if not np.all(np.isfinite(k)) or np.any(k < 0):
        raise UsageError("k_h_mpc must be finite and 0 or more, in h/Mpc")
    amplitude = sigma_8 / _unit_sigma(8.0, omega_m, n_s, omega_b, h)
    d1 = growth(z, omega_m=omega_m).d1 if z != 0 else 1.0
    power: Array = (amplitude * d1) ** 2 * _unit_power(k, omega_m, n_s, omega_b, h)
    return power


def top_hat_sigma(k_h_mpc: ArrayLike, power: ArrayLike, *, radius_mpc_h: float = 8.0) -> float:
    """Rms contrast in spheres: sigma^2 = int dk k^2 P(k) W(kR)^2 / (2 pi^2), W the transform of a top hat.

    k_h_mpc: (k,), h/Mpc, evenly spaced in log k and wide enough for the integral. power: (k,), (Mpc/h)^3.
    """
    k = np.asarray(k_h_mpc, dtype=np.float64)
    x = k * radius_mpc_h
    # W = 3 (sin x - x cos x) / x^3 loses all digits at small x; its series is 1 - x^2/10.
    small = x < 1e-2
    safe = np.where(small, 1.0, x)
    window = np.where(small, 1 - x**2 / 10, 3 * (np.sin(safe) - safe * np.cos(safe)) / safe**3)
    integrand = k**3 * np.asarray(power, dtype=np.float64) * window**2 / (2 * np.pi**2)
    return float(np.sqrt(simpson(integrand, x=np.log(k))))


def transfer(k_h_mpc: ArrayLike, *, omega_m: float, omega_b: float = OMEGA_B, h: float = H) -> Array:
    """Transfer function T(k) of EH98 with wiggles, T -> 1 for k -> 0. k_h_mpc: any shape, h/Mpc. Equations of EH98."""
    omega_m, omega_b, h = _checked(omega_m, omega_b, h)
    k = np.maximum(np.asarray(k_h_mpc, dtype=np.float64) * h, 1e-12)  # 1/Mpc
    theta = T_CMB_K / 2.7
    wm, wb = omega_m * h**2, omega_b * h**2
    f_b = omega_b / omega_m
    f_c = 1 - f_b

    z_eq = 2.50e4 * wm * theta**-4  # (2)
    k_eq = 7.46e-2 * wm * theta**-2  # (3)
    b1 = 0.313 * wm**-0.419 * (1 + 0.607 * wm**0.674)
    b2 = 0.238 * wm**0.223
    z_d = 1291 * wm**0.251 / (1 + 0.659 * wm**0.828) * (1 + b1 * wb**b2)  # (4)
    r_eq = 31.5 * wb * theta**-4 * 1e3 / z_eq  # (5)
    r_d = 31.5 * wb * theta**-4 * 1e3 / z_d
    s = 2 / (3 * k_eq) * np.sqrt(6 / r_eq)  # (6), with the next line
    s *= np.log((np.sqrt(1 + r_d) + np.sqrt(r_d + r_eq)) / (1 + np.sqrt(r_eq)))
    k_silk = 1.6 * wb**0.52 * wm**0.73 * (1 + (10.4 * wm) ** -0.95)  # (7)
    q = k / (13.41 * k_eq)  # (10)
    ks = k * s

    # Cold dark matter, (11), (12), (17), (18)
    a1 = (46.9 * wm) ** 0.670 * (1 + (32.1 * wm) ** -0.532)
    a2 = (12.0 * wm) ** 0.424 * (1 + (45.0 * wm) ** -0.582)
    alpha_c = a1**-f_b * a2 ** -(f_b**3)
    b1 = 0.944 / (1 + (458 * wm) ** -0.708)
    b2 = (0.395 * wm) ** -0.0266
    beta_c = 1 / (1 + b1 * (f_c**b2 - 1))
    f = 1 / (1 + (ks / 5.4) ** 4)
    t_c = f * _t0(q, 1.0, beta_c) + (1 - f) * _t0(q, alpha_c, beta_c)

    # Baryons, (14), (15), (21)-(24)
    y = (1 + z_eq) / (1 + z_d)
    root = np.sqrt(1 + y)
    g = y * (-6 * root + (2 + 3 * y) * np.log((root + 1) / (root - 1)))
    alpha_b = 2.07 * k_eq * s * (1 + r_d) ** -0.75 * g
    beta_node = 8.41 * wm**0.435
    beta_b = 0.5 + f_b + (3 - 2 * f_b) * np.sqrt((17.2 * wm) ** 2 + 1)
    s_tilde = s / (1 + (beta_node / ks) ** 3) ** (1 / 3)
    t_b = _t0(q, 1.0, 1.0) / (1 + (ks / 5.2) ** 2)
    t_b += alpha_b / (1 + (beta_b / ks) ** 3) * np.exp(-((k / k_silk) ** 1.4))
    t_b *= np.sinc(k * s_tilde / np.pi)  # numpy's sinc(x) is sin(pi x) / (pi x)

    total: Array = f_b * t_b + f_c * t_c  # (16)
    return total


def _t0(q: Array, alpha: float, beta: float) -> Array:
    """EH98 (19), (20)."""
    c = 14.2 / alpha + 386 / (1 + 69.9 * q**1.08)
    log = np.log(np.e + 1.8 * beta * q)
    result: Array = log / (log + c * q**2)
    return result


def _unit_power(k: Array, omega_m: float, n_s: float, omega_b: float, h: float) -> Array:
    """k^n_s T^2, 0 at k = 0."""
    positive = np.where(k > 0, k, 1.0)
    shape = positive**n_s * transfer(positive, omega_m=omega_m, omega_b=omega_b, h=h) ** 2
    return np.where(k > 0, shape, 0.0)


@functools.lru_cache(maxsize=256)
def _unit_sigma(radius: float, omega_m: float, n_s: float, omega_b: float, h: float) -> float:
    # Beyond 100 h/Mpc W^2 leaves less than 1e-7 of the integral, below 1e-5 h/Mpc k^3 P does. On this
    # grid Simpson is good to 1e-6.
    k = np.logspace(-5, 2, 4097)
    return top_hat_sigma(k, _unit_power(k, omega_m, n_s, omega_b, h), radius_mpc_h=radius)


class Growth(NamedTuple):
    """Growing modes, and their logarithmic rates d ln|D| / d ln a.

    d1: first order, 1 today. d2: second order, negative; the displacement is x = q - d1 grad phi1 + d2 grad phi2.
    """

    d1: float
    d2: float
    f1: float
    f2: float


def growth(z: float = 0.0, *, omega_m: float) -> Growth:
    """Growth of first and second order in a flat universe without radiation.

    First order, closed: D1 ~ a 2F1(1/3, 1; 11/6; -x), x = a^3 (1 - omega_m) / omega_m. Second order: the equation
    D2'' + (2 + H'/H) D2' - 3/2 Om(a) D2 = -3/2 Om(a) D1^2 in ln a (Bouchet et al. 1995), integrated from a = 1e-3
    where D2 = -3/7 D1^2; Bouchet's fit -3/7 Om^(-1/143) D1^2 agrees to about 1e-3.
    """
    omega_m = real("omega_m", omega_m, above=0, up_to=1)
    z = real("z", z, above=-1)
    return _growth(1 / (1 + z), omega_m)


@functools.lru_cache(maxsize=256)
def _growth(a: float, omega_m: float) -> Growth:
    d1, f1 = _first_order(a, omega_m)
    today, _ = _first_order(1.0, omega_m)

    def slope(ln_a: float, state: Any) -> tuple[float, float]:
        a_now = np.exp(ln_a)
        om = omega_m / (omega_m + (1 - omega_m) * a_now**3)
        source = 1.5 * om * _first_order(a_now, omega_m)[0] ** 2
        return state[1], -(2 - 1.5 * om) * state[1] + 1.5 * om * state[0] - source

    start = min(1e-3, 0.1 * a)
    d1_start = _first_order(start, omega_m)[0]
    first = [-3 / 7 * d1_start**2, -6 / 7 * d1_start**2]
    solution = solve_ivp(slope, (np.log(start), np.log(a)), first, rtol=1e-8, atol=1e-14, method="DOP853")
    d2, d2_slope = solution.y[:, -1]
    return Growth(d1 / today, float(d2) / today**2, f1, float(d2_slope / d2))


def _first_order(a: float, omega_m: float) -> tuple[float, float]:
    """D1 with D1 -> a early on, and d ln D1 / d ln a."""
    x = a**3 * (1 - omega_m) / omega_m
    shape = float(hyp2f1(1 / 3, 1.0, 11 / 6, -x))
    # d 2F1(a,b;c;u)/du = (ab/c) 2F1(a+1,b+1;c+1;u), and d u / d ln a = -3x
    rate = 1 - 3 * x * (2 / 11) * float(hyp2f1(4 / 3, 2.0, 17 / 6, -x)) / shape
    return a * shape, rate


def _checked(omega_m: float, omega_b: float, h: float) -> tuple[float, float, float]:
    omega_m = real("omega_m", omega_m, above=0, up_to=1)
    omega_b = real("omega_b", omega_b, above=0, up_to=1)
    h = real("h", h, above=0, up_to=10)
    if omega_b >= omega_m:
        raise UsageError(f"omega_b {omega_b:g} must be smaller than omega_m {omega_m:g}, which includes it")
    return omega_m, omega_b, h
