"""Equal values have equal marks in every process; different ones have not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from sciml_kernel.batch.fingerprint import Unknown, describe, fingerprint
from sciml_kernel.jupyter.stages import reads_and_writes

VALUES = """
import dataclasses, datetime, enum, functools, pathlib
import numpy as np, pandas as pd, xarray as xr, dask.array as da
from sciml_kernel.batch.fingerprint import fingerprint
k = 2
def inner(x): return x + k
def outer(x, y=3): return inner(x) + len(x)
class Mode(enum.Enum):
    FAST = 1
class Thing:
    def __init__(self): self.x = {'b': 1, 'a': {1, 2, 3}}
@dataclasses.dataclass
class Data:
    x: int = 1
    @property
    def y(self): return self.x + k
    @classmethod
    def make(cls): return cls(2)
values = [1, 1.5, "text", b"b", None, (1, [2]), {"a": 1, 2: "b"}, {"x", "y", "z"}, pathlib.Path("/a"),
    datetime.date(2026, 1, 2), np.float32(1.5), np.arange(6).reshape(2, 3), pd.DataFrame({"a": [1, 2]}),
    xr.Dataset({"t": ("x", np.ones(3))}, attrs={"units": "K"}), da.ones((4, 4), chunks=2), np, np.mean, len,
    outer, Mode, Mode.FAST, Thing(), Thing, Data, Data(3), Data(4), lambda x: x + 1,
    functools.partial(np.sum, axis=0), range(3), slice(1, 2)]
print([fingerprint(value) for value in values])
"""


def test_marks_are_the_same_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "v.py").write_text(VALUES)
    marks = [
        subprocess.run(
            [sys.executable, str(tmp_path / "v.py")],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert marks[0] == marks[1]
    found = eval(marks[0])
    assert len(set(found)) == len(found)


def test_a_changed_method_is_a_changed_class_and_object(tmp_path: Path) -> None:
    marks = []
    for body in ("self.x + k", "self.x - k"):
        (tmp_path / "v.py").write_text(VALUES.replace("self.x + k", body))
        done = subprocess.run([sys.executable, str(tmp_path / "v.py")], capture_output=True, text=True, check=True)
        marks.append(eval(done.stdout))
    changed = [i for i, (one, other) in enumerate(zip(*marks, strict=True)) if one != other]
    assert len(changed) == 3  # Data, Data(3), Data(4)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        ("1", 1),
        ([1, 2], (1, 2)),
        ([[1], 2], [[1, 2]]),
        ({"a": 1}, {"a": 2}),
        (np.zeros(2), np.zeros(3)),
        (np.zeros(2), np.zeros(2, dtype="f4")),
        (pd.Series([1.0]), pd.Series([1.0], name="x")),
        (xr.DataArray([1.0], attrs={"units": "K"}), xr.DataArray([1.0], attrs={"units": "C"})),
    ],
)
def test_different_values_have_different_marks(one: object, other: object) -> None:
    assert fingerprint(one) != fingerprint(other)


def test_what_can_not_be_told_is_not_guessed() -> None:
    for value in (threading.Lock(), (i for i in range(3)), object()):
        with pytest.raises(Unknown, match=type(value).__name__):
            fingerprint(value)


def test_a_list_that_holds_itself_has_an_end() -> None:
    loop: list[object] = [1]
    loop.append(loop)
    assert fingerprint(loop)


def test_words_are_short() -> None:
    assert describe(3) == "3"
    assert describe("x" * 100) == "str"
    assert describe(np) == f"module numpy {np.__version__}"
    assert describe(object()) == "object"


@pytest.mark.parametrize(
    ("source", "reads", "writes"),
    [
        ("y = x + 1", ["x"], ["y"]),
        ("x = 1\ny = x", [], ["x", "y"]),
        ("x += 1", ["x"], ["x"]),
        ("if a:\n    x = 1\ny = x", ["a", "x"], ["x", "y"]),
        ("for i in range(n):\n    s = i\nt = i", ["range", "n", "i"], ["i", "s", "t"]),
        ("import numpy as np, os.path\nnp.zeros(n)", ["n"], ["np", "os"]),
        ("def f(a):\n    b = a\n    return c\nf(1)", ["a", "c"], ["f"]),
        ("v = [q for q in w]", ["w", "q"], ["v"]),
        ("with open(p) as f:\n    d = f.read()", ["open", "p", "f"], ["f", "d"]),
        ("(a, *b), c[0] = z", ["c", "z"], ["a", "b"]),
        ("try:\n    u = g()\nexcept E as e:\n    u = None", ["g", "E"], ["u"]),
        ("log.append(1)", ["log"], []),
    ],
)
def test_what_code_reads_and_sets(source: str, reads: list[str], writes: list[str]) -> None:
    import ast

    found = reads_and_writes(ast.parse(source).body)
    assert (sorted(found[0]), sorted(found[1])) == (sorted(reads), sorted(writes))
