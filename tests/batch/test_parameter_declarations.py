"""What a parameters cell may declare: bounds, choices, documentation, enums, values that are no literals."""

from __future__ import annotations

import datetime
import enum
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sciml_kernel.batch.literals import as_json, as_source
from sciml_kernel.batch.parameter_files import from_pairs, read_file
from sciml_kernel.batch.parameters import declared, describe, resolve
from sciml_kernel.errors import ParameterError


def cells(source: str) -> list[dict[str, Any]]:
    return [{"cell_type": "code", "source": source, "metadata": {"tags": ["parameters"]}}]


def given(source: str, text: str) -> Any:
    """The value of the only given parameter, x."""
    return resolve(cells(source), from_pairs([("x", text)]))[0]["x"]


@pytest.mark.parametrize(
    ("source", "fits", "does_not", "must"),
    [
        ("x: int = 5  # passes [1..100]", "100", "101", "from 1 to 100"),
        ("x = 0.5  # [0..1)", "0.999", "1", "at least 0 and less than 1"),
        ("x = 0.5  # (0..]", "0.001", "0", "more than 0"),
        ("x = 0.5  # more [ .. 2.5 ] words", "-7.0", "2.6", "at most 2.5"),
        ("# [1..4]\nx = 2", "4", "5", "from 1 to 4"),
        ("x = [1, 2]  # not a bound: [Mpc/h]", "[3]", "'a'", "list"),
        ("x = 'a'  # [a | b]", "b", "c", "'a' or 'b'"),
        ("x = 8  # [8 | 16 | 32]", "32", "12", "8 or 16 or 32"),
        ("from typing import Literal\nx: Literal[1, 2] = 1", "2", "3", "1 or 2"),
        ("x: Annotated[int, Ge(2), Lt(9)] = 3", "2", "9", "at least 2 and less than 9"),
        ("from pydantic import Field\nx: Annotated[float, Field(gt=0, le=1)] = 1.0", "0.5", "0", "more than 0"),
        ("import annotated_types as at\nx: Annotated[int, at.Interval(ge=1, le=3)] = 1", "3", "4", "from 1 to 3"),
        ("import datetime\nx = datetime.date(2026, 1, 1)  # [2000-01-01..2026-12-31]", "2026-12-31", "2027-01-01",
         "from 2000-01-01 to 2026-12-31"),
    ],
)  # fmt: skip
def test_bounds_and_choices_hold(source: str, fits: str, does_not: str, must: str) -> None:
    assert str(given(source, fits)) == fits
    with pytest.raises(ParameterError) as caught:
        given(source, does_not)
    line = source.splitlines()[-1].strip()
    assert must in str(caught.value)
    assert f"line {len(source.splitlines())} of the parameters cell: {line}" in str(caught.value)


@pytest.mark.parametrize(
    "source", ["x = 0  # [1..9]", "x = 'c'  # [a | b]", "x = 5  # [9..1]", "x = 5  # [one..9]", "x = 5  # [1 | two]"]
)
def test_a_cell_whose_bounds_make_no_sense_is_refused(source: str) -> None:
    with pytest.raises(ParameterError, match="line 1 of the parameters cell"):
        declared(cells(source))


ENUMS = """
from enum import Enum
class Mode(Enum):
    FAST = "quick"
    SLOW = "slow"
x: Mode = Mode.FAST
"""


@pytest.mark.parametrize("text", ["SLOW", "Mode.SLOW", "slow"])
def test_a_member_of_the_cells_own_enum_is_given_by_name_or_value(text: str) -> None:
    value = given(ENUMS, text)
    assert (value.name, value.value) == ("SLOW", "slow")
    # The injected source is run in the notebook, where the class is another object of the same name.
    names: dict[str, Any] = {}
    exec(ENUMS, names)
    assert eval(as_source(value), names) is names["Mode"].SLOW
    assert as_json(value) == "slow"
    with pytest.raises(ParameterError, match=r"must be Mode \(FAST, SLOW\)"):
        given(ENUMS, "medium")


def test_a_member_of_an_imported_enum_comes_back_as_itself() -> None:
    value = given("import signal\nx = signal.Signals.SIGTERM", "SIGINT")
    assert eval(as_source(value)) is value
    assert value == 2


