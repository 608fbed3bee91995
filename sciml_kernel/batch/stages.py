"""Stages: parts of a notebook whose results outlive a run that ends early.

::

    with sk.stage("train"):                      # or a cell tagged `stage:train`
        run = sk.train(...)
        run.wait()

By hand a stage is nothing but its body. In a batch run, the variables that the body sets are kept in the record,
`stages/<name>/`. `sciml batch --resume RUN` then does not run a finished stage again whose inputs are what they were:
its code, the variables it reads, the files it names, package and lock. What has changed is named, and the stage is run.
The kernel's `jupyter.stages` finds a stage's code and variables in the cell; here is what is done with them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, MutableMapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any

from sciml_kernel import records
from sciml_kernel.batch.fingerprint import Unknown, describe, fingerprint, named_by
from sciml_kernel.batch.stage_results import (
    Absent,
    file_mark,
    local_modules,
    random_marks,
    read_results,
    write_results,
)
from sciml_kernel.contracts import PARENT_VARIABLE
from sciml_kernel.errors import UsageError
from sciml_kernel.records import Record
from sciml_kernel.records.hashes import describe_files

__all__ = ["Stage", "Trace", "kept_stages", "stage", "tagged"]

FOLDER = "stages"
TAG = "stage:"
_begun: set[tuple[str, str]] = set()


@dataclass(frozen=True)
class Trace:
    """What `jupyter.stages` sees of a stage in its cell. namespace: the notebook's. reads: names that the body may use
    from before; writes: names that it sets. source: of the body. obstacle: why it can't be kept, "" where it can.
    whole: the stage is all of its cell."""

    namespace: MutableMapping[str, Any]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    source: str
    obstacle: str = ""
    whole: bool = False


@dataclass
class _Note:
    """`stage.json`. inputs: name -> [fingerprint, words]. modules: path -> sha256 of loaded code that is not installed.
    random: generator -> mark of its state at the beginning, of those that the body used. changed: inputs that it
    changed in place. deleted: names that it deleted. absent: result -> why it is not kept. runs: trainings begun in the
    stage. kept_from: the run in which it was really run, None for this one."""

    name: str
    inputs: dict[str, list[str]]
    files: list[dict[str, Any]] = field(default_factory=list)
    modules: dict[str, str] = field(default_factory=dict)
    random: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    changed: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    runs: list[str] = field(default_factory=list)
    kept_from: str | None = None


def stage(name: str, *, inputs: Iterable[str | Path] = ()) -> Stage:
    """A part of the notebook that need not be run again when the batch run is resumed; for `with`.

    name: letters, digits, `-`, `_` and `.`; once in a run. inputs: files and folders that the body reads; their sizes
    and hashes count as inputs. Raises UsageError for another name.
    """
    return Stage(name, inputs)


class Stage:
    """`needed`: whether the body is run."""

    def __init__(self, name: str, inputs: Iterable[str | Path] = ()) -> None:
        if not re.fullmatch(r"[\w.-]{1,80}", name, flags=re.ASCII) or name.startswith("."):
            raise UsageError(f"a stage's name has letters, digits, '-', '_' and '.', got {name!r}")
        self.name, self.needed, self.said = name, True, ""
        self._inputs = [Path(path) for path in ([inputs] if isinstance(inputs, str | Path) else inputs)]
        parent = os.environ.get(PARENT_VARIABLE)
        self._record = Record(Path(parent)) if parent else None
        self._trace: Trace | None = None
        self._note = _Note(name, {})
        self._runs_before: list[str] = []
        self._random: dict[str, str] = {}
        self._names_before: set[str] = set()

    def traced(self, trace: Trace) -> Stage:
        """Called by the code that `jupyter.stages` puts around the body."""
        self._trace = trace
        return self

    @property
    def whole(self) -> bool:
        return self._trace is not None and self._trace.whole

    def __enter__(self) -> Stage:
        self._began = time.monotonic()
        if self._record is None:
            return self
        key = (str(self._record.path), self.name)
        if key in _begun:
            raise UsageError(f"stage {self.name!r} is there twice in this run; give each its own name")
        _begun.add(key)
        self._runs_before = self._record.read()["children"]
        if self._trace is None or self._trace.obstacle:
            why = "it is not at the top of a cell" if self._trace is None else self._trace.obstacle
            self._tell("run", f"stage {self.name!r} is run, and can't be kept: {why}")
            return self
        try:
            self._note.inputs = self._inputs_now(self._trace)
            self._note.files = describe_files(self._inputs)
            self._random, self._names_before = random_marks(), set(self._trace.namespace)
        except Unknown as unknown:
            self._trace = None
            self._tell("run", f"stage {self.name!r} is run, and can't be kept: {unknown}")
            return self
        earlier = records.earlier_runs()
        if earlier:
            self._take_over(earlier, self._trace)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._record is None or not self.needed:
            return
        self._note.seconds = round(time.monotonic() - self._began, 3)
        if error is not None:
            self._summarise("failed", type(error).__name__)
        elif self._trace is not None and not self._trace.obstacle:
            self._keep(self._record, self._trace)
        else:
            self._summarise("done, not kept", "")

    # -- what it depends on -------------------------------------------------------------------------------------------

    def _inputs_now(self, trace: Trace) -> dict[str, list[str]]:
        package = version("sciml-kernel")
        found = {
            "the code of the stage": [fingerprint(trace.source), "the code of the stage"],
            "the package": [package, package],
            "the lock of the environment": [records.lock_hash() or "", records.lock_hash() or "none"],
        }
        for name in self._names_read(trace):
            value = trace.namespace[name]
            try:
                found[name] = [fingerprint(value), describe(value)]
            except Unknown as unknown:
                raise Unknown(f"its input {name!r} ({unknown}) can't be compared between runs") from unknown
        return found

    def _names_read(self, trace: Trace) -> list[str]:
        """What the body names, and what the notebook's functions name that it uses."""
        names = {name: None for name in trace.reads if name in trace.namespace}
        for name in list(names):
            names |= dict.fromkeys(named_by(trace.namespace[name], trace.namespace))
        return list(names)

    def _changes(self, before: _Note) -> list[str]:
        """What is not as it was, in words."""
        changed = []
        for name, (mark, words) in self._note.inputs.items():
            old = before.inputs.get(name)
            if old is None:
                changed.append(f"{name} is new")
            elif old[0] != mark:
                changed.append(f"{name} was {old[1]}, is {words}" if old[1] != words else f"{name} has changed")
        changed += [f"{name} is not read any more" for name in before.inputs if name not in self._note.inputs]
        files = {entry["path"]: entry for entry in self._note.files}
        changed += [f"file {entry['path']} is gone" for entry in before.files if entry["path"] not in files]
        old_files = {entry["path"]: entry for entry in before.files}
        changed += [f"file {path} has changed" for path, entry in files.items() if entry != old_files.get(path)]
        changed += [f"module {path} has changed" for path, mark in before.modules.items() if file_mark(path) != mark]
        changed += [f"{label} has changed" for label, mark in before.random.items() if self._random.get(label) != mark]
        return changed

    # -- keeping and taking over --------------------------------------------------------------------------------------

    def _take_over(self, earlier: list[Record], trace: Trace) -> None:
        found = [one for one in earlier if (one.path / FOLDER / self.name / "stage.json").exists()]
        folder = (found or earlier)[0].path / FOLDER / self.name
        before = _read_note(folder)
        if before is None:
            return self._tell("run", f"stage {self.name!r} is run: {earlier[0].id} had not finished it")
        changed = self._changes(before)
        if changed:
            return self._tell("run", f"stage {self.name!r} is run again: {'; '.join(changed)}")
        try:
            read_results(folder, trace.namespace)
        except Exception as error:  # a class that is gone or another version of a library
            words = f"{type(error).__name__}: {error}"
            return self._tell("run", f"stage {self.name!r} is run again: its results can't be read: {words}")
        assert self._record is not None
        for name, why in before.absent.items():
            trace.namespace[name] = Absent(name, self.name, why)
        for name in before.deleted:
            trace.namespace.pop(name, None)
        self.needed = False
        before.kept_from = before.kept_from or found[0].id
        target = self._record.path / FOLDER / self.name
        shutil.copytree(folder, target, dirs_exist_ok=True)
        _write_note(target, before)
        for run_id in before.runs:
            self._record.add_child(run_id)
        self._note = before
        self._tell("kept", f"stage {self.name!r} is kept from {before.kept_from}: {before.seconds:.1f} s not run again")
        return None

    def _keep(self, record: Record, trace: Trace) -> None:
        """Write what the body has set, and what it has changed in place, into the record: all of it or nothing."""
        note, folder = self._note, record.path / FOLDER / self.name
        note.runs = [run_id for run_id in record.read()["children"] if run_id not in self._runs_before]
        namespace = trace.namespace
        note.changed = self._mutated(trace)
        note.deleted = [name for name in self._names_before if name not in namespace]
        note.modules = local_modules()
        note.random = {label: mark for label, mark in self._random.items() if random_marks().get(label) != mark}
        new = [name for name in namespace if name not in self._names_before and not name.startswith("_")]
        names = list(dict.fromkeys([*(name for name in trace.writes if name in namespace), *new, *note.changed]))
        outside = [name for name in self._names_read(trace) if name not in names]
        folder.mkdir(parents=True, exist_ok=True)
        try:
            kept = write_results(folder, namespace, names, note.changed, outside, note.random)
            note.results, note.absent = kept.names, kept.absent
            _write_note(folder, note)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            return self._tell("run", f"stage {self.name!r} can't be kept: {error.strerror or error}")
        self._summarise("done", "")
        return None

    def _mutated(self, trace: Trace) -> list[str]:
        """Inputs that the body has changed in place: they are results as well."""
        found = []
        for name in self._names_read(trace):
            if name in self._note.inputs:
                try:
                    same = fingerprint(trace.namespace[name]) == self._note.inputs[name][0]
                except Unknown:
                    same = False
                found += [] if same else [name]
        return found

    def _tell(self, status: str, words: str) -> None:
        self.said = words
        self._summarise(status, words)

    def _summarise(self, status: str, words: str) -> None:
        """Into `extra.stages` of the record."""
        if self._record is not None:
            stages = self._record.read()["extra"].get("stages", {})
            before = stages.get(self.name, {}).get("why", "")
            entry = {"status": status, "seconds": self._note.seconds, "why": words or before}
            self._record.update(extra={"stages": {**stages, self.name: entry}})


