"""Samples on disk as one lazy array (sample, z, y, x, channel)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

__all__ = ["CHUNK_BYTES", "lazy_density"]

CHUNK_BYTES = 1 << 22  # small samples share a chunk, so that a thousand universes are not a thousand tasks

Block = Callable[[list[int]], NDArray[np.int16]]


class _Samples:
    """What `dask.array.from_array` needs of an array. Reads the samples that are indexed, nothing else."""

    ndim = 5
    dtype = np.dtype(np.int16)

    def __init__(self, n: int, shape: tuple[int, ...], read: Block) -> None:
        self.shape = (n, *shape)
        self._read = read

    def __getitem__(self, key: Any) -> NDArray[np.int16]:
        first, *rest = key if isinstance(key, tuple) else (key,)
        numbers = np.arange(self.shape[0])[first]
        block = self._read(np.atleast_1d(numbers).tolist())
        return block[(slice(None) if numbers.ndim else 0, *rest)]


def lazy_density(
    n: int, shape: tuple[int, ...], read: Block, *, token: str, samples_per_chunk: int | None = None
) -> Any:
    """A dask array (sample, z, y, x, channel), int16, whose chunks are whole samples.

    read: sample numbers -> (len, z, y, x, channel); safe in threads. token: name of the content; equal tokens are taken
    for equal arrays. samples_per_chunk: default, as many as fill about 4 MiB.
    """
    if samples_per_chunk is None:
        samples_per_chunk = max(1, CHUNK_BYTES // (2 * int(np.prod(shape))))
    make: Any = da.from_array
    return make(
        _Samples(n, shape, read),
        chunks=(min(samples_per_chunk, n), *shape),
        name=f"universes-{token}",
        asarray=False,
        meta=np.empty((0,) * 5, dtype=np.int16),
    )
