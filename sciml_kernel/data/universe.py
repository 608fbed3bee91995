"""Samples of a data set of universes, by number. The road from disk to training; no TensorFlow."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sciml_kernel.data.manifest import MANIFEST, Manifest, ShardFile, read_manifest, sha256_of
from sciml_kernel.data.readers.framing import OVERHEAD, Span, index_records, read_span
from sciml_kernel.data.readers.tfrecord import Counts, Targets, decode_sample
from sciml_kernel.errors import DataError

__all__ = ["UniverseShards"]


class UniverseShards:
    """Random access to the samples of a folder with a manifest. Safe in threads; may be pickled.

    All records have one size, so the manifest and the file's size say where each sample lies: opening reads no payload
    and no index. Sizes are checked on opening; the checksum of each record is checked when it is read.

    n: samples. shape: (z, y, x, channel) of one. targets: (sample, parameter), float32, from the manifest.
    simulation: (sample,), int64. parameters: names of the targets.
    """

    def __init__(self, folder: str | Path, *, verify: bool = True) -> None:
        """Raises DataError for a missing folder or manifest, and for a file that is missing or has not its size."""
        self.folder = Path(folder).expanduser().absolute()
        self.manifest: Manifest = read_manifest(self.folder)
        self.verify = verify
        self.n = self.manifest.n_samples
        side = self.manifest.grid
        self.shape = (side, side, side, self.manifest.channels)
        self.parameters = self.manifest.parameter_names
        self.targets: Targets = self.manifest.target_array()
        self.simulation: NDArray[np.int64] = np.array(self.manifest.simulations, dtype=np.int64)
        if self.manifest.format != "tfrecord":
            raise DataError(f"{self.folder}: format {self.manifest.format!r} can't be read; there is 'tfrecord'")
        self._record_bytes = [self._checked(file) for file in self.manifest.files]
        self._first = [0, *itertools.accumulate(file.n_samples for file in self.manifest.files)]

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        return f"<UniverseShards {self.folder}: {self.n} samples of {self.shape}>"

    def read(self, i_sample: int) -> tuple[Counts, Targets]:
        """One sample: counts (z, y, x, channel), int16, not writable; targets (parameter,), float32.

        Raises IndexError for a number out of range, DataError for a damaged record.
        """
        path, span = self.where(i_sample)
        try:
            counts, targets = decode_sample(read_span(path, span, verify=self.verify), shape=self.shape)
        except DataError as error:
            if str(path) in str(error):
                raise
            raise DataError(f"{path}, record {span.record} at byte {span.offset}: {error}") from None
        if targets.shape != (len(self.parameters),):
            raise DataError(
                f"{path}, record {span.record} at byte {span.offset}: {targets.size} targets, the manifest has "
                f"{len(self.parameters)}"
            )
        return counts, targets

    def read_many(self, indices: Any) -> tuple[Counts, Targets]:
        """Counts (sample, z, y, x, channel), int16, and targets (sample, parameter), float32, as asked for."""
        numbers = [int(i) for i in np.asarray(indices).ravel()]
        counts = np.empty((len(numbers), *self.shape), dtype=np.int16)
        targets = np.empty((len(numbers), len(self.parameters)), dtype=np.float32)
        for row, i_sample in enumerate(numbers):
            counts[row], targets[row] = self.read(i_sample)
        return counts, targets

    def where(self, i_sample: int) -> tuple[Path, Span]:
        """File and place of a sample."""
        if not 0 <= i_sample < self.n:
            raise IndexError(f"sample {i_sample} of {self.n}")
        i_file = int(np.searchsorted(self._first, i_sample, side="right")) - 1
        size, record = self._record_bytes[i_file], i_sample - self._first[i_file]
        return self.folder / self.manifest.files[i_file].name, Span(record, record * size, size - OVERHEAD)

    def check_files(self) -> None:
        """Read everything and compare with the manifest's sha256. Raises DataError naming file and place."""
        for file in self.manifest.files:
            path = self.folder / file.name
            if sha256_of(path) != file.sha256:
                for span in index_records(path):
                    read_span(path, span, verify=True)  # says which record, if a checksum tells
                raise DataError(f"{path} is not the file that {MANIFEST} describes: its sha256 differs")

    def _checked(self, file: ShardFile) -> int:
        """Bytes of a record, the frame included."""
        path = self.folder / file.name
        try:
            size = path.stat().st_size
        except OSError as error:
            raise DataError(f"{path}, which {MANIFEST} names, can't be read: {error.strerror}") from None
        if file.n_samples < 1 or file.bytes % file.n_samples:
            raise DataError(f"{self.folder / MANIFEST}: {file.name} can't hold {file.n_samples} equal records")
        if size != file.bytes:
            record = min(size * file.n_samples // file.bytes, file.n_samples)
            state = "truncated" if size < file.bytes else "too long"
            raise DataError(
                f"{path} is {state}: it ends at byte {size}, {MANIFEST} says {file.bytes}"
                + (f"; record {record} of {file.n_samples} is not whole" if size < file.bytes else "")
            )
        return file.bytes // file.n_samples
