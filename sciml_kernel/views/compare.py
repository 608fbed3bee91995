"""The network's answers on held-out samples against the truth."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.artist import Artist

from sciml_kernel.errors import UsageError
from sciml_kernel.views.plot import COLOURS, Plot, parameter_label, style

__all__ = ["predicted_against_true"]


def _title(name: str, errors: pd.DataFrame) -> str:
    row = errors.loc[name]
    words = [f"network {row['network']:.2%}"]
    if np.isfinite(row["ridge"]):
        words.append(f"ridge {row['ridge']:.2%}")
    if np.isfinite(row["predict_the_mean"]):
        words.append(f"mean {row['predict_the_mean']:.2%}")
    return f"{parameter_label(name)}: relative error\n" + ", ".join(words)


def predicted_against_true(
    predictions: pd.DataFrame, errors: pd.DataFrame, *, title: str = "Held-out universes"
) -> Plot:
    """One panel a parameter: prediction against truth; the network, the ridge regression on log P(k), predict-the-mean.

    predictions: as `Run.predictions`: columns true_<p>, predicted_<p>, and ridge_<p> where there was a ridge.
    errors: as `error_table`, for the panel titles. On the diagonal an answer is exact; flat points have learnt
    nothing. The dotted line is the mean of the true values shown. Raises UsageError when a column is missing.
    """
    names = [str(name) for name in errors.index]
    missing = [c for name in names for c in (f"true_{name}", f"predicted_{name}") if c not in predictions]
    if missing:
        raise UsageError(f"predictions lack the columns {missing}; there are {list(predictions)}")
    words = "; ".join(
        f"{name} network {errors.loc[name, 'network']:.2%}, ridge {errors.loc[name, 'ridge']:.2%}, "
        f"predict-the-mean {errors.loc[name, 'predict_the_mean']:.2%}"
        for name in names
    )
    many = len(predictions) > 60
    with style():
        plot = Plot(
            3.9 * len(names) + 0.2,
            4.3,
            alt_text=(
                f"{title}: predicted against true parameters of {len(predictions)} samples, one panel a parameter. "
                f"Mean relative errors: {words}."
            ),
        )
        panels = np.atleast_1d(plot.subplots(1, len(names)))
        for axes, name in zip(panels, names, strict=True):
            true = predictions[f"true_{name}"].to_numpy()
            predicted = predictions[f"predicted_{name}"].to_numpy()
            ridge = predictions[f"ridge_{name}"].to_numpy() if f"ridge_{name}" in predictions else None
            low, high = true.min(), true.max()
            pad = 0.06 * max(high - low, 1e-6)
            ends = np.array([low - pad, high + pad])
            axes.plot(ends, ends, color="black", lw=1, label="exact")
            axes.axhline(true.mean(), color=COLOURS["grey"], lw=1.4, ls=":", label="predict-the-mean")
            if ridge is not None:
                axes.plot(
                    true,
                    ridge,
                    "^",
                    color=COLOURS["orange"],
                    ms=4,
                    alpha=0.45 if many else 0.8,
                    label="ridge on log P(k)",
                )
            axes.plot(true, predicted, "o", color=COLOURS["blue"], ms=4, alpha=0.55 if many else 0.9, label="network")
            axes.set_xlim(*ends)
            axes.set_title(_title(name, errors), loc="left", fontsize=9.5)
            axes.set_xlabel(f"true {parameter_label(name)}")
            axes.set_ylabel(f"predicted {parameter_label(name)}")
            axes.locator_params(nbins=5)
        plot.suptitle(f"{title}: {len(predictions)} samples", fontsize=10.5, ha="left", x=0.01)
        kinds: dict[str, Artist] = {}  # of all panels: a ridge may stand in some of them only
        for axes in panels:
            kinds |= {str(line.get_label()): line for line in axes.lines}
        plot.legend(list(kinds.values()), list(kinds), loc="outside lower center", ncols=len(kinds))
    return plot
