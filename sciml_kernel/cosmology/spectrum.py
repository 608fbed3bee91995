"""Power spectrum of a periodic volume."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import scipy.fft
import xarray as xr
from numpy.typing import NDArray

from sciml_kernel.cosmology.checks import real
from sciml_kernel.errors import DataError, UsageError, did_you_mean

__all__ = ["power_spectrum"]

KINDS = ("auto", "counts", "contrast")


def power_spectrum(
    density: Any,
    *,
    box_size_mpc_h: float,
    shot_noise: bool = False,
    window: str | None = None,
    kind: str = "auto",
) -> xr.Dataset:
    """Power in spherical shells, each one fundamental frequency 2 pi / L wide, up to the Nyquist frequency.

    P(k) = V <|delta_k|^2> / N^6 with delta_k the unnormalised transform, N voxels a side, V = L^3.

    density: (z, y, x), cubic, any real type: particles per voxel, or contrast rho / mean - 1.
    box_size_mpc_h: side L of this volume, Mpc/h.
    shot_noise: subtract the noise V / (number of particles) of Poisson-sampled counts. Off by default: P(k) is that of
    the volume as it is. (Particles displaced from a lattice have less than Poisson noise on large scales.)
    window: "ngp" divides by what counting into voxels (nearest grid point) does to each mode, prod sinc^2(k_i L / 2N),
    before shot noise is subtracted; aliasing stays in. None, the default: nothing is done.
    kind: "counts", "contrast", or "auto": counts where no value is negative.

    A sub-volume cut from a larger box is not periodic: its spectrum is smeared over a shell and more.

    Returns Dataset with dim k (mean |k| of the shell's modes, h/Mpc) and variables power (float64, (Mpc/h)^3) and modes
    (int64: Fourier modes in the shell, both of each conjugate pair; a Gaussian field scatters by sqrt(2 / modes)).
    Raises DataError for a volume that can't be used, UsageError for an option.
    """
    box = real("box_size_mpc_h", box_size_mpc_h, above=0, unit="Mpc/h")
    if window not in (None, "ngp"):
        raise UsageError(f"window {window!r} is unknown; use 'ngp' or None")
    if kind not in KINDS:
        raise UsageError(f"kind {kind!r} is unknown; {did_you_mean(str(kind), KINDS)}")
    volume = np.asarray(density)
    if volume.ndim != 3 or len(set(volume.shape)) != 1 or volume.shape[0] < 2:
        raise DataError(f"density must be a cube (z, y, x) of at least 2 voxels a side, got shape {volume.shape}")
    contrast, n_particles = _contrast(volume, kind)
    if shot_noise and n_particles is None:
        raise UsageError("shot_noise can be subtracted from counts only: a contrast does not say how many particles")

    n = volume.shape[0]
    shells = _shells(n)
    transform = scipy.fft.rfftn(contrast)
    square = transform.real**2 + transform.imag**2
    if window == "ngp":
        # Here k_i L / 2N = pi m_i / N, and numpy's sinc(x) is sin(pi x) / (pi x).
        full, half = np.fft.fftfreq(n), np.arange(n // 2 + 1) / n
        for m in (full[:, None, None], full[:, None], half):
            square /= np.sinc(m) ** 2
    square *= shells.weight
    total = np.bincount(shells.number, square.ravel(), minlength=n // 2 + 1)[1 : n // 2 + 1]
    power = total / shells.modes * (box**3 / n**6)
    if shot_noise and n_particles is not None:
        power = power - box**3 / n_particles
    k = shells.radius * (2 * np.pi / box)

    done = [f"window {window} divided out" if window else "window left in"]
    done.append("Poisson shot noise subtracted" if shot_noise else "shot noise left in")
    return xr.Dataset(
        {
            "power": ("k", power, {"units": "(Mpc/h)^3", "long_name": "P(k)", "comment": "; ".join(done)}),
            "modes": ("k", shells.modes.copy(), {"long_name": "Fourier modes in the shell"}),
        },
        coords={"k": ("k", k, {"units": "h/Mpc", "long_name": "wave number"})},
        attrs={"box_size_mpc_h": box, "grid": n},
    )


class _Shells(NamedTuple):
    """Geometry of the shells 1..n // 2 on the modes of an `rfftn`.

    number: (mode,), shell of each mode, flat. weight: (n // 2 + 1,): how many modes of the full transform stand for one
    along the halved axis. modes, radius: (shell,): number of modes of the full transform, mean |m| of them.
    """

    number: NDArray[np.int64]
    weight: NDArray[np.float64]
    modes: NDArray[np.int64]
    radius: NDArray[np.float64]


@functools.lru_cache(maxsize=4)
def _shells(n: int) -> _Shells:
    full, half = np.rint(np.fft.fftfreq(n) * n), np.arange(n // 2 + 1)
    radius = np.sqrt(full[:, None, None] ** 2 + full[:, None] ** 2 + half**2)
    # rfftn holds one of each conjugate pair, except in the planes m_x = 0 and (n even) m_x = n/2, where it holds both.
    weight = np.where((half == 0) | (2 * half == n), 1.0, 2.0)
    number = np.floor(radius + 0.5).astype(np.int64).ravel()
    inside = slice(1, n // 2 + 1)
    modes = np.bincount(number, np.broadcast_to(weight, radius.shape).ravel())[inside]
    mean = np.bincount(number, (weight * radius).ravel())[inside] / modes
    return _Shells(number, weight, np.rint(modes).astype(np.int64), mean)


def _contrast(volume: NDArray[Any], kind: str) -> tuple[NDArray[np.float64], float | None]:
    """Contrast, and the number of particles if the volume holds counts."""
    values = volume.astype(np.float64)
    if not np.all(np.isfinite(values)):
        raise DataError("density holds values that are not finite")
    if kind == "auto":
        kind = "contrast" if values.min() < 0 else "counts"
    if kind == "contrast":
        return values, None
    total = float(values.sum())
    if values.min() < 0 or total <= 0:
        raise DataError("density holds no particles" if total <= 0 else "counts can't be negative; kind='contrast'?")
    return values / (total / values.size) - 1.0, total
