"""The protobuf message `tf.train.Example`, as far as samples need it, without TensorFlow or protobuf.

::

    Example  { features = 1: Features }        Feature   { bytes_list = 1 | float_list = 2 | int64_list = 3 }
    Features { feature = 1: map entries }      BytesList { value = 1: bytes, repeated }
    entry    { key = 1: string                 FloatList { value = 1: float, packed or not }
               value = 2: Feature }            Int64List { value = 1: varint, packed or not }

Wire format: developers.google.com/protocol-buffers/docs/encoding. Unknown fields are skipped, as protobuf does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sciml_kernel.errors import DataError

__all__ = ["Feature", "decode_example", "encode_example"]

# bytes_list: list of memoryviews into the message. float_list: (n,) float32. int64_list: (n,) int64.
Feature = list[memoryview] | NDArray[np.float32] | NDArray[np.int64]

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5


def encode_example(features: Mapping[str, bytes | Sequence[bytes] | NDArray[np.generic]]) -> bytes:
    """The message for named features, in the order of their names.

    bytes or a sequence of bytes becomes a bytes_list, a floating array a float_list (float32), an integer array an
    int64_list; arrays are flattened.
    """
    entries = b""
    for name in sorted(features):
        entry = _field(1, name.encode()) + _field(2, _encode_feature(features[name]))
        entries += _field(1, entry)
    return _field(1, entries)


def _encode_feature(value: bytes | Sequence[bytes] | NDArray[np.generic]) -> bytes:
    if isinstance(value, np.ndarray):
        if np.issubdtype(value.dtype, np.floating):
            return _field(2, _field(1, value.astype("<f4").tobytes()))
        return _field(3, _field(1, b"".join(_varint(int(v) & (2**64 - 1)) for v in value.ravel())))
    parts = [value] if isinstance(value, bytes) else value
    return _field(1, b"".join(_field(1, part) for part in parts))


def decode_example(message: bytes) -> dict[str, Feature]:
    """The features of a message. Raises DataError for bytes that are no Example; the caller adds file and record."""
    features: dict[str, Feature] = {}
    try:
        for number, wire, value in _fields(memoryview(message)):
            if number == 1:
                for entry_number, entry_wire, entry in _fields(_bytes(wire, value)):
                    if entry_number == 1:
                        name, feature = _decode_entry(_bytes(entry_wire, entry))
                        features[name] = feature
    except (IndexError, ValueError) as error:  # UnicodeDecodeError is a ValueError
        raise DataError(f"not a tf.train.Example: {error}") from error
    if not features:
        raise DataError("not a tf.train.Example: it holds no features")
    return features


def _decode_entry(entry: memoryview) -> tuple[str, Feature]:
    name, feature = "", memoryview(b"")
    for number, wire, value in _fields(entry):
        if number == 1:
            name = str(_bytes(wire, value), "utf-8")
        elif number == 2:
            feature = _bytes(wire, value)
    result: Feature = []
    for number, wire, value in _fields(feature):
        if number in (1, 2, 3):
            result = (_decode_bytes, _decode_floats, _decode_integers)[number - 1](_bytes(wire, value))
    return name, result


def _decode_bytes(message: memoryview) -> Feature:
    return [_bytes(wire, value) for number, wire, value in _fields(message) if number == 1]


def _decode_floats(message: memoryview) -> Feature:
    raw = b"".join(value for number, _, value in _fields(message) if number == 1 and isinstance(value, memoryview))
    return np.frombuffer(raw, dtype="<f4").astype(np.float32)


def _decode_integers(message: memoryview) -> Feature:
    values: list[int] = []
    for number, _, value in _fields(message):
        if number != 1:
            continue
        if isinstance(value, int):
            values.append(value)
            continue
        at = 0
        while at < len(value):
            item, at = _read_varint(value, at)
            values.append(item)
    return np.array(values, dtype=np.uint64).astype(np.int64)


def _fields(message: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """Field number, wire type and value: an int for varints, else the bytes."""
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            item, at = _read_varint(message, at)
            yield number, wire, item
            continue
        if wire == DELIMITED:
            size, at = _read_varint(message, at)
        elif wire in (FIXED32, FIXED64):
            size = 4 if wire == FIXED32 else 8
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
        if at + size > len(message):
            raise ValueError(f"field {number} of {size} bytes runs past the end")
        yield number, wire, message[at : at + size]
        at += size


def _bytes(wire: int, value: int | memoryview) -> memoryview:
    if wire != DELIMITED or isinstance(value, int):
        raise ValueError(f"wire type {wire} where bytes are due")
    return value


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]  # IndexError past the end: caught by decode_example
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), at
        shift += 7
        if shift > 63:
            raise ValueError("a varint of more than 10 bytes")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | DELIMITED) + _varint(len(data)) + data
