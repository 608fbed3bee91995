"""Is a folder of universes fit for a run? Asked in the notebook, before anything starts; no TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sciml_kernel.cosmology.split import split_by_simulation
from sciml_kernel.cosmology.targets import z_scale
from sciml_kernel.data.manifest import MANIFEST, read_manifest, sha256_of
from sciml_kernel.data.universe import UniverseShards
from sciml_kernel.errors import ConfigError, DataError

__all__ = ["check_data", "describe_data"]

PAPER_SMALLEST_GRID = 108  # below that nothing is left after the paper's seventh convolution; models.cosmoflow says why


def check_data(config: Any) -> None:
    """Check that `config.data.path` holds universes that this run can train on. Reads the manifest and file sizes only.

    config: RunConfig of recipe cosmoflow or cosmoflow_mlperf. Raises DataError for missing, truncated or too few data,
    ConfigError for a network that does not fit their grid.
    """
    shards = UniverseShards(config.data.path)
    split = split_by_simulation(
        shards.simulation, validation_fraction=config.data.validation_fraction, seed=config.data.data_seed
    )
    if len(split.train) < config.data.batch_size:
        raise DataError(
            f"{shards.folder} has {len(split.train)} training samples (and {len(split.validation)} held out), fewer "
            f"than one batch of {config.data.batch_size}; use a smaller batch_size or simulate more universes"
        )
    grid = shards.shape[0]
    network = getattr(config.model, "network", None)
    if config.recipe == "cosmoflow":
        z_scale(shards.parameters)
    if network == "paper" and grid < PAPER_SMALLEST_GRID:
        raise ConfigError(
            f"the paper's network needs a grid of at least {PAPER_SMALLEST_GRID} voxels a side, {shards.folder} has "
            f"{grid}; use network='compact'"
        )
    halvings = len(config.model.channels) if network == "compact" else 5 if config.recipe == "cosmoflow_mlperf" else 0
    if grid % 2**halvings:
        raise ConfigError(f"the network halves the grid {halvings} times: {grid} is not divisible by {2**halvings}")


def describe_data(path: str | Path) -> dict[str, Any]:
    """The data manifest of a run record, from the folder's manifest: no payload is read.

    {path, size (bytes of all files), sha256 (of manifest.json), n_samples, files: [{path, size, sha256}]}, `path` of a
    file relative to the folder.
    """
    folder = Path(path).expanduser().absolute()
    manifest = read_manifest(folder)
    return {
        "path": str(folder),
        "size": sum(file.bytes for file in manifest.files),
        "sha256": sha256_of(folder / MANIFEST),
        "n_samples": manifest.n_samples,
        "files": [{"path": file.name, "size": file.bytes, "sha256": file.sha256} for file in manifest.files],
    }
