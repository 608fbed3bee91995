"""The tour: the notebook of the first steps, as it runs."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from pathlib import Path

import nbformat
import numpy as np
import psutil
import pytest

import sciml_kernel as sk
from sciml_kernel.batch import run_notebook
from sciml_kernel.session import Run
from sciml_kernel.testing.notebooks import kernel_path

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
IPYNB = NOTEBOOKS / "00_tour.ipynb"
PARAMETERS = ("omega_m", "sigma_8", "n_s")
N_SIMS, N_HELD_OUT, GRID, EPOCHS = 32, 6, 16, 2  # a fifth of 32 simulations is 6.4: 6


def processes_of(home: str) -> list[str]:
    """Living processes that were started with this HOME, which is the test's own."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get("HOME") == home:
                found.append(f"{process.pid} {' '.join(process.cmdline())[:200]}")
        except psutil.Error:
            continue
    return found


def check_training(run: Run, folder: Path) -> None:
    """The training that the tour started: complete, with baselines, each held-out universe once."""
    assert run.status == "completed"
    history = run.history
    names = {str(name) for name in history}
    assert {"train/loss", "val/loss"} <= names
    for kind in ("val/rel_error", "baseline/mean"):
        assert {f"{kind}/{parameter}" for parameter in PARAMETERS} <= names
    assert np.isfinite(history["val/loss"]).sum() == EPOCHS
    predictions = run.predictions
    assert len(predictions) == N_HELD_OUT
    assert predictions["simulation"].is_unique
    assert predictions["sample"].is_unique
    truth = sk.open_universe(folder).targets.to_numpy()
    for i, parameter in enumerate(PARAMETERS):
        # the file holds float32, and what is written for it as decimal digits
        np.testing.assert_allclose(predictions[f"true_{parameter}"], truth[predictions["sample"], i], rtol=1e-6)
        relative = (predictions[f"predicted_{parameter}"] / predictions[f"true_{parameter}"] - 1).abs()
        last = float(history[f"val/rel_error/{parameter}"].dropna("epoch")[-1])
        assert last == pytest.approx(relative.mean(), rel=1e-4)  # the reported error is that of these predictions
    config = (run.record.path / "config.json").read_bytes()
    assert run.record.read()["digest"] == hashlib.sha256(config).hexdigest()
    assert json.loads(config)["train"]["epochs"] == EPOCHS


def pictures(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob("*.png"))]


@pytest.mark.notebook
@pytest.mark.e2e
@pytest.mark.mpi
@pytest.mark.tf
@pytest.mark.horovod
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_tour_runs_from_nothing_to_a_trained_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PATH", kernel_path(tmp_path / "prefix"))
    monkeypatch.setenv("SCIML_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    given = {"n_sims": N_SIMS, "grid": GRID, "epochs": EPOCHS}
    record = run_notebook(IPYNB, given, n_ranks=2, timeout_s=540)

    content = record.read()
    assert content["status"] == "completed", content["error"]
    assert {cell["status"] for cell in content["cells"]} == {"completed"}
    n_code = sum(cell.cell_type == "code" for cell in nbformat.read(IPYNB, as_version=4).cells)
    assert len(content["cells"]) == n_code + 1  # and the injected parameters
    config = (record.path / "config.json").read_bytes()
    assert content["digest"] == hashlib.sha256(config).hexdigest()
    assert json.loads(config)["parameters"] | given | {"n_ranks": 2} == json.loads(config)["parameters"]

    (folder,) = (tmp_path / "data").iterdir()
    (child,) = content["children"]
    run = Run.open(record.path.parent / child if isinstance(child, str) else child["id"])
    assert run.record.read()["parent"] is not None
    check_training(run, folder)
    assert run.record.read()["ranks"] == 2

    # slab, spectra, curves, comparison and the explorer's still, each as a file of its own
    figures = pictures(record.path / "figures")
    assert len(figures) >= 5
    assert all(figure.startswith(b"\x89PNG\r\n\x1a\n") and figure[-8:-4] == b"IEND" for figure in figures)
    (curves,) = pictures(run.record.path / "figures")
    html = (record.path / "notebook.html").read_text()
    embedded = re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    assert len(embedded) >= 5
    assert curves in [base64.b64decode(picture) for picture in embedded]  # the last live figure is in the page
    for column in ("network", "standard_error", "ridge", "predict_the_mean", "network_over_mean"):
        assert f"<th>{column}</th>" in html
    assert all(f"<th>{parameter}</th>" in html for parameter in PARAMETERS)

    assert len(sk.Pool.list()) == 0
    assert processes_of(os.environ["HOME"]) == []
