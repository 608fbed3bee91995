"""The state of a training in one file: weights, optimizer state, random generators, and where to go on.

`checkpoints/step-<8 digits>.npz` is an uncompressed numpy archive: arrays "0", "1", ... and "meta", JSON as bytes.
Rank 0 writes it whole (temporary name, fsync, rename) and alone; on a load rank 0 reads it, all ranks get its values,
and all compare a hash of what they then hold. So the file need not be visible to every rank.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sciml_kernel.contracts import Collective
from sciml_kernel.errors import ConfigError, RecordError, SciMLError
from sciml_kernel.records import write_atomic

if TYPE_CHECKING:
    from sciml_kernel.engine.steps import Steps

__all__ = ["Checkpoints", "Position", "Snapshot", "newest", "read", "state_hash", "verify_equal"]

_FORMAT = 1
_KEEP = 2  # the newest may be the one that a full disk or a crash spoils


@dataclass(frozen=True, slots=True)
class Position:
    """Where to go on. epoch: epochs completed. batch: batches done of the next one. step: optimizer steps done."""

    epoch: int = 0
    batch: int = 0
    step: int = 0

    def after_batch(self) -> Position:
        return Position(self.epoch, self.batch + 1, self.step + 1)

    def after_epoch(self) -> Position:
        return Position(self.epoch + 1, 0, self.step)


@dataclass(frozen=True)
class Snapshot:
    """What a checkpoint file holds. order: what decides which samples come next; a resume must agree with it."""

    path: Path
    position: Position
    digest: str
    order: Mapping[str, Any]
    arrays: Sequence[np.ndarray]


def state_hash(arrays: Sequence[np.ndarray], position: Position) -> str:
    """sha256 over position, dtypes, shapes and bytes, as 64 hex digits: equal state, equal hash."""
    found = hashlib.sha256(repr(dataclasses.astuple(position)).encode())
    for array in arrays:
        found.update(f"{array.dtype.name}{array.shape}".encode())
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


class Checkpoints:
    """The checkpoints of one run, written by rank 0. digest: of the config. order: see `Snapshot`."""

    def __init__(self, directory: Path, *, digest: str, order: Mapping[str, Any], rank: int) -> None:
        self.directory, self._digest, self._order, self._rank = directory, digest, dict(order), rank
        self._newest: Position | None = None

    def save(self, steps: Steps, position: Position) -> None:
        """Write the state, unless this very position is written; then drop all but the newest two files. Does nothing
        on the other ranks.

        Raises RecordError (a full disk or memory, say); files from before stay whole.
        """
        if self._rank != 0 or position == self._newest:
            return
        arrays = [variable.numpy() for variable in (*steps.variables, *steps.seeds)]
        meta = {
            "format": _FORMAT,
            "position": dataclasses.asdict(position),
            "config_digest": self._digest,
            "order": self._order,
            "dtypes": [array.dtype.name for array in arrays],
            "state_sha256": state_hash(arrays, position),
        }
        packed = {str(i): _plain(array) for i, array in enumerate(arrays)}
        packed["meta"] = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
        path = self.directory / f"step-{position.step:08d}.npz"
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_atomic(path, _pack(packed))
        except OSError as error:
            raise RecordError(f"checkpoint {path} can't be written: {error.strerror or error}") from error
        except MemoryError as error:
            raise RecordError(f"checkpoint {path} can't be written: memory ran out") from error
        self._newest = position
        for old in _files(self.directory)[_KEEP:]:
            with contextlib.suppress(OSError):
                old.unlink()

    def restore(self, directory: Path, steps: Steps, collective: Collective, *, say: Callable[[str], None]) -> Position:
        """Put the newest whole checkpoint of `directory` into every rank; return where to go on. Called on all ranks.

        Rank 0 reads, and what goes wrong there is raised on every rank: none is left waiting. Raises RecordError (no
        whole checkpoint, ranks that differ afterwards), ConfigError (another network, optimizer or data order).
        """
        failure: SciMLError | None = None
        found: dict[str, Any] = {}
        if self._rank == 0:
            try:
                snapshot = newest(directory, say=say)
                _fill(snapshot, steps, self._order)
                found = {"position": dataclasses.asdict(snapshot.position)}
                if snapshot.digest != self._digest:
                    say(f"the config differs from that of {snapshot.path.name}; the new one holds from here on")
            except SciMLError as error:
                failure, found = error, {"failure": str(error)}
        answer = collective.gather_json(found)[0]
        if "failure" in answer:
            raise failure or RecordError(f"rank 0: {answer['failure']}")
        position = Position(**answer["position"])
        steps.share()
        verify_equal(steps, position, collective)
        return position


def read(path: Path) -> Snapshot:
    """Read and verify one file. Raises RecordError naming it if it is truncated, damaged or of another format."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            meta = json.loads(archive["meta"].tobytes())
            if meta["format"] != _FORMAT:
                raise RecordError(f"checkpoint {path} has format {meta['format']}; this version reads {_FORMAT}")
            names = meta["dtypes"]
            arrays = [_typed(archive[str(i)], name) for i, name in enumerate(names)]
        position = Position(**meta["position"])
    except (OSError, EOFError, KeyError, ValueError, TypeError, zipfile.BadZipFile) as error:
        raise RecordError(f"checkpoint {path} is truncated or damaged: {type(error).__name__}: {error}") from error
    if state_hash(arrays, position) != meta["state_sha256"]:
        raise RecordError(f"checkpoint {path} is damaged: its content has another sha256 than when it was written")
    return Snapshot(path, position, meta["config_digest"], meta["order"], arrays)


