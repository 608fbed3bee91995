"""Gaussian initial field and Lagrangian perturbation theory to second order, in a periodic box.

Fields are float32: a displacement is good to about 1e-6 of a voxel times the box's cells, far below what counting
particles into voxels loses. Axes are (z, y, x). A transform is numpy's unnormalised `rfftn`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.fft
from numpy.typing import NDArray

__all__ = ["count_particles", "displacement", "gaussian_field"]

Real = NDArray[np.float32]
Complex = NDArray[np.complex64]
Axes = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]

_SLAB = 1 << 22  # particles counted at once: bounds the index arrays to 100 MB


def gaussian_field(
    n: int, *, box_size_mpc_h: float, power: Callable[[NDArray[np.float64]], NDArray[np.float64]], seed: int
) -> Complex:
    """Transform of a Gaussian random contrast with a given spectrum.

    n: cells a side. power: k in h/Mpc -> (Mpc/h)^3. Returns delta_k: (n, n, n // 2 + 1), complex64.

    White noise of unit variance has <|w_k|^2> = n^3; multiplied with sqrt(P n^3 / V) it has
    <|delta_k|^2> = P n^6 / V, which is the spectrum P by the convention of `spectrum`. The noise is drawn in real
    space, so that every symmetry of the transform of a real field holds by itself.
    """
    noise = np.random.default_rng(seed).standard_normal((n, n, n), dtype=np.float32)
    field: Complex = scipy.fft.rfftn(noise, overwrite_x=True)
    square = _square(_wave_numbers(n))
    # |m|^2 is a whole number: the spectrum is computed once for each, not once for each mode.
    shells = np.arange(int(square.max()) + 1)
    k = 2 * np.pi / box_size_mpc_h * np.sqrt(shells)
    amplitude = np.sqrt(power(k) * n**3 / box_size_mpc_h**3)
    amplitude[0] = 0.0
    field *= amplitude.astype(np.float32)[square]
    return field


def displacement(delta_k: Complex, *, box_size_mpc_h: float, d1: float, d2: float) -> tuple[Real, Real, Real]:
    """Displacement of particles that start on the cells of the field; Bouchet et al. 1995, Scoccimarro 1998 (app. D).

        x = q - d1 grad phi1 + d2 grad phi2,   lap phi1 = delta,   lap phi2 = sum_{i>j} (phi1_ii phi1_jj - phi1_ij^2)

    delta_k: (n, n, n // 2 + 1), complex64: contrast today by linear theory. d1, d2: growth (`linear.growth`; d2 is
    negative); d2 = 0 gives the Zel'dovich approximation.

    Returns displacement (z, y, x), each (n, n, n), float32, Mpc/h. The odd derivatives leave the Nyquist frequency out,
    where a real field has none.
    """
    n = delta_k.shape[0]
    whole = _wave_numbers(n)
    inverse = np.zeros(int(_square(whole).max()) + 1, dtype=np.float32)
    inverse[1:] = 1.0 / np.arange(1, inverse.size)
    inverse_square = inverse[_square(whole)]
    odd = tuple(np.where(np.abs(m) * 2 == n, 0, m).astype(np.float32) for m in whole)

    total = d1 * delta_k
    if d2 != 0:
        phi1 = delta_k * inverse_square  # phi_ij = k_i k_j / k^2 delta, without a unit
        even = tuple(m.astype(np.float32) for m in whole)
        zz, yy, xx = (_back(phi1 * (m * m), n) for m in even)
        source = zz * yy + zz * xx + yy * xx
        del zz, yy, xx
        for i, j in ((0, 1), (0, 2), (1, 2)):
            source -= _back(phi1 * (odd[i] * odd[j]), n) ** 2
        del phi1
        total -= d2 * scipy.fft.rfftn(source, overwrite_x=True)

    # -d1 grad phi1 + d2 grad phi2 = i k / k^2 (d1 delta - d2 source); 1/k has the unit L / 2 pi.
    total *= inverse_square
    total *= np.complex64(1j * box_size_mpc_h / (2 * np.pi))
    z, y, x = (_back(total * m, n) for m in odd)
    return z, y, x


def count_particles(shift: tuple[Real, Real, Real], *, grid: int, box_size_mpc_h: float) -> NDArray[np.int64]:
    """Count displaced particles into voxels (nearest grid point).

    shift: displacement (z, y, x), each (n, n, n), Mpc/h, of particles that start at (i + 1/2) L / n: undisplaced
    particles fill the voxels evenly where n is a multiple of the grid. Returns counts: (grid, grid, grid), int64; their
    sum is n^3 exactly, as the box is periodic.
    """
    n = shift[0].shape[0]
    start = ((np.arange(n) + 0.5) * grid / n).astype(np.float32)
    scale = np.float32(grid / box_size_mpc_h)
    counts = np.zeros(grid**3, dtype=np.int64)
    rows = max(1, _SLAB // n**2)
    for first in range(0, n, rows):
        part = slice(first, first + rows)
        index = _voxel(start[part, None, None] + scale * shift[0][part], grid)
        index *= grid
        index += _voxel(start[:, None] + scale * shift[1][part], grid)
        index *= grid
        index += _voxel(start + scale * shift[2][part], grid)
        counts += np.bincount(index.ravel(), minlength=grid**3)
    return counts.reshape(grid, grid, grid)


def _voxel(position: Real, grid: int) -> NDArray[np.int64]:
    cell = np.floor(position, out=position).astype(np.int64)
    cell %= grid
    return cell


def _back(field: NDArray[np.complexfloating], n: int) -> Real:
    result: Real = scipy.fft.irfftn(field, s=(n, n, n), overwrite_x=True)
    return result


def _wave_numbers(n: int) -> Axes:
    """Whole wave numbers of an `rfftn`, shaped to broadcast: (n, 1, 1), (n, 1), (n // 2 + 1,)."""
    full = np.rint(np.fft.fftfreq(n) * n).astype(np.int64)
    return full[:, None, None], full[:, None], np.arange(n // 2 + 1)


def _square(m: Axes) -> NDArray[np.int64]:
    return m[0] ** 2 + m[1] ** 2 + m[2] ** 2
