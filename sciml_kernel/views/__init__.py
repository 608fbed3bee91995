"""Figures. They take Datasets, tables and histories, and never train.

pool_panel.py `LivePool`, `watch`: the state of a pool, renewed in place while one looks at it
live.py       `LivePlot`: loss, learning rate and samples/s, redrawn in place while a run goes on
training.py   `training_curves`: the same figure of a finished run
fields.py     `density_slice`: a slab of a universe
spectra.py    `power_spectra`: measured P(k) against linear theory
compare.py    `predicted_against_true`: the network's answers, with ridge regression and predict-the-mean beside them
runs.py       `compare_runs`: metric curves of several runs; `grid_results`: a result against what was varied
table.py      `error_table`: the same as numbers
durations.py  `durations`: what something took, beside what is owed
quicklook.py  `quicklook`: interactive slices of a data set larger than memory
shown.py      outputs that are replaced in place: what live views have in common
progress.py   `ProgressLines`: how far long work is
plot.py       `Plot`: a matplotlib Figure that shows itself in a notebook and carries its alt text

No pyplot: figures belong to whoever asked for them, so any thread may draw. In a notebook a figure is a plain PNG,
which is still there when the notebook is opened without a kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from sciml_kernel.views.compare import predicted_against_true
    from sciml_kernel.views.durations import durations
    from sciml_kernel.views.fields import density_slice
    from sciml_kernel.views.live import LivePlot
    from sciml_kernel.views.plot import Plot
    from sciml_kernel.views.pool_panel import LivePool, watch
    from sciml_kernel.views.progress import ProgressLines
    from sciml_kernel.views.quicklook import Quicklook, quicklook
    from sciml_kernel.views.runs import compare_runs, grid_results
    from sciml_kernel.views.spectra import power_spectra
    from sciml_kernel.views.table import error_table
    from sciml_kernel.views.training import training_curves

__all__ = [
    "LivePlot",
    "LivePool",
    "Plot",
    "ProgressLines",
    "Quicklook",
    "compare_runs",
    "density_slice",
    "durations",
    "error_table",
    "grid_results",
    "power_spectra",
    "predicted_against_true",
    "quicklook",
    "training_curves",
    "watch",
]

__getattr__, __dir__, _ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "compare": ["predicted_against_true"],
        "durations": ["durations"],
        "fields": ["density_slice"],
        "live": ["LivePlot"],
        "plot": ["Plot"],
        "pool_panel": ["LivePool", "watch"],
        "progress": ["ProgressLines"],
        "quicklook": ["Quicklook", "quicklook"],
        "runs": ["compare_runs", "grid_results"],
        "spectra": ["power_spectra"],
        "table": ["error_table"],
        "training": ["training_curves"],
    },
)
