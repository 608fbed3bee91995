"""The notebook that is an experiment, and the one that does with it what a batch run can do."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest

from sciml_kernel import cosmology, records
from sciml_kernel.batch import run_notebook

FOLDER = Path(__file__).parents[2] / "notebooks"

pytestmark = [pytest.mark.notebook, pytest.mark.slow, pytest.mark.timeout(300)]
SMALL = {"n_universes": 2, "grid": 32}


def printed(record: records.Record, word: str) -> str:
    """What the cell with this word in it printed and showed."""
    cells = nbformat.read(record.path / "notebook.ipynb", as_version=4).cells
    (cell,) = [cell for cell in cells if cell.cell_type == "code" and word in cell.source]
    return "".join(one.get("text", one.get("data", {}).get("text/plain", "")) for one in cell.outputs)


def test_the_power_loss_is_that_of_the_same_universes_by_hand(kernel: None, folder: Path) -> None:
    record = run_notebook(FOLDER / "02_power_loss.ipynb", {**SMALL, "box_size_mpc_h": 128.0, "seed": 5})
    assert record.read()["status"] == "completed"
    cosmos = {"omega_m": 0.3, "sigma_8": 0.8, "n_s": 0.96}
    power, linear = 0.0, 0.0
    for seed in (5, 6):
        counts = cosmology.simulate(
            **cosmos, n_particles=32, grid=32, box_size_mpc_h=128.0, method="2lpt", seed=seed
        ).values  # fmt: skip
        found = cosmology.power_spectrum(counts, box_size_mpc_h=128.0, window="ngp")
        there = (found.k >= 0.2) & (found.k <= 0.3)
        power += float((found.power * found.modes)[there].sum())
        linear += float((cosmology.linear_power(found.k.values, **cosmos) * found.modes.values)[there.values].sum())
    assert records.final_values(record)["result/share_to_k_0.3"] == pytest.approx(power / linear, rel=1e-12)
    assert len(list(record.figures_dir.glob("*.png"))) == 1


def test_what_batch_runs_do_is_shown_as_it_is(kernel: None, folder: Path) -> None:
    given = {**SMALL, "n_seeds": 1, "experiment": str(FOLDER / "02_power_loss.ipynb")}
    record = run_notebook(FOLDER / "03_batch.ipynb", given)
    assert record.read()["status"] == "completed", record.read()["error"]
    refused = printed(record, "batch.plan")
    assert "no parameter 'sigma8'; did you mean 'sigma_8'?" in refused
    assert "sigma_8 must be float (default 0.8), got 'large'" in refused
    assert re.search(r"failed in cell \d+ - owner vanished", printed(record, "signal.SIGKILL"))
    resumed = printed(record, "resume=dead")
    assert "universe-0: kept" in resumed
    assert "the run: completed" in resumed
    (grid,) = [one for one in records.runs_root().glob("*-power-*") if records.read(one)["kind"] == "grid"]
    index = pd.read_csv(grid / "index.csv")
    assert index["status"].tolist() == ["completed"] * 3
    assert np.all(np.diff(index["result/share_to_k_0.3"]) < 0)  # the more clumped, the more is lost
    assert "parameters.sigma_8" in printed(record, "records.compare")
    verified = printed(record, "verify.again")
    assert verified.count("identical") == 2
    assert f"{index['run'][0]} holds" in verified
    assert len(list(record.figures_dir.glob("*.png"))) == 1
