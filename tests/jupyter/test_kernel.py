"""The real `sciml` kernel: magics, live displays, what happens to pools at its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

pytestmark = [pytest.mark.notebook, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


class Session:
    """A running kernel; `run` returns (status, text of all output, displayed bundles, updates)."""

    def __init__(self) -> None:
        self.manager = KernelManager(kernel_name="sciml")
        self.manager.start_kernel(extra_arguments=["--log-level=ERROR"])
        self.connect()

    def connect(self) -> None:
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def run(self, code: str) -> tuple[str, str, list[dict[str, Any]], list[dict[str, Any]]]:
        texts: list[str] = []
        shown: list[dict[str, Any]] = []
        updates: list[dict[str, Any]] = []

        def hook(message: dict[str, Any]) -> None:
            content = message["content"]
            kind = message["msg_type"]
            if kind == "stream":
                texts.append(content["text"])
            elif kind == "error":
                texts.append(f"{content['ename']}: {content['evalue']}")
            elif kind == "execute_result":
                texts.append(content["data"]["text/plain"])
            elif kind == "display_data":
                shown.append(content)
            elif kind == "update_display_data":
                updates.append(content)

        reply = self.client.execute_interactive(code, output_hook=hook, timeout=90)
        return reply["content"]["status"], "".join(texts), shown, updates

    def close(self) -> None:
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel()
        self.manager.cleanup_resources()
        self.manager.context.destroy()


@pytest.fixture
def session(kernel: None) -> Iterator[Session]:
    session = Session()
    yield session
    session.close()


def test_the_extension_is_loaded_and_the_kernel_stays_light(session: Session) -> None:
    status, text, _, _ = session.run("%runs")
    assert status == "ok", text
    assert "Empty DataFrame" in text
    _, text, _, _ = session.run(
        "import sys; print(sorted({'tensorflow', 'mpi4py', 'distributed', 'ipyparallel'} & set(sys.modules)))"
    )
    assert text == "[]\n"


def test_other_magics_keep_their_names(session: Session) -> None:
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
def test_a_wrong_option_fails_the_cell_and_says_what_to_write(session: Session, code: str, words: str) -> None:
    status, text, _, _ = session.run(code)
    assert status == "error"
    assert text.startswith("UsageError: ")
    assert words in text


def test_without_a_pool_ranks_says_how_to_start_one(session: Session) -> None:
    status, text, _, _ = session.run("%%ranks\n1")
    assert status == "error"
    assert "NotFoundError" in text
    assert "start" in text


def test_help_is_shown_and_is_no_error(session: Session) -> None:
    status, text, _, _ = session.run("%pool -h")
    assert status == "ok"
    assert "start a pool" in text


def test_a_live_figure_is_shown_once_and_then_updated_from_a_thread(session: Session) -> None:
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
def test_ranks_print_with_their_number_and_a_failing_rank_fails_the_cell(session: Session) -> None:
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


@pytest.mark.mpi
def test_a_pool_lives_through_a_restart_and_ends_with_the_kernel(session: Session) -> None:
    from sciml_kernel.pool import Pool

    status, text, _, _ = session.run("%pool start -n 1 --name p")
    assert status == "ok", text
    session.run("%%ranks\nkept = 7")
    (pid,) = Pool.attach("p").report()["pid"]
    session.client.stop_channels()
    session.manager.restart_kernel()
    session.connect()
    # The new kernel finds the same rank with its variables, ...
    status, text, _, _ = session.run("%%ranks\nprint(kept)")
    assert (status, text) == ("ok", "[rank 0] 7\n")
    assert list(Pool.attach("p").report()["pid"]) == [pid]
    # ... and ends it, since it has taken it over.
    session.close()
    assert Pool.list().empty


@pytest.mark.mpi
def test_a_kept_pool_outlives_the_kernel(session: Session) -> None:
    from sciml_kernel.pool import Pool

    status, text, _, _ = session.run("%pool start -n 1 --name p --keep")
    assert status == "ok", text
    session.close()
    pool = Pool.attach("p")
    try:
        assert pool.state == "ready"
    finally:
        pool.stop()


@pytest.mark.mpi
def test_a_shutdown_while_a_cell_runs_stops_the_pool_too(session: Session, tmp_path: Path) -> None:
    from sciml_kernel.pool import Pool

    session.run("%pool start -n 1")
    session.client.execute("import time; print('sleeping', flush=True); time.sleep(300)")
    while session.client.get_iopub_msg(timeout=30)["content"].get("text") != "sleeping\n":
        pass
    session.close()
    assert Pool.list().empty