def test_a_module_that_is_not_asked_for_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "explodes.py").write_text("raise SystemError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert given("import explodes\nx = 1", "2") == 2
    assert "explodes" not in sys.modules
    assert given("import explodes\nx: explodes.Kind = 1", "2") == 2  # what it says can't be known


@pytest.mark.parametrize(
    ("default", "value"),
    [
        ("2 ** 10 * 3", 3072),
        ("-1.5", -1.5),
        ("datetime.datetime(2026, 1, 2, 3)", datetime.datetime(2026, 1, 2, 3)),
        ("datetime.timedelta(hours=2)", datetime.timedelta(hours=2)),
        ("Path('a') ", Path("a")),
        ("{1: (2, 3), (4, 5): None}", {1: (2, 3), (4, 5): None}),
        ("{'a', 'b'}", {"a", "b"}),
        ("np.float32(0.5)", np.float32(0.5)),
    ],
)
def test_defaults_that_are_no_literals_are_known(default: str, value: Any) -> None:
    source = f"import datetime\nimport numpy as np\nfrom pathlib import Path\nx = {default}"
    everything = resolve(cells(source), {})[1]
    assert everything["x"] == value
    assert type(everything["x"]) is type(value)
    assert eval(as_source(value)) == value


@pytest.mark.parametrize("default", ["open('/etc/passwd')", "__import__('os').getpid()", "9 ** 9 ** 9", "y", "[*y]"])
def test_nothing_of_the_cell_is_run(default: str) -> None:
    known = declared(cells(f"x = {default}"))
    assert known is not None
    assert known["x"].default is ...


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [("float32", "0.1", np.float32(0.1)), ("int64", "7", np.int64(7)), ("uint8", "255", np.uint8(255))],
)
def test_a_numpy_scalar_stays_one(kind: str, text: str, value: Any) -> None:
    found = given(f"import numpy as np\nx = np.{kind}(1)", text)
    assert type(found) is type(value)
    assert found == value
    back = eval(as_source(found))
    assert type(back) is type(value)
    assert back == value


@pytest.mark.parametrize(("kind", "text"), [("uint8", "256"), ("int32", "1.5"), ("float32", "1e60")])
def test_what_a_numpy_scalar_can_not_hold_is_refused(kind: str, text: str) -> None:
    with pytest.raises(ParameterError, match=kind):
        given(f"import numpy as np\nx = np.{kind}(1)", text)


def test_numpy_inside_of_containers_becomes_python() -> None:
    found = resolve(cells("x = [1, 2]\ny = {}"), {"x": [np.int64(3)], "y": {np.int32(1): np.float64(0.5)}})[0]
    assert found == {"x": [3], "y": {1: 0.5}}
    assert type(found["x"][0]) is int
    assert [type(item) for pair in found["y"].items() for item in pair] == [int, float]


def test_keys_of_a_dict_keep_their_type_over_json(tmp_path: Path) -> None:
    """JSON knows texts only as keys."""
    file = tmp_path / "p.json"
    file.write_text('{"x": {"1": 0.5, "2": [3]}, "name": "007"}')
    found = resolve(cells("x = {0: 1.0}\nname = ''"), read_file(file))[0]
    assert found == {"x": {1: 0.5, 2: [3]}, "name": "007"}
    file.write_text('{"x": {"one": 0.5}}')
    with pytest.raises(ParameterError, match="x must be dict"):
        resolve(cells("x = {0: 1.0}"), read_file(file))


@pytest.mark.parametrize(("name", "text"), [("p.json", '{"x": 1, "x": 2}'), ("p.yaml", "x: 1\ny: 3\nx: 2\n")])
def test_a_name_that_is_twice_in_a_file_is_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ParameterError, match="'x' is there twice"):
        read_file(tmp_path / name)


def test_the_description_has_type_bounds_default_and_comment() -> None:
    source = (
        "# rate of the optimizer\n"
        "# after warm-up (0..1]\n"
        "rate = 1e-3\n"
        "\n"
        "sizes: list[int] = [  # voxels a side\n"
        "    8,\n"
        "    16,  # the paper's\n"
        "]\n"
        "x: Annotated[int, Ge(1), 'ranks'] = 2\n"
        "when = now()\n"
    )
    assert describe(cells(source)).splitlines() == [
        "rate: float more than 0 and at most 1; default 0.001",
        "    rate of the optimizer after warm-up",
        "sizes: list[int]; default [8, 16]",
        "    voxels a side the paper's",
        "x: int at least 1; default 2",
        "    ranks",
        "when: any value; default computed",
    ]
    assert "takes no parameters" in describe([])


class Colour(enum.Enum):
    RED = 1


def test_values_inside_of_containers_make_themselves_again() -> None:
    value = [Colour.RED, {Colour.RED: (np.float32(0.1), datetime.time(1, 2))}]
    back = eval(as_source(value))
    assert back == value
    assert type(back[1][Colour.RED][0]) is np.float32
