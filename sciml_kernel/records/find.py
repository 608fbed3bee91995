"""An id, the beginning of one, or a path -> `Record`."""

from __future__ import annotations

from pathlib import Path

from sciml_kernel.errors import NotFoundError, did_you_mean
from sciml_kernel.records.record import Record
from sciml_kernel.records.root import runs_root

__all__ = ["find", "newest", "run_ids"]

_SECOND = len("20261201T010203Z")


def run_ids(root: str | Path | None = None) -> list[str]:
    """Ids of the records in a runs root, newest first. No root, no runs."""
    folder = Path(root).expanduser() if root is not None else runs_root()
    try:
        entries = list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    # a leading dot: a record that is being made, or was left so by a killed process
    found = [entry.name for entry in entries if not entry.name.startswith(".") and _is_record(entry)]
    return sorted(found, reverse=True)


def newest(root: str | Path | None = None) -> Record:
    """The run that was begun last. Raises NotFoundError if there is none."""
    folder = Path(root).expanduser() if root is not None else runs_root()
    ids = run_ids(folder)
    if not ids:
        raise NotFoundError(f"there are no runs in {folder}")
    second = ids[0][:_SECOND]  # ids tell the second, records tell more
    same = [Record(folder / run_id) for run_id in ids if run_id[:_SECOND] == second]
    return same[0] if len(same) == 1 else max(same, key=lambda record: str(record.read().get("created_utc")))


def find(run_or_prefix: str | Path, root: str | Path | None = None) -> Record:
    """The record of a directory, an id in the root, or an id's unique beginning.

    Raises NotFoundError if nothing or more than one run answers.
    """
    text = str(run_or_prefix)
    path = Path(text).expanduser()
    if text and _is_record(path):
        return Record(path)
    folder = Path(root).expanduser() if root is not None else runs_root()
    ids = run_ids(folder)
    if text in ids:
        return Record(folder / text)
    matches = [run_id for run_id in ids if text and run_id.startswith(text)]
    if len(matches) == 1:
        return Record(folder / matches[0])
    if matches:
        raise NotFoundError(f"{len(matches)} runs begin with {text!r}: {', '.join(matches[:5])}; write more of the id")
    if not ids:
        raise NotFoundError(f"no run {text!r}: there are no runs in {folder}")
    hint = did_you_mean(text, ids)
    if hint.startswith("there are"):
        hint = f"the newest is {ids[0]!r}"
    raise NotFoundError(f"no run {text!r} in {folder}; {hint}")


def _is_record(path: Path) -> bool:
    try:
        return path.is_dir() and ((path / "record.json").exists() or (path / "config.json").exists())
    except OSError:
        return False
