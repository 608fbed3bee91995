"""The package's front page: light to import, complete, and honest about what is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sciml_kernel as sk
from sciml_kernel import registry
from sciml_kernel.errors import NotFoundError

HEAVY = ("tensorflow", "keras", "horovod", "mpi4py", "dask", "distributed", "ipyparallel", "holoviews", "panel")


def _loaded_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(' '.join(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert _loaded_after("import sciml_kernel") == set()


def test_the_notebook_side_needs_no_tensorflow_and_no_mpi() -> None:
    code = "import sciml_kernel as sk; sk.train, sk.Pool, sk.runs, sk.Run, sk.open_universe; import sciml_kernel.cli"
    assert _loaded_after(code) & {"tensorflow", "keras", "horovod", "mpi4py"} == set()


def test_a_recipe_is_described_without_tensorflow() -> None:
    assert _loaded_after("from sciml_kernel import registry; registry.recipe_spec('cosmoflow')") == set()


@pytest.mark.parametrize("name", sk.__all__)
def test_every_name_on_the_front_page_exists(name: str) -> None:
    assert getattr(sk, name) is not None


def test_an_unknown_recipe_names_the_nearest_and_all_that_are_installed() -> None:
    with pytest.raises(NotFoundError, match=r"unknown recipe 'cosmoflo'; did you mean 'cosmoflow'\?.*cosmoflow_mlperf"):
        registry.recipe_spec("cosmoflo")


def test_a_broken_plug_in_is_skipped_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    good = EntryPoint("tfrecord", "sciml_kernel.data.readers.tfrecord:READER", registry.READERS)
    bad = EntryPoint("broken", "no_such_module:READER", registry.READERS)
    monkeypatch.setattr(registry, "entry_points", lambda group: [bad, good])
    with pytest.warns(UserWarning, match=r"reader 'broken' \(no_such_module:READER\) is skipped"):
        found = registry.readers()
    assert [reader.name for reader in found] == ["tfrecord"]
