"""`sciml batch` against bare papermill on the same notebooks, in one run: `python tests/bench/bench_batch.py [TRIES]`.

Ours does more: it types the parameters, keeps a record with hashes, versions and git state, tells how each cell ended,
writes PNGs, a page and the index. What that costs is the difference; it is to be at most 3 s + 2 % of the run. The two
take turns, so that a busy machine slows both.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sciml_kernel.testing.notebooks import kernel_path, write_notebook

ALLOWED_S, ALLOWED_SHARE = 3.0, 0.02

PLOT = "import matplotlib.pyplot as plt\nplt.plot(range(100)); plt.show()"
CASES = {
    "ten small cells": [f"print({i})" for i in range(10)],
    "twenty figures": [PLOT] * 20,
    "20,000 lines": ["for i in range(20_000): print('line', i)"],
    "a cell of 20 s": ["import time; time.sleep(20)"],
}


def notebooks(folder: Path) -> dict[str, Path]:
    found = {}
    for number, (name, cells) in enumerate(CASES.items()):
        found[name] = write_notebook(folder / f"case-{number}.ipynb", *cells, parameters="x = 1")
    return found


def seconds(command: list[str], folder: Path) -> float:
    begin = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begin


def measure(tries: int, cases: list[str]) -> dict[str, dict[str, list[float]]]:
    """Case -> {"papermill": times, "sciml batch": times}; the first of each only fills caches and does not count."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["JUPYTER_PATH"] = kernel_path(folder / "prefix")
        os.environ["SCIML_RUNS"] = str(folder / "runs")
        made = notebooks(folder)
        programs = {
            "papermill": lambda path: [sys.executable, "-m", "papermill", "-k", "python3", str(path), "out.ipynb"],
            "sciml batch": lambda path: [
                sys.executable, "-c", "from sciml_kernel.cli import main; main()", "batch", str(path), "--quiet"
            ],
        }  # fmt: skip
        found: dict[str, dict[str, list[float]]] = {}
        for case in cases:
            found[case] = {program: [] for program in programs}
            for number in range(tries + 1):
                order = list(programs) if number % 2 else list(programs)[::-1]
                for program in order:
                    took = seconds(programs[program](made[case]), folder)
                    if number:
                        found[case][program].append(took)
    return found


def report(found: dict[str, dict[str, list[float]]]) -> str:
    """Medians, the difference, what is allowed, and the ratio; one line a case."""
    lines = []
    for case, times in found.items():
        plain, ours = (statistics.median(times[program]) for program in ("papermill", "sciml batch"))
        allowed = ALLOWED_S + ALLOWED_SHARE * plain
        verdict = "within" if ours - plain <= allowed else "OVER"
        lines.append(
            f"{case}: papermill {plain:.2f} s, sciml batch {ours:.2f} s, more {ours - plain:+.2f} s ({verdict} "
            f"{allowed:.2f} s), ratio {ours / plain:.2f}; {len(times['papermill'])} tries each"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(report(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 5, sys.argv[2:] or list(CASES))))
