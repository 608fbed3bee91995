"""The notebook that a person runs by hand, run by itself: typed parameters, a true record, no process left behind.

`run`          `run_notebook`, the story of a batch run. Read first
`parameters`   what the `parameters` cell declares, and what is given for it
`source`       reads `.ipynb` and jupytext's `.py`
`engine`       papermill's engine and client, made truthful: cells, signals, time limits, a dying kernel
`ending`       why a run is to end early, and how it is made to
`children`     the trainings and pools that a notebook started
`outputs`      executed notebook, HTML, PNGs
`progress`     what is seen while it runs
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sciml_kernel.batch.run import Plan, plan, run_notebook

__all__ = ["Plan", "plan", "run_notebook"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from sciml_kernel.batch import run

        return getattr(run, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
