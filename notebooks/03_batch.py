# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: SciML
#     language: python
#     name: sciml
# ---

# %% [markdown]
# # A notebook as an experiment
#
# A batch run executes a notebook by itself and keeps what ran, on what, with which numbers. This notebook takes a small
# experiment, `02_power_loss`, and does with it what one does with a large one: runs it with other parameters, goes on
# after a crash, varies it, and asks weeks later whether the numbers still hold. Everything here is a command too:
# `sciml batch` and `sciml runs`.

# %% tags=["parameters"]
experiment: str = "02_power_loss.ipynb"  # notebook to work with, here or in notebooks/
n_universes: int = 4  # of each variant
grid: int = 64  # voxels and particles a side
n_seeds: int = 2  # variants of each sigma_8

# %%
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd

from sciml_kernel import batch, errors, records, views

notebook = Path(experiment) if Path(experiment).exists() else Path("notebooks", experiment)
small = {"n_universes": n_universes, "grid": grid, "box_size_mpc_h": 4.0 * grid}

# %% [markdown]
# ## Before anything runs
#
# The cell tagged `parameters` says which parameters there are and of which type. What can't become that type, and a name
# that the notebook does not have, are refused at once, not after an hour in the queue.

# %%
for wrong in ({"sigma8": 0.9}, {"sigma_8": "large"}):
    try:
        batch.plan(notebook, wrong)
    except errors.ParameterError as error:
        print(error)

# %% [markdown]
# ## A run, and one that dies
#
# `sciml batch` in a process of its own. As soon as the first universe is kept, the process is killed: no handler runs,
# nothing is tidied up. The next look at the record finds out.

# %%
options = [word for name, value in small.items() for word in ("-p", name, str(value))]
before = {path.name for path in records.runs_root().glob("*-dies-*")}
victim = subprocess.Popen([sys.executable, "-c", "from sciml_kernel.cli import main; main()", "batch", str(notebook),
                           "--name", "dies", "--quiet", *options])
dead = None
while dead is None or not (dead.path / "stages/universe-0/stage.json").exists():
    new = [path for path in records.runs_root().glob("*-dies-*") if path.name not in before]
    dead = records.Record(new[0]) if new else None
    assert victim.poll() is None, "it ended by itself"
    time.sleep(0.02)
victim.send_signal(signal.SIGKILL)
victim.wait()
state = dead.read()
print(state["status"], "in cell", state["error"]["cell"], "-", state["error"]["message"])

# %% [markdown]
# ## Going on
#
# `sciml batch --resume RUN`. What the stages had finished is not run again, unless something they depend on has changed:
# the code, a variable, a file, the environment. What is run again says why.

# %%
resumed = batch.run_notebook(None, resume=dead)
for name, stage in resumed.read()["extra"]["stages"].items():
    print(f"{name}: {stage['status']:6} {stage['why']}")
print("the run:", resumed.read()["status"])

# %% [markdown]
# ## Variants
#
# A grid runs side by side as many variants as fit into the cores (and GPUs) that it is given, each in its own process
# with its own pool and record. The table moves while it works. One that fails is named, and the others go on; `--resume`
# runs what is missing.

# %%
sweep = batch.run_grid(
    notebook,
    {"sigma_8": [0.5, 0.8, 1.1], "seed": [1 + n_universes * i for i in range(n_seeds)]},
    small,
    name="power",
)

# %% [markdown]
# The index holds a row a variant, and is a CSV file for any other program. Perturbation theory loses more power the
# stronger matter clumps: every line falls.

# %%
index = pd.read_csv(sweep.record.path / "index.csv")
views.grid_results(index, "sigma_8", "result/share_to_k_0.3", by="seed", title="Power left at k = 0.2 to 0.3 h/Mpc")

# %% [markdown]
# ## What is different between two runs?

# %%
first, last = (records.find(run) for run in index["run"].iloc[[0, -1]])
difference = records.compare([first, last])
pd.DataFrame({**difference.config, **difference.environment, **difference.metrics}, index=["first", "last"]).T

# %% [markdown]
# ## Do the numbers still hold?
#
# `sciml runs verify RUN` runs it once more, from what its record holds, and compares. With `--static` it looks at hashes
# and files only. Each run also has a page, `notebook.html`, that needs neither server nor network, and all of them are on
# `index.html` beside the records.

# %%
from sciml_kernel.batch import verify

print(verify.again(first).text())
