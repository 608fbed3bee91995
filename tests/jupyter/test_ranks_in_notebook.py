"""A notebook that was run on ranks, as it is saved: what each cell keeps of a flood, a bar, figures and errors."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from sciml_kernel.batch import run_notebook
from sciml_kernel.pool import Pool
from sciml_kernel.testing.notebooks import write_notebook

pytestmark = [pytest.mark.notebook, pytest.mark.mpi, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

N_LINES = 50_000
FLOOD = f"%%ranks\nfor k in range({N_LINES}):\n    print('line', k)"
BAR = (
    "%%ranks\nimport sys\nfrom tqdm import tqdm\n"
    "for _ in tqdm(range(10_000), file=sys.stdout, mininterval=0, ncols=100, ascii=True): pass"
)
FIGURE = (
    "%%ranks\nimport matplotlib.pyplot as plt, pandas as pd\n"
    "_ = plt.subplots(figsize=(2, 2))[1].plot([mpi_rank, 1])\nplt.show()\npd.DataFrame({'rank': [mpi_rank]})"
)
UPDATED = "%%ranks -t 1\nhandle = display('first', display_id=True)\nhandle.update('second')"
CLEARED = (
    "%%ranks -t 1\nfrom IPython.display import clear_output, HTML\nfor k in range(5):\n"
    "    clear_output(wait=True)\n    display(HTML(f'<b>step {k}</b>'))"
)


def run(path: Path) -> list[Any]:
    """Run it whole, as Jupyter does, and return its cells as they were saved."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=120, kernel_name="sciml", allow_errors=True).execute()
    nbformat.write(notebook, path)
    return list(nbformat.read(path, as_version=4).cells)


def printed(cell: Any) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


def size(cell: Any) -> int:
    return len(json.dumps(cell.outputs).encode())


def counted(lines: list[str]) -> dict[int, int]:
    """Lines of each rank: those that are there, and those that are said to be left out."""
    found = {0: 0, 1: 0}
    for line in lines:
        label, _, rest = line.partition("] ")
        left_out = re.match(r"\.\.\. ([\d,]+) lines? left out", rest)
        for rank in (0, 1) if label == "[ranks 0-1" else (int(label.removeprefix("[rank ")),):
            found[rank] += int(left_out[1].replace(",", "")) if left_out else 1
    return found


def test_a_flood_a_bar_and_figures_stay_small_and_labelled(kernel: None, folder: Path) -> None:
    with Pool.start(2, oversubscribe=True) as pool:
        cells = run(write_notebook(folder / "n.ipynb", FLOOD, BAR, FIGURE, UPDATED, CLEARED))
        flood, bar, figure, updated, cleared = cells
        assert size(flood) < 100_000
        lines = printed(flood).splitlines()
        assert counted(lines) == {0: N_LINES, 1: N_LINES}
        assert lines[0].endswith("] line 0")
        assert {"[rank 0] line 49999", "[rank 1] line 49999"} <= set(lines)
        for rank in (0, 1):  # what was left out is in the log, in order
            in_log = [line for line in pool.logs(rank).splitlines() if line.startswith("line ")]
            assert in_log == [f"line {k}" for k in range(N_LINES)]

    assert size(bar) < 2_000
    assert counted(printed(bar).splitlines()) == {0: 1, 1: 1}
    for line in printed(bar).splitlines():
        assert "100%|###" in line
        assert "10000/10000" in line

    # Each figure and each table right below the name of its rank; the table is the same thing twice, never mixed up.
    under = dict[str, list[str]]()
    label = ""
    for output in figure.outputs:
        if output.output_type == "stream":
            label = output.text.splitlines()[-1].partition("]")[0] + "]"
        else:
            under.setdefault(label, []).append("image/png" if "image/png" in output.data else "text/html")
    assert under == {"[rank 0]": ["image/png", "text/html"], "[rank 1]": ["image/png", "text/html"]}
    assert "<th>" in str(figure.outputs)

    shown = [output.data for output in updated.outputs if output.output_type == "display_data"]
    assert [data["text/plain"] for data in shown] == ["'second'"]
    shown = [output.data for output in cleared.outputs if output.output_type == "display_data"]
    assert [data["text/html"] for data in shown] == ["<b>step 4</b>"]
    assert printed(cleared).count("[rank 1]") == 1


