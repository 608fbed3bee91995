"""sciml_kernel: a notebook drives a pool of MPI ranks that train TensorFlow models with Horovod.

Table of contents
-----------------
Run something
    `Pool`           ranks on allocated nodes: start, attach, list, run, restart, stop
    `watch`          a pool's state, ranks and call, renewed in place in a notebook
    `train`, `Run`   one experiment: config -> pool -> ranks -> metrics -> record; read `session.py` first
    `runs`           every run on disk, one row each
    `stage`          a part of a notebook that a resumed batch run need not run again
    `note`           keep a result of this notebook with its batch run
Look at data
    `open_universe`  dark-matter volumes, lazy, as an xarray Dataset
    `data_root`      where data sets lie that a notebook makes by itself
    `cosmology`      linear theory, simulator, power spectrum
    `views`          live curves, slices, spectra, comparisons
Below
    `config`, `records`, `metrics`, `errors`, `contracts`, `registry`

Importing this package loads no TensorFlow, MPI or Dask: names are found when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lazy_loader

__version__ = "0.1.0"

if TYPE_CHECKING:
    from sciml_kernel import config, cosmology, errors, metrics, records, views
    from sciml_kernel.batch.stages import stage
    from sciml_kernel.cosmology import open_universe
    from sciml_kernel.data.folders import data_root
    from sciml_kernel.pool import Pool
    from sciml_kernel.records.notes import note
    from sciml_kernel.session import Run, runs, train
    from sciml_kernel.views.pool_panel import watch

__all__ = [
    "Pool",
    "Run",
    "config",
    "cosmology",
    "data_root",
    "errors",
    "metrics",
    "note",
    "open_universe",
    "records",
    "runs",
    "stage",
    "train",
    "views",
    "watch",
]

__getattr__, __dir__, _ = lazy_loader.attach(
    __name__,
    submodules=["config", "cosmology", "errors", "metrics", "records", "views"],
    submod_attrs={
        "batch.stages": ["stage"],
        "cosmology": ["open_universe"],
        "data.folders": ["data_root"],
        "pool": ["Pool"],
        "records.notes": ["note"],
        "session": ["Run", "runs", "train"],
        "views.pool_panel": ["watch"],
    },
)


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext sciml_kernel`: adds the magics and the live displays to this IPython shell."""
    from sciml_kernel.jupyter.extension import load

    load(shell)
