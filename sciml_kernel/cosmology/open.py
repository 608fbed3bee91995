"""Universes on disk as one lazy Dataset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xarray as xr

from sciml_kernel import registry
from sciml_kernel.data.manifest import MANIFEST, sha256_of
from sciml_kernel.data.readers.lazy import lazy_density
from sciml_kernel.data.universe import UniverseShards
from sciml_kernel.errors import DataError

__all__ = ["open_universe"]


def open_universe(path: str | Path) -> xr.Dataset:
    """Open a folder of universes, or one file of them; the volumes are read when they are used.

    path: a folder with `manifest.json`, that file itself, or a file that an installed reader knows (TFRecord).

    Returns Dataset: density (sample, z, y, x, channel), int16, particles per voxel, a dask array whose chunks are whole
    samples; targets (sample, parameter), float32, physical units; simulation (sample), int64. Coordinates: parameter
    names; z, y, x: voxel centres in Mpc/h; redshift (channel). Attributes: box_size_mpc_h, voxel_size_mpc_h and how it
    was made. A file without a manifest says less: density and targets only.

    Raises DataError for what is missing, truncated or of an unknown format.
    """
    path = Path(path).expanduser()
    if path.is_file() and path.name != MANIFEST:
        return _open_file(path)
    return _open_shards(UniverseShards(path.parent if path.name == MANIFEST else path))


def _open_file(path: Path) -> xr.Dataset:
    readers = registry.readers()
    for reader in readers:
        if reader.can_read(path):
            return reader.open(path)
    names = ", ".join(reader.name for reader in readers) or "none"
    raise DataError(f"no installed reader knows {path} (there are: {names})")


def _open_shards(shards: UniverseShards) -> xr.Dataset:
    manifest = shards.manifest
    density = lazy_density(
        shards.n,
        shards.shape,
        lambda numbers: shards.read_many(numbers)[0],
        token=sha256_of(shards.folder / MANIFEST),
    )
    centre = (np.arange(manifest.grid) + 0.5) * manifest.voxel_size_mpc_h
    return xr.Dataset(
        {
            "density": (
                ("sample", "z", "y", "x", "channel"),
                density,
                {"units": "particles", "long_name": "dark-matter particles per voxel"},
            ),
            "targets": (("sample", "parameter"), shards.targets, {"long_name": "cosmological parameters"}),
            "simulation": ("sample", shards.simulation, {"long_name": "simulation that the sample is cut from"}),
        },
        coords={
            "parameter": list(shards.parameters),
            **{axis: (axis, centre, {"units": "Mpc/h"}) for axis in ("z", "y", "x")},
            "redshift": ("channel", np.array(manifest.redshifts)),
        },
        attrs={
            "box_size_mpc_h": manifest.box_size_mpc_h,
            "voxel_size_mpc_h": manifest.voxel_size_mpc_h,
            "n_particles": manifest.n_particles,
            "method": manifest.method,
            "source": str(shards.folder),
        },
    )
