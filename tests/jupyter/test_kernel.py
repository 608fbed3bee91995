"""The real `sciml` kernel: start, help, magics, live displays. What becomes of its pools: test_kernel_pools.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sciml_kernel.pool.spec import pools_root
from sciml_kernel.testing.kernels import KernelSession

pytestmark = [pytest.mark.notebook, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture
def session(kernel: None) -> Iterator[KernelSession]:
    session = KernelSession()
    yield session
    session.close()


HEAVY = (
    "tensorflow",
    "keras",
    "horovod",
    "mpi4py",
    "ipyparallel",
    "distributed",
    "dask",
    "pandas",
    "xarray",
    "matplotlib",
)


def test_the_extension_is_loaded_and_nothing_heavy(session: KernelSession) -> None:
    assert session.do(f"import sys; print(sorted(set({HEAVY}) & set(sys.modules)))") == "[]\n"
    status, text, _, _ = session.run("%runs")
    assert status == "ok", text
    assert "Empty DataFrame" in text


def test_its_help_needs_no_network(session: KernelSession) -> None:
    info = session.reply(session.client.kernel_info())
    assert info["implementation"] == "sciml_kernel"
    assert info["help_links"] == []
    assert "%pool start" in info["banner"]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("%pool st", {"start", "status", "stop"}),
        ("%pool start --o", {"--oversubscribe"}),
        ("%%ranks --t", {"--targets", "--timeout"}),
        ("%pool attach kep", {"kept-pool"}),
    ],
)
def test_tab_completes_commands_options_and_pools(session: KernelSession, line: str, wanted: set[str]) -> None:
    (pools_root() / "kept-pool").mkdir(parents=True)
    assert wanted <= set(session.reply(session.client.complete(line, len(line)))["matches"])


def test_a_question_mark_shows_all_options_of_a_magic(session: KernelSession) -> None:
    text = session.reply(session.client.inspect("%pool", 5))["data"]["text/plain"]
    assert "%pool start [-h] [-n N]" in text
    assert "--keep" in text


def test_other_magics_keep_their_names(session: KernelSession) -> None:
    _, text, _, _ = session.run(
        "names = [name for kind in get_ipython().magics_manager.magics.values() for name, magic in kind.items()"
        " if 'sciml_kernel' in getattr(magic, '__module__', '')]\nprint(sorted(names))"
    )
    assert text == "['pool', 'ranks', 'runs']\n"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("%pool strat", "did you mean 'start'"),
        ("%pool start --nranks 2", "--nranks"),
        ("%pool start -n two", "invalid int value: 'two'"),
        ("%pool start -n 0", "at least 1 rank"),
        ("%%ranks -t x\n1", "write for example 0,2"),
        ("%%ranks --tiemout 2\n1", "--tiemout"),
        ("%pool logs 'open", "No closing quotation"),
    ],
)
def test_a_wrong_option_fails_the_cell_and_says_what_to_write(session: KernelSession, code: str, words: str) -> None:
    status, text, _, _ = session.run(code)
    assert status == "error"
    assert text.startswith("UsageError: ")
    assert words in text


def test_without_a_pool_ranks_says_how_to_start_one(session: KernelSession) -> None:
    status, text, _, _ = session.run("%%ranks\n1")
    assert status == "error"
    assert "NotFoundError" in text
    assert "start" in text


def test_help_is_shown_and_is_no_error(session: KernelSession) -> None:
    status, text, _, _ = session.run("%pool -h")
    assert status == "ok"
    assert "start a pool" in text


def test_a_live_figure_is_shown_once_and_then_updated_from_a_thread(session: KernelSession) -> None:
    status, text, shown, updates = session.run(
        "import threading\n"
        "from sciml_kernel.views import shown\n"
        "display = shown._factory()\n"
        "display.show({'text/plain': 'first'})\n"
        "thread = threading.Thread(target=display.update, args=({'text/plain': 'second'},))\n"
        "thread.start(); thread.join()"
    )
    assert status == "ok", text
    assert [content["data"] for content in shown] == [{"text/plain": "first"}]
    assert [content["data"] for content in updates] == [{"text/plain": "second"}]
    assert shown[0]["transient"]["display_id"] == updates[0]["transient"]["display_id"]


@pytest.mark.mpi
def test_ranks_print_with_their_number_and_a_failing_rank_fails_the_cell(session: KernelSession) -> None:
    status, text, _, _ = session.run("%pool start -n 2")
    assert status == "ok", text
    code = "from mpi4py import MPI\nrank = MPI.COMM_WORLD.rank\nprint('I am', rank)"
    status, text, _, _ = session.run(f"%%ranks\n{code}")
    assert status == "ok", text
    assert sorted(text.splitlines()) == ["[rank 0] I am 0", "[rank 1] I am 1"]
    assert session.run("%%ranks -t 1\nrank * 10")[1].splitlines() == ["[rank 1] 10"]
    assert session.run("%%ranks --quiet\nprint('x')")[1] == ""
    status, text, _, _ = session.run("%%ranks\nif rank == 1:\n    raise OSError('disk')")
    assert status == "error"
    assert "RemoteError: [rank 1" in text
    assert "OSError: disk" in text
    status, text, _, _ = session.run("%%ranks --timeout 1\nimport time\ntime.sleep(60)")
    assert status == "error"
    assert "RunTimeoutError" in text
    status, text, _, _ = session.run("%pool stop")
    assert "is stopped" in text
