"""Files by size and hash. A large file is sampled: reading a terabyte for every run would cost more than the run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sciml_kernel.errors import DataError

__all__ = ["SAMPLED", "WHOLE_BYTES", "describe_file", "describe_files", "differences", "sampled_sha256"]

WHOLE_BYTES = 256 * 1024**2
_BLOCK, _BLOCKS = 1024**2, 64
SAMPLED = f"{_BLOCKS} blocks of 1 MiB, evenly spaced from the first byte to the last"
"""What `sampled_sha256` is of, in words. A change between the blocks is not seen."""


def describe_file(path: str | Path) -> dict[str, Any]:
    """{path: absolute, size: bytes, sha256}; above WHOLE_BYTES {path, size, sampled_sha256, sampled: in words}.

    Raises DataError for a file that can't be read.
    """
    file = Path(path).expanduser().absolute()
    try:
        size = file.stat().st_size
        if size <= WHOLE_BYTES:
            with file.open("rb") as opened:
                return {"path": str(file), "size": size, "sha256": hashlib.file_digest(opened, "sha256").hexdigest()}
        return {"path": str(file), "size": size, "sampled_sha256": sampled_sha256(file), "sampled": SAMPLED}
    except OSError as error:
        raise DataError(f"{file} can't be read: {error.strerror or error}") from error


def describe_files(paths: Iterable[str | Path]) -> list[dict[str, Any]]:
    """`describe_file` of each, folders with all that is in them, sorted by path."""
    found: list[Path] = []
    for path in map(Path, paths):
        path = path.expanduser().absolute()
        found += [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    return [describe_file(path) for path in sorted(set(found))]


def sampled_sha256(path: Path) -> str:
    """sha256 over the size and `SAMPLED`."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        for i in range(_BLOCKS):
            file.seek(i * max(0, size - _BLOCK) // (_BLOCKS - 1))
            digest.update(file.read(_BLOCK))
    return digest.hexdigest()


def differences(entry: dict[str, Any]) -> str:
    """What is wrong with the file now, compared with its entry; "" where nothing is."""
    path = Path(entry["path"])
    try:
        size = path.stat().st_size
        if entry.get("size") is not None and size != entry["size"]:
            return f"has {size} bytes, had {entry['size']}"
        if entry.get("sha256"):
            with path.open("rb") as opened:
                same = hashlib.file_digest(opened, "sha256").hexdigest() == entry["sha256"]
        else:
            same = not entry.get("sampled_sha256") or sampled_sha256(path) == entry["sampled_sha256"]
    except OSError as error:
        return f"can't be read: {error.strerror or error}"
    return "" if same else "has another content"
