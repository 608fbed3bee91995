"""What becomes of a kernel's pools: at a restart, a crash, a shutdown, and an end that nobody asked it about."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sciml_kernel.pool import Pool
from sciml_kernel.pool.files import read_json
from sciml_kernel.testing.kernels import KernelSession
from sciml_kernel.testing.notebooks import write_notebook
from sciml_kernel.testing.pool_suite import wait_for

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.notebook,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

LOAD = "%load_ext sciml_kernel"
COUNT = (
    "import pathlib, time\n"
    "print('counts', flush=True)\n"
    "for k in range(3000):\n"
    "    pathlib.Path({path!r}).write_text(str(k))\n"
    "    time.sleep(0.02)\n"
)


@pytest.fixture(autouse=True)
def _nothing_left(_alone: None) -> Iterator[None]:
    """Whatever fails, no pool of a test stays."""
    yield
    for name in Pool.list().get("name", []):
        Pool.attach(name).stop()


@pytest.fixture(params=["sciml", "python3"])
def session(request: pytest.FixtureRequest, kernel: None) -> Iterator[KernelSession]:
    """Our own kernel, and the plain one with the extension loaded."""
    session = KernelSession(request.param)
    session.do(LOAD)  # a second time in ours
    yield session
    session.close()


def _start(session: KernelSession) -> list[int]:
    """A pool `p` with a variable on its ranks; the pids of its ranks."""
    session.do("%pool start -n 2 --name p")
    session.do("%%ranks\nkept = 7")
    return list(Pool.attach("p").report()["pid"])


def _owner(pool: Pool) -> int | None:
    note = read_json(pool.path / "owner.json")
    return note and note["process"]["pid"]


def test_a_restart_keeps_the_pool_and_the_next_kernel_ends_it(session: KernelSession) -> None:
    pids = _start(session)
    session.restart()
    session.do(LOAD)
    assert session.do("%%ranks -t 0\nprint(kept)") == "[rank 0] 7\n"
    assert list(Pool.attach("p").report()["pid"]) == pids
    session.close()
    assert Pool.list().empty


def test_a_shutdown_ends_the_pool_at_once_also_while_a_cell_runs(session: KernelSession) -> None:
    _start(session)
    session.begin("import time; print('sleeps', flush=True); time.sleep(300)", "sleeps")
    session.close()
    assert Pool.list().empty


def test_a_kept_pool_outlives_the_kernel(session: KernelSession) -> None:
    session.do("%pool start -n 1 --name p --keep")
    session.do("import sciml_kernel as sk; q = sk.Pool.start(1, name='q', oversubscribe=True); q.keep()")
    session.close()
    assert [Pool.attach(name).state for name in "pq"] == ["ready", "ready"]
    assert [_owner(Pool.attach(name)) for name in "pq"] == [None, None]


def test_a_call_goes_on_over_a_restart(session: KernelSession, tmp_path: Path) -> None:
    """Jupyter interrupts a kernel before it restarts it; ranks that train must not hear of it."""
    pids, path = _start(session), tmp_path / "count"
    session.begin("%%ranks -t 0\n" + COUNT.format(path=str(path)), "counts")
    session.restart()
    before = int(path.read_text())
    pool = Pool.attach("p")
    wait_for(lambda: int(path.read_text() or 0) > before + 10)
    assert pool.state == "busy"
    assert list(pool.report()["pid"]) == pids


def test_an_interrupt_without_a_restart_still_reaches_the_ranks(session: KernelSession, tmp_path: Path) -> None:
    _start(session)
    cell = session.begin("%%ranks -t 0\n" + COUNT.format(path=str(tmp_path / "count")), "counts")
    session.manager.interrupt_kernel()
    assert session.reply(cell)["ename"] == "KeyboardInterrupt"
    assert Pool.attach("p").state == "ready"


def test_after_kill_9_in_a_call_the_next_kernel_has_pids_and_variables(session: KernelSession, tmp_path: Path) -> None:
    """The pool was started in the very cell that was killed: nothing could be noted at the end of a cell."""
    path = tmp_path / "count"
    code = (
        "import sciml_kernel as sk\n"
        "pool = sk.Pool.start(2, name='p', oversubscribe=True)\n"
        "pool.execute('kept = 7')\n"
        f"pool.execute({COUNT.format(path=str(path))!r}, targets=[0], on_output=lambda rank, kind, text: print(text))\n"
    )
    session.begin(code, "counts")
    pids = list(Pool.attach("p").report()["pid"])
    session.kill()
    count = int(path.read_text() or 0)
    wait_for(lambda: int(path.read_text() or 0) > count + 10)  # the ranks go on
    session.restart(now=True)  # what Jupyter does when it sees that a kernel has died
    session.do(LOAD)
    text = session.do(
        "import time, sciml_kernel as sk\n"
        "sk.Pool\n"
        "begin = time.perf_counter(); pool = sk.Pool.attach(); took = time.perf_counter() - begin\n"
        "print(took < 0.5, pool.name, pool.state, list(pool.report()['pid']))"
    )
    assert text == f"True p busy {pids}\n"
    session.do("pool.interrupt()")
    assert session.do("%%ranks -t 0\nprint(kept)") == "[rank 0] 7\n"
    session.close()
    assert Pool.list().empty


def test_a_kernel_that_is_put_away_unasked_takes_its_pool_along(session: KernelSession) -> None:
    """Jupyter kills a kernel that does not answer, then removes its connection file: the keeper sees that."""
    _start(session)
    session.kill()
    pool = Pool(Pool.attach("p")._directory)
    assert pool.state == "ready"  # a crash alone ends nothing
    assert session.connection_file.exists()
    # This process attached and so uses the pool; the one that used it beside it is gone.
    assert _owner(pool) == session.pid
    code = "import sys; from sciml_kernel.pool import Pool; print(Pool.attach('p').state)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "ready\n"
    session.close(now=True)
    assert not session.connection_file.exists()
    assert pool.state == "ready"  # while somebody uses it


def test_the_keeper_ends_the_pool_of_a_kernel_that_was_killed_at_shutdown(session: KernelSession) -> None:
    session.do("%pool start -n 1 --name p")
    from sciml_kernel.pool.spec import PoolDir

    place = PoolDir.named("p").path
    assert place.is_dir()
    session.close(now=True)  # SIGKILL, nobody asked the kernel
    wait_for(lambda: not place.exists(), 10)


def test_a_fork_of_the_kernel_owns_nothing(session: KernelSession) -> None:
    _start(session)
    session.do("import os\nfrom sciml_kernel.pool import Pool\nowned = len(Pool.owned())")
    session.do("child = os.fork()\nif child == 0:\n    os._exit(len(Pool.owned()))")
    assert session.do("print(owned, os.waitpid(child, 0)[1])") == "1 0\n"


@pytest.mark.parametrize("how", ["graceful", "immediate"])
def test_a_notebook_that_nbclient_runs_takes_its_pool_along(kernel: None, folder: Path, how: str) -> None:
    """papermill and nbconvert too: nbclient asks the kernel to end, or kills it."""
    import nbformat
    from nbclient import NotebookClient

    path = write_notebook(folder / "n.ipynb", "%pool start -n 1 --name p", "%%ranks\nprint('here')")
    node = nbformat.read(path, as_version=4)
    NotebookClient(node, kernel_name="sciml", shutdown_kernel=how, timeout=60).execute()
    assert "here" in str(node.cells[1].outputs)
    wait_for(lambda: Pool.list().empty, 10)


def test_ipython_at_a_terminal_ends_its_pool_when_it_ends(tmp_path: Path) -> None:
    code = (
        "%load_ext sciml_kernel\n%pool start -n 1 --name p\nprint(len(__import__('sciml_kernel').Pool.list()), 'there')"
    )
    script = tmp_path / "s.ipy"
    script.write_text(code)
    command = [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, env={**os.environ, "TERM": "dumb"})
    assert "1 there" in done.stdout, done.stdout + done.stderr
    assert Pool.list().empty
