"""`sciml data simulate|inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sciml_kernel.cli.shared import Group, cancellable, echo_json, json_option
from sciml_kernel.errors import DataError, NotFoundError


@click.group(cls=Group)
def data() -> None:
    """Make and look at data sets."""


@data.group(cls=Group)
def simulate() -> None:
    """Simulate a data set."""


@simulate.command()
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to make.")
@click.option("--n-sims", required=True, type=int, help="Universes.")
@click.option("--grid", required=True, type=int, help="Voxels a side.")
@click.option("--box-mpc-h", required=True, type=float, help="Side of the box, Mpc/h.")
@click.option("--format", "format_", type=click.Choice(["tfrecord"]), default="tfrecord", show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--quiet", is_flag=True, help="No progress.")
@json_option
def cosmology(
    out: Path, n_sims: int, grid: int, box_mpc_h: float, format_: str, seed: int, quiet: bool, as_json: bool
) -> None:
    """Universes with known cosmology: dark-matter counts per voxel, with a manifest."""
    from sciml_kernel.cosmology.factory import make_universes
    from sciml_kernel.views.progress import ProgressLines

    shown = None if quiet or as_json else ProgressLines("universes", write=click.echo)
    with cancellable():
        make_universes(out, n_sims=n_sims, grid=grid, box_size_mpc_h=box_mpc_h, seed=seed, fmt=format_, progress=shown)
    summary = _folder(out)
    if as_json:
        echo_json(summary)
    elif not quiet:
        _show(summary)


@data.command()
@click.argument("path", type=click.Path(path_type=Path))
@json_option
def inspect(path: Path, as_json: bool) -> None:
    """What a folder of universes or a data file holds, checked."""
    if not path.exists():
        raise NotFoundError(f"no data at {path.absolute()}; write a folder with a manifest.json, or a data file")
    summary = _folder(path) if path.is_dir() else _file(path)
    if as_json:
        echo_json(summary)
    else:
        _show(summary)


def _folder(path: Path) -> dict[str, Any]:
    """Summary of a folder with a manifest; the checksum of every file is checked."""
    from sciml_kernel.data.universe import UniverseShards

    shards = UniverseShards(path)
    shards.check_files()
    manifest = shards.manifest
    return {
        "path": str(path.absolute()),
        "format": manifest.format,
        "samples": manifest.n_samples,
        "simulations": len(set(manifest.simulations)),
        "shape": list(shards.shape),
        "box_size_mpc_h": manifest.box_size_mpc_h,
        "redshifts": list(manifest.redshifts),
        "parameters": {item.name: [item.low, item.high] for item in manifest.parameters},
        "files": [{"name": item.name, "samples": item.n_samples, "bytes": item.bytes} for item in manifest.files],
    }


def _file(path: Path) -> dict[str, Any]:
    """Summary of one file, by the first reader that knows it."""
    from sciml_kernel import registry

    found = registry.readers()
    for reader in found:
        if reader.can_read(path):
            ds = reader.open(path)
            return {
                "path": str(path.absolute()),
                "format": reader.name,
                "dims": {str(name): int(size) for name, size in ds.sizes.items()},
                "variables": {
                    str(name): {"dims": [str(dim) for dim in array.dims], "dtype": str(array.dtype)}
                    for name, array in ds.variables.items()
                },
            }
    raise DataError(f"no reader knows {path}; there are: {', '.join(reader.name for reader in found) or 'none'}")


def _show(summary: dict[str, Any]) -> None:
    width = max(map(len, summary))
    for name, value in summary.items():
        parts = value if isinstance(value, list) and value and isinstance(value[0], dict) else [value]
        for part in parts:
            text = ", ".join(f"{key} {item}" for key, item in part.items()) if isinstance(part, dict) else str(part)
            click.echo(f"{name:<{width}}  {text}")
