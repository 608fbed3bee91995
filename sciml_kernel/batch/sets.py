"""Parameter sets: a file that names a notebook, its parameters, and what they must give at toy size.

::

    notebook: ../notebooks/00_tour.ipynb    # relative to this file
    parameters:                             # those of the published figures
      epochs: 12
    check:                                  # the same at toy size, for `sciml batch --check`
      parameters:
        epochs: 2
      expect:                               # last value of a metric, as `sciml runs compare` names it
        cosmoflow:val/loss: {value: 0.91, rtol: 0.05}
        result/error: {at_most: 0.1}
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sciml_kernel import records
from sciml_kernel.batch.parameter_files import as_written, load
from sciml_kernel.batch.progress import Progress
from sciml_kernel.batch.run import plan, run_notebook
from sciml_kernel.errors import NotFoundError, ParameterError, did_you_mean

__all__ = ["Checked", "Expectation", "ParameterSet", "check_sets", "find_sets", "read_set"]

_KEYS = ("notebook", "parameters", "check", "title")
_CHECK_KEYS = ("parameters", "expect", "n_ranks")
_EXPECTED = ("value", "rtol", "atol", "at_least", "at_most")


@dataclass(frozen=True)
class Expectation:
    """What a metric's last value must be: `value` within rtol * |value| + atol, and within the given bounds."""

    metric: str
    value: float | None = None
    rtol: float = 0.0
    atol: float = 0.0
    at_least: float = -math.inf
    at_most: float = math.inf

    def wrong(self, found: float | None) -> str:
        """What is wrong with the value, "" where nothing is."""
        if found is None:
            return f"{self.metric} was not reported"
        if self.value is not None and not abs(found - self.value) <= self.rtol * abs(self.value) + self.atol:
            return f"{self.metric} is {found:.9g}, expected {self.value:g} to rtol {self.rtol:g}, atol {self.atol:g}"
        if not self.at_least <= found <= self.at_most:
            return f"{self.metric} is {found:.9g}, expected {self.at_least:g} to {self.at_most:g}"
        return ""


@dataclass(frozen=True)
class ParameterSet:
    """path: of the file. notebook: absolute; None in a file that holds parameters only. parameters: as
    `parameter_files` gives them. toy: those that `--check` sets instead, over the others. expect: what they must give;
    empty where the set can't be checked."""

    path: Path
    notebook: Path | None
    parameters: Mapping[str, Any]
    toy: Mapping[str, Any] = field(default_factory=dict)
    expect: tuple[Expectation, ...] = ()


@dataclass(frozen=True)
class Checked:
    """One set's check. problems: empty where all is as expected. record: None where all was well and it was removed."""

    path: Path
    problems: list[str]
    values: dict[str, float]
    seconds: float
    record: Path | None

    def to_json(self) -> dict[str, Any]:
        values = {name: v if math.isfinite(v) else str(v) for name, v in self.values.items()}
        return {**asdict(self), "path": str(self.path), "record": self.record and str(self.record), "values": values}


def read_set(path: str | Path) -> ParameterSet:
    """Read a parameter set, or a plain file of parameters.

    Raises ParameterError naming the file and the unknown or missing key.
    """
    plain, text = load(path)
    file = Path(path).expanduser().absolute()
    if "notebook" not in plain or not isinstance(plain.get("parameters", {}), dict):
        return ParameterSet(file, None, as_written(plain, text))
    _known(plain, _KEYS, file)
    check, check_text = plain.get("check") or {}, text.get("check") or {}
    if not isinstance(check, dict):
        raise ParameterError(f"{file}: check must hold parameters and expect, got {check!r}")
    _known(check, _CHECK_KEYS, file)
    return ParameterSet(
        file,
        (file.parent / str(plain["notebook"])).resolve(),
        as_written(plain.get("parameters") or {}, text.get("parameters") or {}),
        as_written(check.get("parameters") or {}, check_text.get("parameters") or {}),
        tuple(_expectation(file, name, value) for name, value in (check.get("expect") or {}).items()),
    )


def find_sets(place: str | Path) -> list[Path]:
    """The parameter sets of a folder (or the one file) that say what they expect.

    Raises NotFoundError where there is none, ParameterError for one that can't be read.
    """
    folder = Path(place)
    if folder.is_file():
        files = [folder]
    else:
        files = sorted(file for file in folder.glob("*.y*ml") if file.suffix in (".yaml", ".yml"))
    found = [file for file in files if read_set(file).expect]
    if not found:
        raise NotFoundError(f"no parameter set with `check: expect:` in {folder.absolute()}")
    return found


def check_sets(place: str | Path, *, progress: Progress | None = None) -> list[Checked]:
    """Run every set of a folder at its toy size and compare the results with what it expects.

    Records go to a temporary place and are removed where all is well. Before the first one runs, all are planned:
    raises what `plan` raises for any of them.
    """
    sets = [read_set(path) for path in find_sets(place)]
    for one in sets:
        assert one.notebook is not None
        plan(one.notebook, {**one.parameters, **one.toy})
    return [_check(one, progress) for one in sets]


def _check(one: ParameterSet, progress: Progress | None) -> Checked:
    assert one.notebook is not None
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix=f"sciml-check-{one.path.stem}-"))
    record = run_notebook(
        one.notebook, {**one.parameters, **one.toy}, name=one.path.stem, runs_root=folder, progress=progress
    )
    content, values = record.read(), records.final_values(record)
    problems = [wrong for expected in one.expect if (wrong := expected.wrong(values.get(expected.metric)))]
    if content["status"] != "completed":
        error = content["error"] or {}
        problems.insert(0, f"the run {content['status']}: {error.get('type')}: {error.get('message')}")
    if not problems:
        shutil.rmtree(folder)
    seconds = time.monotonic() - began
    return Checked(one.path, problems, values, round(seconds, 1), record.path if problems else None)


def _expectation(file: Path, metric: str, value: Any) -> Expectation:
    if not isinstance(value, dict) or not value.keys() & {"value", "at_least", "at_most"}:
        raise ParameterError(
            f"{file}: {metric} must be like {{value: 0.9, rtol: 0.01}} or {{at_most: 1}}, got {value!r}"
        )
    _known(value, _EXPECTED, file)
    try:
        return Expectation(metric, **{name: float(number) for name, number in value.items()})
    except (TypeError, ValueError) as error:
        raise ParameterError(f"{file}: {metric}: {error}") from error


def _known(found: Mapping[str, Any], known: tuple[str, ...], file: Path) -> None:
    for name in found:
        if name not in known:
            raise ParameterError(f"{file} has an unknown key {name!r}; {did_you_mean(name, known)}")
