"""One universe: from cosmological parameters and a seed to particle counts per voxel at redshift 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from sciml_kernel.cosmology import lpt
from sciml_kernel.cosmology.checks import real, whole
from sciml_kernel.cosmology.linear import OMEGA_B, H, growth, linear_power
from sciml_kernel.errors import UsageError, did_you_mean

__all__ = ["MAX_SIDE", "METHODS", "check_sizes", "simulate"]

METHODS = ("2lpt",)
MAX_SIDE = 1024  # 1024^3 particles are 60 GB here; a slip such as 64**3 is caught long before
INT16_MAX = 32767


def simulate(
    *,
    omega_m: float,
    sigma_8: float,
    n_s: float,
    n_particles: int,
    grid: int,
    box_size_mpc_h: float,
    method: str = "2lpt",
    seed: int,
) -> xr.DataArray:
    """Simulate a periodic box of dark matter and count its particles per voxel.

    omega_m, sigma_8, n_s: as in `linear_power`; omega_b = 0.045 and h = 0.703 are those of arXiv 1808.04728.
    n_particles: particles a SIDE, so n_particles^3 in all; at least `grid`. The paper has twice the grid, which is 8
    particles a voxel in the mean. grid: voxels a side. box_size_mpc_h: side of the box, Mpc/h. method: "2lpt", second
    order Lagrangian perturbation theory; right on large scales, 10 % low in power at k = 0.15 h/Mpc and half at 0.5.
    seed: of the initial phases, 0 or more; the same seed, sizes and numpy give the same universe.

    Returns counts: (z, y, x), int16, particles per voxel, with voxel centres in Mpc/h as coordinates. The sum is
    n_particles^3 exactly. Raises UsageError for anything that can't be used.
    """
    if method not in METHODS:
        hint = "COLA is not built yet" if method == "cola" else did_you_mean(str(method), METHODS)
        raise UsageError(f"method {method!r} is not available; use {' or '.join(map(repr, METHODS))} ({hint})")
    n_particles, grid, box = check_sizes(n_particles, grid, box_size_mpc_h)
    seed = whole("seed", seed, at_least=0)

    def power(k: NDArray[np.float64]) -> NDArray[np.float64]:
        return linear_power(k, omega_m=omega_m, sigma_8=sigma_8, n_s=n_s)

    delta_k = lpt.gaussian_field(n_particles, box_size_mpc_h=box, power=power, seed=seed)
    today = growth(0.0, omega_m=omega_m)
    shift = lpt.displacement(delta_k, box_size_mpc_h=box, d1=today.d1, d2=today.d2)
    counts = lpt.count_particles(shift, grid=grid, box_size_mpc_h=box)
    if counts.max() > INT16_MAX:
        raise UsageError(
            f"a voxel holds {counts.max()} particles, more than int16 can count; use a finer grid or fewer particles"
        )
    attrs: dict[str, Any] = {
        "long_name": "dark-matter particles per voxel",
        "units": "particles",
        "box_size_mpc_h": box,
        "voxel_size_mpc_h": box / grid,
        "n_particles": n_particles,
        "omega_m": float(omega_m),
        "sigma_8": float(sigma_8),
        "n_s": float(n_s),
        "omega_b": OMEGA_B,
        "h": H,
        "redshift": 0.0,
        "method": method,
        "seed": seed,
    }
    centre = (np.arange(grid) + 0.5) * box / grid
    coords = {axis: (axis, centre, {"units": "Mpc/h"}) for axis in ("z", "y", "x")}
    return xr.DataArray(counts.astype(np.int16), dims=("z", "y", "x"), coords=coords, name="counts", attrs=attrs)


def check_sizes(n_particles: Any, grid: Any, box_size_mpc_h: Any) -> tuple[int, int, float]:
    """The three sizes of a universe as numbers, or UsageError."""
    grid = whole("grid", grid, at_least=2, at_most=MAX_SIDE, meaning="voxels a side")
    n_particles = whole("n_particles", n_particles, at_least=2, at_most=None, meaning="particles a side")
    if n_particles > MAX_SIDE:
        root = round(n_particles ** (1 / 3))
        cube = f"; {n_particles} is {root}^3: write {root}" if root**3 == n_particles else ""
        raise UsageError(f"n_particles is counted along a side and is at most {MAX_SIDE}, got {n_particles}{cube}")
    if n_particles < grid:
        raise UsageError(
            f"n_particles {n_particles} is less than grid {grid}: under one particle a voxel is mostly noise; "
            f"use {grid} or, as in the paper, {2 * grid}"
        )
    return n_particles, grid, real("box_size_mpc_h", box_size_mpc_h, above=0, up_to=1e5, unit="Mpc/h")
