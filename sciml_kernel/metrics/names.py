"""Metric names. They are an interface: what is written in `metrics.jsonl`, plotted and compared between runs.

`train/...` metrics belong to an optimizer step; `val/...` and `baseline/...` belong to an epoch.
"""

from __future__ import annotations

from typing import Literal

__all__ = [
    "BASELINE_BACKGROUND_MEAN_IOU",
    "TIMINGS",
    "TRAIN_BUSY_S",
    "TRAIN_LOSS",
    "TRAIN_SAMPLES_PER_S",
    "TRAIN_SAMPLES_PER_S_AVG",
    "VAL_LOSS",
    "VAL_MEAN_IOU",
    "axis_of",
    "baseline_mean",
    "baseline_ridge",
    "val_iou",
    "val_rel_error",
]

TRAIN_LOSS = "train/loss"
"""Mean loss of the global batch, before the step's update."""

TRAIN_BUSY_S = "train/busy_s"
"""Seconds a step that one rank was busy before its part of the gradient all-reduce: waiting for data, forward and
backward pass. Mean over the reported interval, one value a rank; the slowest rank sets the pace. Only where there are
several ranks; the first step, which compiles, is left out."""

VAL_LOSS = "val/loss"
"""Mean loss over all validation samples, inference mode; sums over ranks are divided once."""

TRAIN_SAMPLES_PER_S = "train/samples_per_s"
"""Rate of the last interval, all ranks together; see `reduce.RateMeter`."""

TRAIN_SAMPLES_PER_S_AVG = "train/samples_per_s_avg"
"""Rate since the start of training, everything included; see `reduce.RateMeter`."""

TIMINGS = (TRAIN_BUSY_S, TRAIN_SAMPLES_PER_S, TRAIN_SAMPLES_PER_S_AVG)
"""What measures the machine: no two runs agree on these."""

VAL_MEAN_IOU = "val/mean_iou"
"""Mean over classes of the intersection over union, from one global confusion matrix. 0 to 1, best 1."""

BASELINE_BACKGROUND_MEAN_IOU = "baseline/background/mean_iou"
"""`val/mean_iou` of the answer "background everywhere"."""


def val_rel_error(parameter: str) -> str:
    """Mean of |predicted - true| / |true| over the validation samples, in physical units. 0 or more, best 0."""
    return f"val/rel_error/{parameter}"


def baseline_mean(parameter: str) -> str:
    """`val/rel_error` of the answer "the mean of the training targets"."""
    return f"baseline/mean/{parameter}"


def baseline_ridge(parameter: str) -> str:
    """`val/rel_error` of a ridge regression on log P(k)."""
    return f"baseline/ridge/{parameter}"


def val_iou(class_name: str) -> str:
    """Intersection over union of one class, from one global confusion matrix. 0 to 1, best 1."""
    return f"val/iou/{class_name}"


def axis_of(name: str) -> Literal["step", "epoch"]:
    """The dimension of a metric in `Run.history`.

    >>> axis_of("train/loss"), axis_of("val/loss"), axis_of("baseline/mean/omega_m")
    ('step', 'epoch', 'epoch')
    """
    return "epoch" if name.startswith(("val/", "baseline/")) else "step"
