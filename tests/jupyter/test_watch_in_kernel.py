"""`%pool watch` in a real kernel: the card changes in place, and a saved notebook keeps it."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from sciml_kernel.pool import Pool
from sciml_kernel.testing.kernels import KernelSession
from sciml_kernel.testing.notebooks import write_notebook

pytestmark = [pytest.mark.notebook, pytest.mark.mpi, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool.start(2, name="watched", oversubscribe=True) as pool:
        yield pool


@pytest.fixture
def session(kernel: None) -> Iterator[KernelSession]:
    session = KernelSession()
    yield session
    session.close()


def next_update(session: KernelSession, words: str) -> dict[str, Any]:
    """The next replacement of an output that has these words in its HTML."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        message = session.client.get_iopub_msg(timeout=30)
        content: dict[str, Any] = message["content"]
        if message["msg_type"] == "update_display_data" and words in content["data"]["text/html"]:
            return content
    raise AssertionError(f"no update says {words!r}")


def test_a_card_changes_in_place_when_a_rank_is_killed(session: KernelSession, pool: Pool) -> None:
    status, text, shown, _ = session.run("%pool watch")
    assert status == "ok", text
    (first,) = shown  # once, although the card is also the value of the cell
    assert "ready</span>" in first["data"]["text/html"]
    assert "pool 'watched': ready" in first["data"]["text/plain"]
    pid = int(pool.report().loc[1, "pid"])
    os.kill(pid, signal.SIGKILL)
    update = next_update(session, "dead</span>")
    assert update["transient"]["display_id"] == first["transient"]["display_id"]
    assert f"rank 1 @ {os.uname().nodename} (pid {pid}) was ended by SIGKILL" in update["data"]["text/html"]
    pool.restart()
    assert next_update(session, "ready</span>")["transient"] == first["transient"]
    status, _, shown, _ = session.run("%pool status")
    assert status == "ok"
    pool.stop()
    last = next_update(session, "stopped</span>")
    assert "no longer updated: the pool was stopped" in last["data"]["text/html"]
    assert last["transient"] == first["transient"]


def test_a_kernel_that_ends_says_so_on_the_card(session: KernelSession, pool: Pool) -> None:
    session.run("%pool watch")
    session.client.shutdown()
    assert "no longer updated: the kernel ended" in next_update(session, "no longer updated")["data"]["text/plain"]


def test_a_saved_notebook_keeps_the_card_as_static_html(kernel: None, pool: Pool, folder: Path) -> None:
    path = write_notebook(
        folder / "n.ipynb",
        "%pool status",
        "%pool watch",
        "import time, sciml_kernel as sk\nfrom sciml_kernel.views import pool_panel\n"
        "call = sk.Pool.attach().submit('time:sleep', 60)\n(view,) = pool_panel._live\n"
        "while 'busy' not in repr(view) or view.n_shown < 2:\n    time.sleep(0.01)",
        "%pool list",
    )
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=60, kernel_name="sciml").execute()
    nbformat.write(notebook, path)
    status, watched, _, listed = nbformat.read(path, as_version=4).cells
    assert "ready</span>" in status.outputs[0].data["text/html"]
    (card,) = watched.outputs
    assert "busy</span>" in card.data["text/html"]  # replaced while a later cell ran
    assert "time:sleep" in card.data["text/plain"]
    assert re.search(r"measured at \d\d:\d\d:\d\d UTC, \d{4}-\d\d-\d\d", card.data["text/html"])
    assert "<script" not in card.data["text/html"]
    assert "busy</span>" in listed.outputs[0].data["text/html"]
    assert "widget" not in str([output.get("data", {}).keys() for cell in notebook.cells for output in cell.outputs])
