"""Universe TFRecord: one `tf.train.Example` a sample.

`x` bytes: int16 little-endian (z, y, x, channel), particles per voxel. `y` float_list: targets, float32.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from sciml_kernel.data.readers.example import decode_example, encode_example
from sciml_kernel.data.readers.framing import Span, index_records, is_gzip, looks_like_records, read_records, read_span
from sciml_kernel.data.readers.lazy import lazy_density
from sciml_kernel.errors import DataError

__all__ = ["READER", "Counts", "Targets", "decode_sample", "encode_sample", "guess_shape"]

Counts = NDArray[np.int16]
Targets = NDArray[np.float32]
Shape = tuple[int, int, int, int]


def encode_sample(counts: Counts, targets: Targets) -> bytes:
    """The data of one record. counts: (z, y, x, channel), int16. targets: (parameter,), float32."""
    if counts.ndim != 4 or counts.dtype != np.int16:
        raise DataError(f"counts must be (z, y, x, channel) int16, got shape {counts.shape} {counts.dtype}")
    x = np.ascontiguousarray(counts).astype("<i2", copy=False).tobytes()
    return encode_example({"x": x, "y": np.asarray(targets, dtype=np.float32)})


def decode_sample(data: bytes, *, shape: Shape | None = None) -> tuple[Counts, Targets]:
    """Counts (z, y, x, channel), int16, and targets (parameter,), float32, of one record.

    shape: what the counts must have; None: a cube, by `guess_shape`. Raises DataError; the caller adds file and record.
    """
    features = decode_example(data)
    x, y = features.get("x"), features.get("y")
    if not isinstance(x, list) or len(x) != 1:
        raise DataError(f"no feature 'x' with one bytes value; there are: {', '.join(sorted(features))}")
    if not isinstance(y, np.ndarray):
        raise DataError(f"no feature 'y' with numbers; there are: {', '.join(sorted(features))}")
    if shape is None:
        shape = guess_shape(len(x[0]))
    if len(x[0]) != 2 * math.prod(shape):
        raise DataError(f"'x' holds {len(x[0])} bytes where {shape} int16 are due ({2 * math.prod(shape)} bytes)")
    counts = np.frombuffer(x[0], dtype="<i2").astype(np.int16, copy=False).reshape(shape)
    return counts, y.astype(np.float32, copy=False)


def guess_shape(n_bytes: int) -> Shape:
    """The cube (n, n, n, channels) of int16 that fills so many bytes, with the fewest channels up to 16."""
    for channels in range(1, 17):
        side = round((n_bytes / 2 / channels) ** (1 / 3))
        if side and 2 * channels * side**3 == n_bytes:
            return side, side, side, channels
    raise DataError(f"{n_bytes} bytes are no cube of int16 with 1 to 16 channels")


class _File:
    """Reads blocks of samples of one file."""

    def __init__(self, path: Path, spans: list[Span], shape: Shape, *, gzipped: bool) -> None:
        self.path, self.spans, self.shape, self.gzipped = path, spans, shape, gzipped

    def block(self, numbers: list[int]) -> Counts:
        """(len(numbers), z, y, x, channel), int16."""
        if self.gzipped:  # no random access inside: unpack once for all that is asked of this file
            wanted = set(numbers)
            records = {i: data for i, data in enumerate(read_records(self.path)) if i in wanted}
        else:
            records = {i: read_span(self.path, self.spans[i]) for i in numbers}
        return np.stack([_decode(self.path, self.spans[i], records[i], self.shape)[0] for i in numbers])


def _decode(path: Path, span: Span, data: bytes, shape: Shape | None) -> tuple[Counts, Targets]:
    try:
        return decode_sample(data, shape=shape)
    except DataError as error:
        raise DataError(f"{path}, record {span.record} at byte {span.offset}: {error}") from None


class TFRecordReader:
    """Opens one TFRecord file of universes that has no manifest beside it."""

    name = "tfrecord"

    def can_read(self, path: Path) -> bool:
        """True for a file that begins with a whole record head, plain or GZIP."""
        return Path(path).is_file() and looks_like_records(Path(path))

    def open(self, path: Path) -> xr.Dataset:
        """Dataset: density (sample, z, y, x, channel) int16, lazy; targets (sample, parameter) float32.

        The first record gives the shape. Targets are read at once, so a file is passed over once; a folder with a
        manifest (`open_universe`) isn't. Parameters are named parameter_0... as the file does not say. Raises
        DataError naming file, record and byte offset.
        """
        path = Path(path)
        if not path.is_file():
            raise DataError(f"there is no file {path}")
        gzipped = is_gzip(path)
        spans = index_records(path)
        if not spans:
            raise DataError(f"{path} holds no records")
        shape: Shape | None = None
        targets: list[Targets] = []
        stream = read_records(path) if gzipped else (read_span(path, span) for span in spans)
        for span, data in zip(spans, stream, strict=True):
            counts, y = _decode(path, span, data, shape)
            side_z, side_y, side_x, channels = counts.shape
            shape = (side_z, side_y, side_x, channels)
            if targets and y.shape != targets[0].shape:
                where = f"{path}, record {span.record} at byte {span.offset}"
                raise DataError(f"{where}: {len(y)} targets where {len(targets[0])} are due")
            targets.append(y)
        assert shape is not None
        status = path.stat()
        density = lazy_density(
            len(spans),
            shape,
            _File(path, spans, shape, gzipped=gzipped).block,
            token=f"{path.absolute()}-{status.st_size}-{status.st_mtime_ns}",
            samples_per_chunk=len(spans) if gzipped else None,
        )
        return xr.Dataset(
            {
                "density": (
                    ("sample", "z", "y", "x", "channel"),
                    density,
                    {"units": "particles", "long_name": "dark-matter particles per voxel"},
                ),
                "targets": (("sample", "parameter"), np.stack(targets)),
            },
            coords={"parameter": [f"parameter_{i}" for i in range(len(targets[0]))]},
            attrs={"source": str(path)},
        )


READER = TFRecordReader()
