"""Types of notebook parameters: the declared type wins, what can't become it is refused."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sciml_kernel.batch.literals import as_source
from sciml_kernel.batch.parameter_files import from_pairs, read_file
from sciml_kernel.batch.parameters import declared, resolve
from sciml_kernel.errors import ParameterError

SOURCE = """
import datetime
epochs = 10           # an int
rate = 1e-3
flag: bool = False
name = "a"
run_id: str = "007"
sizes = (8, 16)
scales = [1.0, 2]
limit: int | None = None
mode: Literal["fast", "slow"] = "fast"
day: datetime.date = datetime.date(2026, 1, 1)
options = {}
anything = None
odd: "np.ndarray" = None
"""


def cells(source: str = SOURCE) -> list[dict[str, Any]]:
    return [
        {"cell_type": "markdown", "source": "text", "metadata": {}},
        {"cell_type": "code", "source": source, "metadata": {"tags": ["parameters"]}},
    ]


def given(name: str, text: str) -> Any:
    return resolve(cells(), from_pairs([(name, text)]))[0][name]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("epochs", "3", 3),
        ("epochs", "1e3", 1000),
        ("rate", "1", 1.0),
        ("rate", "1e-5", 1e-5),
        ("flag", "true", True),
        ("flag", "no", False),
        ("flag", "0", False),
        ("name", "3", "3"),
        ("name", "True", "True"),
        ("name", "None", "None"),
        ("name", 'it\'s "quoted" \\n', 'it\'s "quoted" \\n'),
        ("run_id", "0012", "0012"),
        ("run_id", "1e5", "1e5"),
        ("sizes", "(4, 8, 16)", (4, 8, 16)),
        ("sizes", "[4, 8]", (4, 8)),
        ("scales", "[1, 2.5]", [1.0, 2.5]),
        ("limit", "5", 5),
        ("limit", "None", None),
        ("mode", "slow", "slow"),
        ("day", "2026-12-01", datetime.date(2026, 12, 1)),
        ("options", "{'a': 1}", {"a": 1}),
        ("anything", "3", 3),
        ("anything", "(1, 'x')", (1, "x")),
        ("anything", "plain words", "plain words"),
        ("odd", "7", 7),
    ],
)
def test_a_text_becomes_the_declared_type(name: str, text: str, value: Any) -> None:
    found = given(name, text)
    assert found == value
    assert type(found) is type(value)
    if isinstance(value, list | tuple):
        assert [type(item) for item in found] == [type(item) for item in value]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("epochs", "3.5"),
        ("epochs", "three"),
        ("epochs", "True"),
        ("epochs", ""),
        ("rate", "fast"),
        ("rate", "nan"),
        ("flag", "maybe"),
        ("flag", "2"),
        ("sizes", "8"),
        ("sizes", "(8, 'x')"),
        ("limit", "many"),
        ("mode", "medium"),
        ("day", "yesterday"),
        ("options", "[1]"),
    ],
)
def test_a_text_that_can_not_become_the_type_is_refused(name: str, text: str) -> None:
    with pytest.raises(ParameterError, match=name) as caught:
        given(name, text)
    assert repr(text) in str(caught.value)


def test_python_values_keep_their_type_or_are_refused() -> None:
    values, _ = resolve(cells(), {"epochs": np.int64(4), "rate": np.float32(0.5), "flag": np.bool_(True)})
    assert values == {"epochs": 4, "rate": 0.5, "flag": True}
    assert [type(value) for value in values.values()] == [int, float, bool]
    for name, value in {"epochs": True, "name": 3, "flag": 1}.items():
        with pytest.raises(ParameterError, match=name):
            resolve(cells(), {name: value})


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(ParameterError, match="no parameter 'epoch'; did you mean 'epochs'"):
        given("epoch", "3")


def test_parameters_for_a_notebook_without_the_cell_are_refused() -> None:
    plain = [{"cell_type": "code", "source": "epochs = 1", "metadata": {}}]
    assert resolve(plain, {}) == ({}, {})
    with pytest.raises(ParameterError, match="no cell tagged 'parameters'"):
        resolve(plain, {"epochs": 2})
    with pytest.raises(ParameterError, match="n_ranks"):
        resolve(plain, {}, n_ranks=2)


def test_ranks_need_the_parameter_and_must_not_contradict_it() -> None:
    with pytest.raises(ParameterError, match="n_ranks"):
        resolve(cells(), {}, n_ranks=2)
    ranked = cells("n_ranks = 1\n")
    assert resolve(ranked, {}, n_ranks=3)[0] == {"n_ranks": 3}
    assert resolve(ranked, from_pairs([("n_ranks", "3")]), n_ranks=3)[0] == {"n_ranks": 3}
    with pytest.raises(ParameterError, match="disagree"):
        resolve(ranked, from_pairs([("n_ranks", "2")]), n_ranks=3)


def test_a_parameter_given_twice_is_refused() -> None:
    with pytest.raises(ParameterError, match="twice"):
        from_pairs([("a", "1"), ("a", "2")])


def test_defaults_that_are_literals_are_among_all_values() -> None:
    typed, everything = resolve(cells(), {"epochs": 2})
    assert typed == {"epochs": 2}
    assert everything["epochs"] == 2
    assert everything["sizes"] == (8, 16)
    assert everything["day"] == datetime.date(2026, 1, 1)  # made as it is written: a class of datetime's
    assert "when" not in resolve(cells("when = now()"), {})[1]  # not run here


def test_yaml_gives_a_text_parameter_what_is_written(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    # YAML 1.1 reads 007 as 7, 2026-01-01 as a date, 1e-5 as text and no as False.
    file.write_text("run_id: 007\nname: 2026-01-01\nrate: 1e-5\nflag: no\nsizes: [1, 2]\nlimit: null\nepochs: 3\n")
    typed, _ = resolve(cells(), read_file(file))
    assert typed == {
        "run_id": "007", "name": "2026-01-01", "rate": 1e-5, "flag": False, "sizes": (1, 2), "limit": None, "epochs": 3,
    }  # fmt: skip


def test_a_broken_parameter_file_is_named(tmp_path: Path) -> None:
    for text in ("- 1\n- 2\n", "a: [", "3"):
        file = tmp_path / "p.yaml"
        file.write_text(text)
        with pytest.raises(ParameterError, match=str(file)):
            read_file(file)
    with pytest.raises(ParameterError, match="can't be read"):
        read_file(tmp_path / "missing.yaml")


@pytest.mark.parametrize(
    "value",
    [
        0, -1, 1.5, 1e300, True, None, "", "a'b\"c\\n\n", "é", (1,), (), (1, "x", (2.0,)), [1, [2]],
        {"a": (1, 2), 3: None}, {1, 2}, datetime.date(2026, 1, 2), datetime.timedelta(hours=1),
        datetime.datetime(2026, 1, 2, 3, 4), Path("/a b/c"), float("inf"), [datetime.date(2026, 1, 2)],
    ],
)  # fmt: skip
def test_source_makes_the_same_value_again(value: Any) -> None:
    found = eval(as_source(value))
    assert found == value
    assert type(found) is type(value)


def test_a_cell_that_is_no_python_is_refused() -> None:
    with pytest.raises(ParameterError, match="no Python"):
        declared(cells("x = = 1"))
    with pytest.raises(ParameterError, match="2 cells"):
        declared([*cells("x = 1"), *cells("y = 1")])
