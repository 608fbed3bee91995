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
# # How much power does perturbation theory lose?
#
# Second-order Lagrangian perturbation theory moves particles along smooth paths. Where matter has collapsed, the paths
# cross and the clumps are smeared out: the simulated power spectrum falls below the linear one on small scales, and the
# more so the stronger matter clumps (larger $\sigma_8$). This notebook measures by how much, as a mean over several
# universes. It is small on purpose: `03_batch` runs it in batch, resumes it, varies it and verifies it.
#
# In batch: `sciml batch -f papermill_runs/power_loss.yaml`.

# %% tags=["parameters"]
sigma_8: float = 0.8  # strength of the fluctuations
n_universes: int = 4  # over which the spectrum is averaged
grid: int = 64  # voxels and particles a side
box_size_mpc_h: float = 256.0  # side of a universe, Mpc/h
seed: int = 1  # of the first universe; the next ones count on

# %%
import numpy as np

import sciml_kernel as sk
from sciml_kernel import cosmology, views

cosmos = {"omega_m": 0.3, "sigma_8": sigma_8, "n_s": 0.96}

# %% [markdown]
# Each universe is a stage of its own. By hand that changes nothing; in a batch run a finished stage is kept, and a run
# that is resumed does not simulate it again. No shot noise is subtracted: the particles begin on a lattice, which has
# none, and on these scales they have not forgotten it.

# %%
powers = []
for i in range(n_universes):
    with sk.stage(f"universe-{i}"):
        counts = cosmology.simulate(
            **cosmos, n_particles=grid, grid=grid, box_size_mpc_h=box_size_mpc_h, method="2lpt", seed=seed + i
        )
        spectrum = cosmology.power_spectrum(counts.values, box_size_mpc_h=box_size_mpc_h, window="ngp")
        powers.append(spectrum)
        print(f"universe {i} is simulated")

# %% [markdown]
# The mean over universes has as many times more modes, so its scatter is smaller. Bars below are that scatter; a ratio
# of one is linear theory.

# %%
mean = spectrum.copy()
mean["power"] = sum(one.power for one in powers) / len(powers)
mean["modes"] = spectrum.modes * len(powers)
label = f"sigma_8 = {sigma_8:g}, {n_universes} universes"
views.power_spectra({label: mean}, {label: lambda k: cosmology.linear_power(k, **cosmos)})

# %% [markdown]
# Two numbers say it: the share of linear power, each mode counted once, on large scales (to $k = 0.2\,h/\mathrm{Mpc}$)
# and on smaller ones (to 0.3). Expect some per cent to be lost for $\sigma_8 = 0.5$, and more than a fifth for 1.1.

# %%
def share(low, high):
    """Power over linear power from k = low to high, weighted by modes."""
    part = mean.sel(k=slice(low, high))
    linear = cosmology.linear_power(part.k.values, **cosmos)
    return float((part.modes * part.power).sum() / (part.modes * linear).sum())


large = sk.note("share_to_k_0.2", share(0.05, 0.2))
small = sk.note("share_to_k_0.3", share(0.2, 0.3))
print(f"k from 0.05 to 0.2 h/Mpc: {large:.3f} of linear power; from 0.2 to 0.3: {small:.3f}")
