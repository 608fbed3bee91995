"""Cosmology: from parameters to dark-matter volumes and back. numpy and xarray in and out; no TensorFlow.

Table of contents
-----------------
Theory
    `linear`      Eisenstein & Hu (1998) spectrum, growth factors: `linear_power`
    `lpt`         Gaussian field and second-order Lagrangian displacement
Volumes
    `simulator`   one universe, particle counts per voxel: `simulate`
    `spectrum`    P(k) of a volume: `power_spectrum`
    `targets`     priors, scaling, relative error, the two baselines
Files
    `factory`     a data set of many universes: `make_universes`, `check_data`, `describe_data`
    `open`        a data set as a lazy xarray Dataset: `open_universe`
Training
    `config`            the recipe's parameters
    `recipe_cosmoflow`  the recipe itself; imports TensorFlow, on the ranks only
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from sciml_kernel.cosmology.factory import check_data, describe_data, make_universes
    from sciml_kernel.cosmology.linear import growth, linear_power
    from sciml_kernel.cosmology.open import open_universe
    from sciml_kernel.cosmology.simulator import simulate
    from sciml_kernel.cosmology.spectrum import power_spectrum

__all__ = [
    "check_data",
    "describe_data",
    "growth",
    "linear_power",
    "make_universes",
    "open_universe",
    "power_spectrum",
    "simulate",
]

__getattr__, __dir__, _ = lazy_loader.attach(
    __name__,
    submodules=["lpt", "targets"],
    submod_attrs={
        "factory": ["check_data", "describe_data", "make_universes"],
        "linear": ["growth", "linear_power"],
        "open": ["open_universe"],
        "simulator": ["simulate"],
        "spectrum": ["power_spectrum"],
    },
)