ERRORS = (
    "%%ranks\ndef half(x):\n    return 1 / x\nhalf(mpi_rank)",
    "import sciml_kernel as sk\ndef work():\n    return [][2]\nsk.Pool.attach().run(work)",
    "%%ranks -t 5\n1",
    "%%ranks -t 0 --set-up\n1",
    "import os, threading\nthreading.Timer(0.5, os.kill, (os.getpid(), 2)).start()\n"
    "sk.Pool.attach().execute('import time; time.sleep(60)')",
    "%%ranks --timeout 0.5\nimport time\ntime.sleep(60)",
    "import json\njson.loads('no json')",
)


def traceback(cell: Any) -> list[str]:
    (error,) = [output for output in cell.outputs if output.output_type == "error"]
    return re.sub(r"\x1b\[[\d;]*m", "", "\n".join(error.traceback)).splitlines()


def test_an_error_shows_the_code_of_the_person_and_of_the_rank_only(kernel: None, folder: Path) -> None:
    host = os.uname().nodename
    with Pool.start(2, name="p", oversubscribe=True):
        cells = run(write_notebook(folder / "n.ipynb", *ERRORS))
    shown = [traceback(cell) for cell in cells]
    for lines in shown[:6]:
        assert not any("sciml_kernel/" in line or "site-packages" in line for line in lines), lines
        assert len(lines) < 25
    assert shown[0] == [
        "Traceback on rank 0 (most recent call last):",
        "  Cell, line 3, in <module>",
        "    half(mpi_rank)",
        "  Cell, line 2, in half",
        "    return 1 / x",
        "           ~~^~~",
        "ZeroDivisionError: division by zero",
        "",
        f"RemoteError: [rank 0 @ {host}] ZeroDivisionError: division by zero",
    ]
    assert shown[1][:4] == [
        f"Traceback on rank {shown[1][0][18]} (most recent call last):",
        "  Cell In[2], line 3, in work",
        "    return [][2]",
        "IndexError: list index out of range",
    ]
    assert any(line.startswith("----> 4 sk.Pool.attach().run(work)") for line in shown[1])
    assert shown[2] == ["UsageError: targets [5] can't be used; write ranks from 0 to 1"]
    assert shown[3] == ["UsageError: %%ranks: a set-up cell runs on all ranks, new ones too; leave out -t or --set-up"]
    assert shown[4][-2:] == ["KeyboardInterrupt: ", "rank 0, 1 stopped; pool 'p' is ready"]
    assert shown[5] == ["RunTimeoutError: cell was ended after 0.5 s; no rank had answered"]
    assert any("json/decoder.py" in line for line in shown[6])  # not ours: whole


def test_a_set_up_cell_runs_on_new_ranks_too(kernel: None, folder: Path) -> None:
    path = write_notebook(
        folder / "n.ipynb",
        "%%ranks --set-up\nbase = 40\nprint('once')",
        "%%ranks --set-up=more\nmore = 1",
        "%%ranks --set-up=more\nmore = 2",
        "%pool restart",
        "%%ranks -t 0\nprint(base + more)",
        "import sciml_kernel as sk\nprint(len(sk.Pool.attach().set_ups))",
    )
    with Pool.start(2, oversubscribe=True):
        cells = run(path)
    assert "once" in printed(cells[0])
    assert [printed(cell) for cell in cells[1:3]] == ["", ""]
    assert printed(cells[4]) == "[rank 0] 42\n"
    assert printed(cells[5]) == "2\n"


def test_a_batch_run_of_a_flood_and_a_failing_rank_is_small_and_says_the_same(kernel: None, folder: Path) -> None:
    notebook = write_notebook(
        folder / "n.ipynb",
        "import sciml_kernel as sk\npool = sk.Pool.start(2, oversubscribe=True)",
        FLOOD,
        BAR,
        "%%ranks\nif mpi_rank == 1:\n    raise OSError('disk')",
    )
    record = run_notebook(notebook)
    content = record.read()
    assert (content["status"], content["error"]["type"], content["error"]["rank"]) == ("failed", "OSError", 1)
    saved = record.path / "notebook.ipynb"
    assert saved.stat().st_size < 200_000
    cells = [cell for cell in nbformat.read(saved, as_version=4).cells if cell.cell_type == "code"]
    _, flood, bar, failed = (cell for cell in cells if cell.source and not cell.source.startswith("# Parameters"))
    assert size(flood) < 100_000
    assert counted(printed(flood).splitlines()) == {0: N_LINES, 1: N_LINES}
    assert size(bar) < 2_000
    assert traceback(failed)[-1].endswith("OSError: disk")
    assert traceback(failed)[0] == "Traceback on rank 1 (most recent call last):"
