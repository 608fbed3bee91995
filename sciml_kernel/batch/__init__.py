"""The notebook that a person runs by hand, run by itself: typed parameters, a true record, no process left behind.

`run`          `run_notebook`, the story of a batch run. Read first
`parameters`   what the `parameters` cell declares, and what is given for it
`source`       reads `.ipynb` and jupytext's `.py`
`engine`       papermill's engine and client, made truthful: cells, signals, time limits, a dying kernel
`ending`       why a run is to end early, and how it is made to
`conduct`      what is done around the cells: record, signals, limits, pools, HTML
`children`     the trainings and pools that a notebook started
`stages`       parts that a resumed run need not run again; `stage_results` keeps what they leave, `fingerprint` says
               whether their inputs are what they were
`grid`         which variants there are; `sweep` runs them side by side, `variant` is one, `sweep_table` shows them
`budget`       which processors and GPUs each variant gets
`sets`         files that name a notebook, its parameters and what they must give
`verify`       does a run still hold?
`plugin`       `papermill --engine sciml`
`outputs`      executed notebook, PNGs; `report` the run's page, `index_page` the page of all runs
`progress`     what is seen while it runs
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sciml_kernel.batch.run import Plan, plan, run_notebook
    from sciml_kernel.batch.sweep import Grid, run_grid

__all__ = ["Grid", "Plan", "plan", "run_grid", "run_notebook"]

_SWEEP = ("Grid", "run_grid")


def __getattr__(name: str) -> Any:
    if name in __all__:
        from sciml_kernel.batch import run, sweep

        return getattr(sweep if name in _SWEEP else run, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
