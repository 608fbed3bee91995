"""Begin a run record: all of it or nothing."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sciml_kernel.config.digest import canonical_json, digest
from sciml_kernel.errors import RecordError, UsageError, did_you_mean
from sciml_kernel.records.environment import environment
from sciml_kernel.records.fields import KINDS, SCHEMA_VERSION, check_update
from sciml_kernel.records.files import sync_directory, write_atomic
from sciml_kernel.records.git import Changes, git_changes
from sciml_kernel.records.owner import this_process
from sciml_kernel.records.record import RESERVE, Record, dump, utc_text
from sciml_kernel.records.root import runs_root
from sciml_kernel.records.secrets import MASK, mask

__all__ = ["create"]

PATCH = "local-changes.patch"
RESERVE_BYTES = 65_536


def create(
    name: str,
    config_json: str,
    *,
    root: str | Path | None = None,
    kind: str = "train",
    parent: str | Path | None = None,
    ranks: int | None = None,
    seeds: Mapping[str, int] | None = None,
    data: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    launch: str | Sequence[str] | Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    code: str | Path | None = None,
) -> Record:
    """Make a record with status "created", owned by this process: all of it or nothing.

    name: recipe or notebook. config_json: the frozen config as canonical JSON; its bytes become `config.json` and their
    sha256 the digest. root: made if need be; default: where the parent is, else `runs_root()`. kind: "train",
    "batch" or "grid". parent: path or id of the run that gets the new one as a child. code: folder whose repository is
    noted; default: the current one. The rest are record fields, see `fields.UPDATABLE`.

    Raises UsageError if the root can't be written, kind is unknown or config_json is no JSON object; NotFoundError for
    an unknown parent; RecordError for a field that can't be kept.
    """
    if kind not in KINDS:
        raise UsageError(f"unknown kind of run {kind!r}; {did_you_mean(kind, KINDS)}")
    _check_config(config_json)
    given = {"ranks": ranks, "seeds": dict(seeds or {}), "data": data, "launch": launch, "extra": dict(extra or {})}
    if isinstance(data, Mapping):
        given["data"] = dict(data)
    if isinstance(launch, Mapping):
        given["launch"] = dict(launch)
    fields = check_update(given)
    if isinstance(fields["launch"], str):
        fields["launch"] = mask(fields["launch"])
    folder, above = _place(root, parent)
    now = datetime.now(UTC)
    git, changes = git_changes(code)
    patch = mask(changes.patch.decode("utf-8", "replace")) if changes.patch is not None else None
    content = {
        "schema_version": SCHEMA_VERSION,
        "id": "",
        "name": name,
        "kind": kind,
        "status": "created",
        "digest": digest(config_json),
        "created_utc": utc_text(now),
        "started_utc": None,
        "ended_utc": None,
        "owner": this_process(),
        "parent": above.id if above is not None else None,
        "children": [],
        "git": {**git, **_kept(changes, patch)},
        **environment(),
        "hosts": [socket.gethostname()],
        "devices": [],
        **fields,
        "cells": [],
        "usage": {},
        "error": None,
    }
    made: Path | None = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        made = folder / f".creating-{secrets.token_hex(6)}"
        made.mkdir()
        for part in ("checkpoints", "logs", "figures"):
            (made / part).mkdir()
        write_atomic(made / "config.json", config_json)
        write_atomic(made / RESERVE, b"\0" * RESERVE_BYTES)
        if patch is not None:
            write_atomic(made / PATCH, patch)
        path = _settle(made, folder, content, now)
    except OSError as error:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
        raise UsageError(
            f"no run can be written in {folder}: {error.strerror or error}; "
            "set SCIML_RUNS to a directory that you may write to, with space left"
        ) from error
    except BaseException:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
        raise
    record = Record(path)
    if above is not None:
        try:
            above.add_child(record.id)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
    return record


def _kept(changes: Changes, patch: str | None) -> dict[str, Any]:
    """What the record says of local changes. patch: file in the record; None where there are none, or more bytes than
    are kept. patch_masked: what looks like a secret is left out of it, so it may not apply."""
    return {
        "patch": PATCH if patch is not None else None,
        "patch_bytes": changes.patch_bytes,
        "patch_masked": patch is not None and MASK in patch and patch.encode() != changes.patch,
        "untracked": changes.untracked,
    }


def _place(root: str | Path | None, parent: str | Path | None) -> tuple[Path, Record | None]:
    """The runs root and the parent's record. They lie in one directory, else a child could not be found by its id."""
    folder = Path(root).expanduser().absolute() if root is not None else None
    if parent is None or not str(parent):
        return folder or runs_root(), None
    path = Path(parent)
    if len(path.parts) > 1:
        path = path.expanduser().absolute()
        if folder is not None and path.parent.resolve() != folder.resolve():
            raise UsageError(f"parent {path} is not in the runs root {folder}; a batch and its runs share one")
        folder = path.parent
    else:
        folder = folder or runs_root()
        path = folder / path
    record = Record(path)
    record.read()
    return folder, record


def _settle(made: Path, folder: Path, content: dict[str, Any], now: datetime) -> Path:
    """Give the finished directory its final name; two runs of one name, config and second get different seconds."""
    for seconds in range(3600):
        moment = now + timedelta(seconds=seconds)
        run_id = f"{moment:%Y%m%dT%H%M%SZ}-{_slug(content['name'])}-{content['digest'][:8]}"
        path = folder / run_id
        if path.exists():
            continue
        write_atomic(made / "record.json", dump({**content, "id": run_id}))
        try:
            os.rename(made, path)  # refuses a directory that is not empty, and a record never is
        except OSError:
            if path.exists():
                continue
            raise
        sync_directory(folder)
        return path
    raise RecordError(f"no free name for run {content['name']!r} in {folder}")


def _check_config(config_json: str) -> None:
    try:
        config = json.loads(config_json)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the config is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise UsageError(f"the config must be a JSON object, got {type(config).__name__}")
    if canonical_json(config) != config_json:
        raise UsageError("the config is not canonical JSON; write it with sciml_kernel.config.digest.canonical_json")


def _slug(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip("-.")[:60] or "run"
