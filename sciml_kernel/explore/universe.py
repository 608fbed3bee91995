"""One-point statistics of universes, sample by sample."""

from __future__ import annotations

import numpy as np
import xarray as xr

from sciml_kernel.errors import UsageError

__all__ = ["count_statistics"]


def count_statistics(ds: xr.Dataset, *, channel: int = 0) -> xr.Dataset:
    """How clumpy each universe is.

    ds: as `open_universe`: density (sample, z, y, x, channel), int16, counts per voxel. Lazy in, lazy out: memory is
    bounded by the chunks. Returns Dataset(sample), float64: `mean_counts`; `contrast_std`, the standard deviation of
    counts / mean (grows with sigma_8); `empty_fraction`, the share of voxels without a particle (0 to 1); and ds's
    `targets`. Raises UsageError without such a density.
    """
    if "density" not in ds or "channel" not in ds["density"].dims:
        raise UsageError(f"needs density (sample, z, y, x, channel), got {list(ds)} with {dict(ds.sizes)}")
    counts = ds["density"].isel(channel=channel, drop=True)
    cube = ("z", "y", "x")
    mean = counts.mean(cube, dtype=np.float64)
    square = (counts.astype(np.float64) ** 2).mean(cube)
    result = xr.Dataset(
        {
            "mean_counts": mean.assign_attrs(units="counts per voxel"),
            "contrast_std": ((square - mean**2).clip(min=0.0) ** 0.5 / mean).assign_attrs(units=""),
            "empty_fraction": (counts == 0).mean(cube).assign_attrs(units=""),
        }
    )
    return result.assign(targets=ds["targets"]) if "targets" in ds else result
