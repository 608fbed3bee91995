"""`manifest.json`: what a folder of universes holds, so that nothing has to be opened to know it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from sciml_kernel.errors import DataError

__all__ = ["MANIFEST", "SCHEMA", "Manifest", "Parameter", "ShardFile", "read_manifest", "sha256_of", "write_atomically"]

MANIFEST = "manifest.json"
SCHEMA = "sciml-universe/1"


@dataclass(frozen=True)
class Parameter:
    """One target: its name and the range of its uniform prior."""

    name: str
    low: float
    high: float


@dataclass(frozen=True)
class ShardFile:
    """One file: its name in the folder, samples, bytes and sha256 (hex)."""

    name: str
    n_samples: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """A data set of universes. Lists over samples are in the order of the files.

    format: "tfrecord". grid: voxels a side of a sample. channels: volumes a sample (redshifts). box_size_mpc_h: side of
    a sample, Mpc/h. n_particles: particles a side. redshifts: one a channel. cosmology: constants that no sample
    changes. simulations: id of the simulation that each sample is cut from; a split never parts one. seeds: seed of the
    initial phases, one a sample. targets: physical parameters, one row a sample, in the order of `parameters`.
    request: the arguments that it was made with, so that the same call can see that it is done.
    """

    format: str
    grid: int
    channels: int
    box_size_mpc_h: float
    voxel_size_mpc_h: float
    n_particles: int
    method: str
    redshifts: tuple[float, ...]
    cosmology: dict[str, Any]
    seed: int
    parameters: tuple[Parameter, ...]
    files: tuple[ShardFile, ...]
    simulations: tuple[int, ...]
    seeds: tuple[int, ...]
    targets: tuple[tuple[float, ...], ...]
    made_with: dict[str, str] = dataclasses.field(default_factory=dict)
    request: dict[str, Any] = dataclasses.field(default_factory=dict)
    schema: str = SCHEMA

    @property
    def n_samples(self) -> int:
        return len(self.simulations)

    @property
    def parameter_names(self) -> tuple[str, ...]:
        return tuple(parameter.name for parameter in self.parameters)

    def target_array(self) -> NDArray[np.float32]:
        """(sample, parameter), float32."""
        return np.array(self.targets, dtype=np.float32).reshape(self.n_samples, len(self.parameters))

    def to_json(self) -> dict[str, Any]:
        return {"schema": self.schema, "n_samples": self.n_samples, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, source: str = MANIFEST) -> Self:
        """Raises DataError naming what is missing or does not fit together."""
        if data.get("schema") != SCHEMA:
            raise DataError(f"{source}: schema is {data.get('schema')!r}, this version reads {SCHEMA!r}")
        try:
            fields = {field.name: data[field.name] for field in dataclasses.fields(cls)}
            fields["parameters"] = tuple(Parameter(**entry) for entry in fields["parameters"])
            fields["files"] = tuple(ShardFile(**entry) for entry in fields["files"])
            fields["targets"] = tuple(tuple(row) for row in fields["targets"])
            for name in ("redshifts", "simulations", "seeds"):
                fields[name] = tuple(fields[name])
            manifest = cls(**fields)
        except KeyError as error:
            raise DataError(f"{source}: {error.args[0]!r} is missing") from None
        except TypeError as error:
            raise DataError(f"{source}: {error}") from None
        n = sum(file.n_samples for file in manifest.files)
        for name, count in (
            ("n_samples", data.get("n_samples", n)),
            ("simulations", len(manifest.simulations)),
            ("seeds", len(manifest.seeds)),
            ("targets", len(manifest.targets)),
        ):
            if count != n:
                raise DataError(f"{source}: the files hold {n} samples, {name} says {count}")
        if any(len(row) != len(manifest.parameters) for row in manifest.targets):
            raise DataError(f"{source}: a row of targets has not {len(manifest.parameters)} values")
        if any("/" in file.name or file.name in ("", ".", "..") for file in manifest.files):
            raise DataError(f"{source}: files must lie in the folder itself")
        return manifest


def read_manifest(folder: str | Path) -> Manifest:
    """The manifest of a folder. Raises DataError when folder or manifest is missing or can't be used."""
    folder = Path(folder).expanduser()
    path = folder / MANIFEST
    if not folder.exists():
        raise DataError(
            f"there is no data folder {folder}; make one with `sciml data simulate cosmology --out {folder}`"
        )
    if not folder.is_dir():
        raise DataError(f"{folder} is a file; the data folder that holds {MANIFEST} is wanted")
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError(
            f"{folder} holds no {MANIFEST}: not a data set of universes, or one that was not finished"
        ) from None
    except OSError as error:
        raise DataError(f"can't read {path}: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise DataError(f"{path} holds no mapping")
    return Manifest.from_json(data, source=str(path))


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a temporary name in the same folder, flush to disk, rename: a reader sees the old file or the new."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        with open(temporary, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sha256_of(path: Path) -> str:
    """sha256 of a file, hex."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