def tagged(cells: Iterable[Any]) -> dict[str, str]:
    """sha256 of the source -> stage, of each cell with a tag `stage:NAME`. Raises UsageError for a name that can't be
    one, for a second tag in a cell, and for two cells with one source or one stage."""
    found: dict[str, str] = {}
    for cell in cells:
        names = [tag[len(TAG) :] for tag in cell.get("metadata", {}).get("tags", []) if tag.startswith(TAG)]
        if not names:
            continue
        if len(names) > 1:
            raise UsageError(f"a cell is tagged as {len(names)} stages: {', '.join(names)}; keep one")
        mark = hashlib.sha256(cell["source"].encode()).hexdigest()
        if mark in found or Stage(names[0]).name in found.values():
            raise UsageError(f"stage {names[0]!r}: two cells are tagged so, or have the same source; give each its own")
        found[mark] = names[0]
    return found


def kept_stages(record: Record) -> list[str]:
    """Names of the stages of a run that a resume could keep."""
    return sorted(note.parent.name for note in record.path.glob(f"{FOLDER}/*/stage.json"))


def _read_note(folder: Path) -> _Note | None:
    try:
        return _Note(**json.loads((folder / "stage.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _write_note(folder: Path, note: _Note) -> None:
    """Last of all files: where it is, the others are whole."""
    records.write_atomic(folder / "stage.json", json.dumps(asdict(note), indent=1) + "\n")
