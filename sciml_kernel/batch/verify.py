"""Does a run still hold? `check` looks at its files; `again` runs it once more and compares the numbers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import nbformat

from sciml_kernel import records
from sciml_kernel.batch.conduct import Limits, conduct
from sciml_kernel.batch.ending import Ending
from sciml_kernel.batch.progress import Progress, Quiet
from sciml_kernel.batch.run import Plan, execute, open_record, plan_source, recorded_parameters
from sciml_kernel.batch.source import Source
from sciml_kernel.errors import PoolError, RecordError, RemoteError, RunError, SciMLError, UsageError
from sciml_kernel.metrics.jsonl import read_events
from sciml_kernel.pool import Pool
from sciml_kernel.records import Record
from sciml_kernel.records.environment import environment
from sciml_kernel.records.git import git_state
from sciml_kernel.records.hashes import differences
from sciml_kernel.session import repeat

__all__ = ["RTOL", "Number", "Verification", "again", "check", "compare_numbers"]

RTOL = 1e-6
INJECTED = "injected-parameters"


@dataclass(frozen=True)
class Number:
    """One metric's last value, then and now. verdict: "identical", "within 1e-09" (the smallest power of ten that
    holds), "differs" (by more than the tolerance), "missing now" or "new"."""

    metric: str
    recorded: float | None
    now: float | None
    relative_difference: float | None
    verdict: str

    @property
    def holds(self) -> bool:
        return self.verdict == "identical" or self.verdict.startswith("within") or self.verdict == "new"


@dataclass
class Verification:
    """problems: what does not hold, in words; none where all does. notes: what is different but decides nothing.
    environment: name -> [then, now]. again: id of the new run, None for a look at the files only."""

    run: str
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    numbers: list[Number] = field(default_factory=list)
    environment: dict[str, list[Any]] = field(default_factory=dict)
    again: str | None = None

    @property
    def holds(self) -> bool:
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        content = asdict(self) | {"holds": self.holds}
        for number in content["numbers"]:
            for name in ("recorded", "now", "relative_difference"):
                value = number[name]
                number[name] = value if value is None or math.isfinite(value) else str(value)
        return content

    def text(self) -> str:
        """For people: numbers first, then what differs, then the verdict."""
        width = max((len(number.metric) for number in self.numbers), default=0)
        lines = [
            f"{one.metric:<{width}}  then {_shown(one.recorded):<22}  now {_shown(one.now):<22}  {one.verdict}"
            for one in self.numbers
        ]
        lines += [f"different  {name}: {then!r} then, {now!r} now" for name, (then, now) in self.environment.items()]
        lines += [f"note       {note}" for note in self.notes]
        lines += [f"PROBLEM    {problem}" for problem in self.problems]
        return "\n".join([*lines, f"{self.run} {'holds' if self.holds else 'does not hold'}"])


def check(record: Record) -> Verification:
    """Look at the files of a run and at its data, without running anything: digest, metrics, notebook, checkpoints,
    hashes of the data, and what is different in the environment."""
    from sciml_kernel.engine import checkpoint

    content = record.read()
    found = Verification(record.id, environment=_environment_now(content))
    if content["status"] not in records.END_STATES:
        found.problems.append(f"the run is {content['status']} still")
    config = (record.path / "config.json").read_bytes()
    if hashlib.sha256(config).hexdigest() != content["digest"]:
        found.problems.append("config.json is not what was run: its sha256 is not the digest of the record")
    try:
        read_events(record.metrics_path)
    except RecordError as error:
        found.problems.append(str(error))
    if content["kind"] == "batch":
        with _noting(found, "notebook.ipynb"):
            nbformat.validate(nbformat.read(record.path / "notebook.ipynb", as_version=4))
        for child in record.children():
            below = check(child)
            found.problems += [f"{child.id}: {problem}" for problem in below.problems]
            found.notes += [f"{child.id}: {note}" for note in below.notes]
    for path in sorted(record.checkpoints_dir.glob("*.npz")):
        with _noting(found, path.name):
            checkpoint.read(path)
    found.problems += _data_problems(content["data"])
    if content["git"].get("patch_bytes") and not content["git"].get("patch"):
        found.notes.append("the local changes were too long to be kept: the code of the run can't be made again")
    return found


def again(record: Record, *, rtol: float = RTOL, progress: Progress | None = None) -> Verification:
    """Run it once more, as its record says, and compare the last value of each metric; rates and times are left out.

    rtol: relative tolerance, |then - now| <= rtol * max(|then|, |now|). A batch is run from the cells that its executed
    notebook holds, with the parameters of its record. Raises UsageError for a run that is not over.
    """
    content = record.read()
    if content["status"] not in records.END_STATES:
        raise UsageError(f"run {record.id} is {content['status']}; wait for its end")
    found = check(record)
    new = _run_batch(record, progress or Quiet()) if content["kind"] == "batch" else _run_training(record)
    found.again = new.id
    now = new.read()
    found.environment = _different(content, now)
    found.numbers = compare_numbers(records.final_values(record), records.final_values(new), rtol=rtol)
    if now["status"] != content["status"]:
        error = now["error"] or {}
        found.problems.append(
            f"the new run {new.id} {now['status']}, the recorded one {content['status']}"
            + (f": {error.get('type')}: {error.get('message')}" if error else "")
        )
    wrong = [number.metric for number in found.numbers if not number.holds]
    if wrong:
        why = (
            "see what is different above" if found.environment else
            "nothing recorded is different: a seed that is not set, or sums in another order on several threads"
        )  # fmt: skip
        found.problems.append(f"{len(wrong)} of {len(found.numbers)} numbers differ by more than {rtol:g}: {why}")
    if not found.numbers:
        found.notes.append("the run reported no numbers, so nothing was compared; `sk.note` keeps a notebook's results")
    return found


def compare_numbers(then: Mapping[str, float], now: Mapping[str, float], *, rtol: float) -> list[Number]:
    """One `Number` a metric of either, in the order of the recorded ones."""
    return [_number(name, then.get(name), now.get(name), rtol) for name in dict.fromkeys([*then, *now])]


def _number(name: str, then: float | None, now: float | None, rtol: float) -> Number:
    if then is None or now is None:
        return Number(name, then, now, None, "new" if then is None else "missing now")
    difference = records.relative_difference(then, now)
    if difference == 0:
        verdict = "identical"
    elif difference <= rtol:
        verdict = f"within {10.0 ** math.ceil(math.log10(difference)):.0e}"
    else:
        verdict = "differs"
    return Number(name, then, now, difference, verdict)


def _run_batch(record: Record, progress: Progress) -> Record:
    what = _plan_of(record)
    ending = Ending()
    where = Path(record.read()["extra"].get("cwd") or ".")
    with contextlib.chdir(where if where.is_dir() else Path.cwd()), ending.signals():
        new = open_record(what, launch=f"sciml runs verify {record.id}", extra={"verifies": record.id})
        conduct(new, lambda state: execute(what, state), ending=ending, progress=progress, limits=Limits())
    return new


def _plan_of(record: Record) -> Plan:
    """The notebook as it was run, without what it printed."""
    node = nbformat.read(record.path / "notebook.ipynb", as_version=4)
    node.cells = [cell for cell in node.cells if INJECTED not in cell.metadata.get("tags", [])]
    for cell in node.cells:
        cell.metadata.pop("papermill", None)
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    node.metadata.pop("papermill", None)
    content, config = record.read(), record.config()
    source = Source(Path(content["extra"]["notebook"]), node, config["notebook_sha256"])
    given = recorded_parameters(record)
    return plan_source(source, given, name=content["name"], runs_root=record.path.parent)


def _run_training(record: Record) -> Record:
    pool = Pool.start(n=record.read()["ranks"] or 1)
    try:
        run = repeat(record, pool)
        with contextlib.suppress(RunError, RemoteError, PoolError):  # how it ended is in its record
            run.wait(progress=False)
        return run.record
    finally:
        pool.stop()


def _environment_now(content: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What is different here and now, of what does not depend on where a run is started from."""
    notebook = content["extra"].get("notebook")
    folder = Path(notebook).parent if notebook else Path.cwd()
    now = json.loads(json.dumps({**environment(), "git": git_state(folder)}))
    return _different({name: content.get(name) for name in now}, now)


def _different(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[Any]]:
    before, after = records.environment_of(then), records.environment_of(now)
    names = dict.fromkeys([*before, *after])
    return {n: [before.get(n), after.get(n)] for n in names if before.get(n) != after.get(n)}


def _data_problems(data: Any) -> list[str]:
    problems = []
    for one in data if isinstance(data, list) else [data] if data else []:
        folder = Path(one["path"])
        files = one.get("files") or [{**one, "path": "manifest.json"} if (folder / "manifest.json").exists() else one]
        for entry in files:
            wrong = differences({**entry, "path": str(folder / entry["path"])})
            if wrong:
                problems.append(f"data {folder / entry['path']} {wrong}")
    return problems


@contextlib.contextmanager
def _noting(found: Verification, name: str) -> Any:
    try:
        yield
    except (SciMLError, OSError, ValueError, KeyError, AttributeError, nbformat.ValidationError) as error:
        found.problems.append(f"{name}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")


def _shown(value: float | None) -> str:
    return "-" if value is None else repr(value)
