"""TFRecord framing, read and written without TensorFlow.

A file is a sequence of records, plain or as one GZIP stream (told by magic bytes, never by name)::

    uint64 length | uint32 masked crc32c of length | data | uint32 masked crc32c of data        little-endian

A fault is a DataError that names the file, the record's number from 0 and its byte offset (in the uncompressed stream
for GZIP).
"""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, NamedTuple, NoReturn

from crc32c import crc32c

from sciml_kernel.errors import DataError

__all__ = [
    "OVERHEAD",
    "Span",
    "frame",
    "index_records",
    "is_gzip",
    "looks_like_records",
    "read_records",
    "read_span",
    "write_records",
]

HEAD = struct.Struct("<QI")
TAIL = struct.Struct("<I")
OVERHEAD = HEAD.size + TAIL.size  # bytes of a record besides its data
GZIP_MAGIC = b"\x1f\x8b"


class Span(NamedTuple):
    """Where one record lies: number in its file, byte offset of the record, bytes of its data."""

    record: int
    offset: int
    length: int


def masked_crc(data: bytes | memoryview) -> int:
    """Checksum as TFRecord stores it: crc32c rotated by 15 bits plus a constant, modulo 2^32."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def frame(data: bytes) -> bytes:
    """One record."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, TAIL.pack(masked_crc(length)), data, TAIL.pack(masked_crc(data))))


def is_gzip(path: Path) -> bool:
    with _open(path) as stream:
        return stream.read(2) == GZIP_MAGIC


def looks_like_records(path: Path) -> bool:
    """Whether the file begins with a record's head whose checksum is right. False for a file that can't be read."""
    try:
        with _stream(path) as stream:
            head = stream.read(HEAD.size)
    except (DataError, OSError, EOFError, zlib.error):
        return False
    return len(head) == HEAD.size and masked_crc(head[:8]) == HEAD.unpack(head)[1]


def read_records(path: Path, *, verify: bool = True) -> Iterator[bytes]:
    """The data of each record, in order. verify: check the checksum of the data too, not only of the length."""
    try:
        with _stream(path) as stream:
            i_record, offset = 0, 0
            while head := stream.read(HEAD.size):
                length = _length(path, i_record, offset, head)
                body = stream.read(length + TAIL.size)
                yield _data(path, Span(i_record, offset, length), body, verify=verify)
                i_record, offset = i_record + 1, offset + length + OVERHEAD
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}, record {i_record} at byte {offset}: broken GZIP stream: {error}") from error


def index_records(path: Path) -> list[Span]:
    """Where each record lies. A plain file's data is skipped, not read; a GZIP stream has to be unpacked once."""
    if is_gzip(path):
        spans, offset = [], 0
        for i_record, data in enumerate(read_records(path, verify=False)):
            spans.append(Span(i_record, offset, len(data)))
            offset += len(data) + OVERHEAD
        return spans
    spans, offset = [], 0
    size = path.stat().st_size
    with _open(path) as stream:
        while offset < size:
            stream.seek(offset)
            length = _length(path, len(spans), offset, stream.read(HEAD.size))
            if offset + length + OVERHEAD > size:
                _fail(path, len(spans), offset, f"truncated: {length} bytes of data promised, the file ends before")
            spans.append(Span(len(spans), offset, length))
            offset += length + OVERHEAD
    return spans


def read_span(path: Path, span: Span, *, verify: bool = True) -> bytes:
    """The data of one record of a plain file. Safe to call from several threads."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        raise DataError(f"can't read {path}: {error.strerror}") from error
    try:
        raw = _pread(handle, span.length + OVERHEAD, span.offset)
    finally:
        os.close(handle)
    length = _length(path, span.record, span.offset, raw[: HEAD.size])
    if length != span.length:
        _fail(path, span.record, span.offset, f"holds {length} bytes of data where {span.length} are due")
    return _data(path, span, raw[HEAD.size :], verify=verify)


def write_records(stream: IO[bytes], records: Iterable[bytes]) -> None:
    """Append records to an open file."""
    for data in records:
        stream.write(frame(data))


def _pread(handle: int, size: int, offset: int) -> bytes:
    """os.pread gives at most 2 GiB at once, and less where a signal comes in between."""
    parts = []
    while size > 0:
        part = os.pread(handle, size, offset)
        if not part:
            break
        parts.append(part)
        size, offset = size - len(part), offset + len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _length(path: Path, i_record: int, offset: int, head: bytes) -> int:
    if len(head) < HEAD.size:
        _fail(path, i_record, offset, f"truncated: {len(head)} bytes left, a record's head has {HEAD.size}")
    length, crc = HEAD.unpack(head)
    if masked_crc(head[:8]) != crc:
        _fail(path, i_record, offset, "checksum of the length is wrong: damaged, or not a TFRecord file")
    return int(length)


def _data(path: Path, span: Span, body: bytes, *, verify: bool) -> bytes:
    if len(body) < span.length + TAIL.size:
        _fail(path, span.record, span.offset, f"truncated: {len(body)} bytes of {span.length + TAIL.size} left")
    data = body[: span.length]
    if verify and masked_crc(data) != TAIL.unpack(body[span.length :])[0]:
        _fail(path, span.record, span.offset, "checksum of the data is wrong: the file is damaged")
    return data


def _fail(path: Path, i_record: int, offset: int, what: str) -> NoReturn:
    raise DataError(f"{path}, record {i_record} at byte {offset}: {what}")


def _open(path: Path) -> IO[bytes]:
    try:
        return open(path, "rb")
    except OSError as error:
        raise DataError(f"can't read {path}: {error.strerror}") from error


def _stream(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if is_gzip(path) else _open(path)  # type: ignore[return-value]
