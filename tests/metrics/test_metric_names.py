from __future__ import annotations

import subprocess
import sys

from sciml_kernel.metrics import names


def test_names_are_those_of_the_design() -> None:
    # the line "Metric names" of DESIGN
    assert [
        names.TRAIN_LOSS,
        names.VAL_LOSS,
        names.TRAIN_SAMPLES_PER_S,
        names.TRAIN_SAMPLES_PER_S_AVG,
        names.val_rel_error("sigma_8"),
        names.baseline_mean("sigma_8"),
        names.baseline_ridge("sigma_8"),
        names.val_iou("tc"),
        names.VAL_MEAN_IOU,
        names.BASELINE_BACKGROUND_MEAN_IOU,
    ] == [
        "train/loss",
        "val/loss",
        "train/samples_per_s",
        "train/samples_per_s_avg",
        "val/rel_error/sigma_8",
        "baseline/mean/sigma_8",
        "baseline/ridge/sigma_8",
        "val/iou/tc",
        "val/mean_iou",
        "baseline/background/mean_iou",
    ]


def test_writing_metrics_and_records_loads_no_heavy_library() -> None:
    code = (
        "import sys, sciml_kernel.records, sciml_kernel.metrics.jsonl, sciml_kernel.metrics.reduce\n"
        "print([m for m in ('tensorflow', 'mpi4py', 'dask', 'pandas', 'xarray', 'IPython') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "[]"
