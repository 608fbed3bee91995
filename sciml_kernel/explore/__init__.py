"""Questions to data larger than memory, answered lazily through xarray and Dask.

universe.py   `count_statistics`: how clumpy each universe is
"""

from __future__ import annotations

from sciml_kernel.explore.universe import count_statistics

__all__ = ["count_statistics"]
