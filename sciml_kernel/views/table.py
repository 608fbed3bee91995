"""How far the network is off, as numbers, with the trivial answers beside it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from sciml_kernel.errors import UsageError

__all__ = ["error_table", "parameters_of"]

_NETWORK = "val/rel_error/"
_RIDGE = "baseline/ridge/"
_MEAN = "baseline/mean/"


def parameters_of(history: xr.Dataset) -> list[str]:
    """Parameters for which a history holds the network's relative error. Raises UsageError when there is none."""
    names = [str(name).removeprefix(_NETWORK) for name in history.data_vars if str(name).startswith(_NETWORK)]
    if not names:
        raise UsageError(f"the history has no {_NETWORK}<parameter>; was there a validation? it has: {list(history)}")
    return names


def _last(history: xr.Dataset, name: str) -> float:
    if name not in history:
        return float("nan")
    values = history[name].to_numpy().ravel()
    values = values[np.isfinite(values)]
    return float(values[-1]) if values.size else float("nan")


def _standard_error(predictions: pd.DataFrame, name: str) -> float:
    """Of the mean relative error. Samples of one simulation are no independent tries: simulations are counted."""
    relative = (predictions[f"predicted_{name}"] - predictions[f"true_{name}"]).abs() / predictions[
        f"true_{name}"
    ].abs()
    groups = relative.groupby(predictions["simulation"]).mean()
    return float(groups.std(ddof=1) / np.sqrt(len(groups))) if len(groups) > 1 else float("nan")


def error_table(history: xr.Dataset, predictions: pd.DataFrame | None = None) -> pd.DataFrame:
    """Mean of |predicted - true| / |true| on the held-out samples, one row a parameter; 0 or more, best 0.

    Columns: `network` (after the last epoch), `standard_error` (of `network`, over held-out simulations; only with
    `predictions`), `ridge` (ridge regression on log P(k)), `predict_the_mean` (of the training targets), and
    `network_over_mean`, below 1 where the network has learnt something. NaN where a baseline was not reported.

    history: as `Run.history`. predictions: as `Run.predictions`. Raises UsageError without a validation.
    """
    rows = {}
    columns = list(predictions) if predictions is not None else []
    names = parameters_of(history)  # by name; the order of the predictions is the paper's
    names.sort(key=lambda name: columns.index(f"true_{name}") if f"true_{name}" in columns else len(columns))
    for name in names:
        network, mean = _last(history, _NETWORK + name), _last(history, _MEAN + name)
        rows[name] = {"network": network}
        if predictions is not None:
            rows[name]["standard_error"] = _standard_error(predictions, name)
        rows[name] |= {
            "ridge": _last(history, _RIDGE + name),
            "predict_the_mean": mean,
            "network_over_mean": network / mean if mean > 0 else float("nan"),
        }
    table = pd.DataFrame.from_dict(rows, orient="index")
    table.index.name = "parameter"
    return table
