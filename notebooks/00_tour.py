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
# # A tour: from simulated universes to a trained network
#
# Dark matter clumps under gravity, and how it clumps depends on a few numbers: how much matter there is
# ($\Omega_{\mathrm{m}}$), how strongly it fluctuates ($\sigma_8$), and how the fluctuations are shared out between large
# and small scales ($n_{\mathrm{s}}$). CosmoFlow ([arXiv 1808.04728](https://arxiv.org/abs/1808.04728)) showed that a 3D
# convolutional network can read these numbers off a volume of matter. This notebook does the same at the size of a
# laptop, from nothing: it simulates universes of known cosmology, starts MPI ranks, trains a small network of that
# family on all of them with Horovod, and asks whether it beats the simple answers.
#
# The same notebook runs in batch: `sciml batch notebooks/00_tour.ipynb -p epochs 30`.

# %% tags=["parameters"]
n_ranks: int = 2  # MPI ranks that train
n_sims: int = 800  # universes, one simulation each; a fifth is held out
grid: int = 32  # voxels a side
box_size_mpc_h: float = 256.0  # side of a universe, Mpc/h
epochs: int = 12  # passes over the training universes
batch_size: int = 16  # universes of one optimizer step, over all ranks
learning_rate: float = 4e-3  # after one epoch of warm-up, then down along a cosine
seed: int = 1  # universes, split, initial weights
data_dir: str = ""  # folder for the universes; empty: one in sk.data_root(), made once

# %%
import sciml_kernel as sk
from sciml_kernel import cosmology, views

# %% [markdown]
# ## Universes of known cosmology
#
# Each universe starts as a Gaussian random field whose power spectrum follows from its parameters (Eisenstein & Hu
# 1998). Second-order Lagrangian perturbation theory moves $64^3$ particles from a regular lattice to where they are today;
# then they are counted in voxels. The parameters are drawn from the paper's priors. The files are plain TFRecord with a
# `manifest.json`; a finished data set is not made twice.

# %%
folder = data_dir or sk.data_root() / f"tour-{n_sims}-universes-{grid}-voxels-{box_size_mpc_h:g}-mpc-h-seed-{seed}"
cosmology.make_universes(
    folder,
    n_sims=n_sims,
    grid=grid,
    box_size_mpc_h=box_size_mpc_h,
    seed=seed,
    progress=views.ProgressLines("universes"),
)
universes = sk.open_universe(folder)
universes

# %% [markdown]
# Nothing of the volumes has been read yet: `density` is a lazy Dask array. The explorer below reads the slices that you
# look at (its picture stays in a saved notebook).

# %%
views.quicklook(universes)

# %% [markdown]
# A slab through the middle of one universe, relative to the mean density. Knots and filaments surround voids.

# %%
first = universes.isel(sample=0, channel=0)
views.density_slice(first.density, box_size_mpc_h=box_size_mpc_h)

# %% [markdown]
# ## Is the physics right?
#
# The power spectrum $P(k)$ says how strongly the density fluctuates on each scale. On large scales (small $k$) a
# simulated universe must follow linear theory within the scatter of its few modes; on small scales perturbation theory
# loses power, and the counts of single particles add shot noise. Two universes, with low and with high $\sigma_8$:

# %%
sigma_8 = universes.targets.sel(parameter="sigma_8")
chosen = {"low": int(sigma_8.argmin("sample")), "high": int(sigma_8.argmax("sample"))}
measured, theory = {}, {}
for which, sample in chosen.items():
    truth = {str(p): float(v) for p, v in zip(universes.parameter.values, universes.targets[sample].values)}
    label = f"{which} sigma_8 = {truth['sigma_8']:.3f}"
    volume = universes.density.isel(sample=sample, channel=0).values
    measured[label] = cosmology.power_spectrum(volume, box_size_mpc_h=box_size_mpc_h, shot_noise=True, window="ngp")
    theory[label] = lambda k, truth=truth: cosmology.linear_power(k, **truth)
views.power_spectra(measured, theory)

# %% [markdown]
# ## Ranks
#
# A pool is a set of MPI ranks on this machine. It has its own processes: an interrupted cell does not end it, and its
# state is measured whenever it is shown.

# %%
pool = sk.Pool.start(n=n_ranks)
pool.report()

# %% [markdown]
# ## Training
#
# `sk.train` checks the settings here, then starts one loop on every rank; each reads its share of every batch, and
# Horovod averages the gradients. It returns at once. The figure follows the run; the stop button of this notebook would
# interrupt it on all ranks, with a checkpoint to go on from (`run.resume()`).

# %%
run = sk.train(
    "cosmoflow",
    data=folder,
    pool=pool,
    network="compact",
    input_scaling="log1p",
    dropout=0.0,
    augment=True,
    epochs=epochs,
    batch_size=batch_size,
    learning_rate=learning_rate,
    final_learning_rate=learning_rate / 100,
    schedule="cosine",
    warmup_epochs=min(1.0, epochs / 2),
    seed=seed,
    data_seed=seed,
)
figure = run.plot()
run.wait();

# %% [markdown]
# ## What has it learnt?
#
# The error is the mean of |predicted - true| / true on universes that were held out. An accuracy means little alone, so
# beside the network stand two answers that need none: *predict the mean* of the training universes for everything, and
# *ridge regression* on log P(k), which is the classical way to read the parameters off a power spectrum. Below 1 in the
# last column the network has learnt something. Expect $\sigma_8$ to be clear (about a quarter), $\Omega_{\mathrm{m}}$ to be
# seen (about 0.6), and $n_{\mathrm{s}}$ to be hardly there: a volume of this size holds little of it.

# %%
errors = views.error_table(run.history, run.predictions)
errors.round(4)

# %%
views.predicted_against_true(run.predictions, errors)

# %% [markdown]
# ## What ran
#
# The record holds the frozen settings, seeds, versions, data hashes, ranks and every metric.

# %%
record = run.record.read()
{key: record[key] for key in ("id", "status", "digest", "ranks", "hosts", "started_utc", "ended_utc")}

# %%
pool.stop()