def newest(directory: Path, *, say: Callable[[str], None]) -> Snapshot:
    """The newest whole checkpoint. A damaged one is named through `say` and passed over.

    Raises RecordError if there is none.
    """
    for path in _files(directory):
        try:
            return read(path)
        except RecordError as error:
            say(f"{error}; the one before it is used")
    raise RecordError(f"no whole checkpoint in {directory}; start anew instead of resuming")


def verify_equal(steps: Steps, position: Position, collective: Collective) -> None:
    """Compare weights, optimizer state and position over all ranks. Raises RecordError naming the ranks that differ."""
    mine = state_hash([variable.numpy() for variable in steps.variables], position)
    hashes = collective.gather_json(mine)
    others = [rank for rank, value in enumerate(hashes) if value != hashes[0]]
    if others:
        raise RecordError(f"after the load other weights than on rank 0 are on rank {', '.join(map(str, others))}")


def _fill(snapshot: Snapshot, steps: Steps, order: Mapping[str, Any]) -> None:
    for key, value in order.items():
        if snapshot.order.get(key) != value:
            raise ConfigError(
                f"{snapshot.path} was made with {key} = {snapshot.order.get(key)!r}, this run has {value!r}: the order "
                f"of the samples could not go on; resume with {key} = {snapshot.order.get(key)!r}, or start anew"
            )
    variables = [*steps.variables, *steps.seeds]
    if len(variables) != len(snapshot.arrays):
        raise ConfigError(
            f"{snapshot.path} holds {len(snapshot.arrays)} arrays, this network and optimizer have {len(variables)}; "
            "resume with the config that it was made with"
        )
    for variable, array in zip(variables, snapshot.arrays, strict=True):
        if tuple(variable.shape) != array.shape or str(variable.dtype) != array.dtype.name:
            raise ConfigError(
                f"{snapshot.path}: {variable.path} is {array.dtype.name} {array.shape} there, "
                f"{variable.dtype} {tuple(variable.shape)} here; resume with the config that it was made with"
            )
    for variable, array in zip(variables, snapshot.arrays, strict=True):
        variable.assign(array)


def _files(directory: Path) -> list[Path]:
    """Newest first."""
    return sorted(directory.glob("step-*.npz"), reverse=True)


def _pack(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The archive in memory. Raises MemoryError, which numpy hides: cleaning up after it, it fails once more."""
    buffer = io.BytesIO()
    try:
        np.savez(buffer, **arrays)  # type: ignore[arg-type]
    except ValueError as error:
        earlier: BaseException | None = error
        while earlier is not None:
            if isinstance(earlier, MemoryError):
                raise earlier from None
            earlier = earlier.__context__
        raise
    return buffer.getvalue()


def _plain(array: np.ndarray) -> np.ndarray:
    """numpy files know no bfloat16: its bits are kept as integers."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def _typed(array: np.ndarray, name: str) -> np.ndarray:
    if name != "bfloat16":
        return array
    import ml_dtypes

    return array.view(ml_dtypes.bfloat16)
