"""Start of the `sciml` kernel against the plain ipykernel, in one run: `python tests/bench/bench_kernel.py [TRIES]`.

Two times from the spawn of the process: to the answer to the first kernel_info request (a notebook shows the kernel as
connected), and to the reply to the first cell. The two kernels take turns, so that a busy machine slows both.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from jupyter_client.manager import KernelManager

from sciml_kernel.testing.notebooks import kernel_path

BASELINE, OURS = "python3", "sciml"
LIMIT = 1.3  # ours must not take more than that many times the baseline


def start_s(name: str) -> tuple[float, float]:
    """Seconds from spawn to the first kernel_info reply, and to the reply to the first cell."""
    manager = KernelManager(kernel_name=name)
    begin = time.perf_counter()
    manager.start_kernel(extra_arguments=["--log-level=ERROR"])
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        connected = time.perf_counter() - begin
        client.execute_interactive("1", timeout=60, output_hook=lambda message: None)
        return connected, time.perf_counter() - begin
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
        manager.context.destroy()


def measure(tries: int) -> dict[str, list[tuple[float, float]]]:
    """`tries` starts of each kernel, in turns; the first of each only fills caches and does not count."""
    found: dict[str, list[tuple[float, float]]] = {BASELINE: [], OURS: []}
    for number in range(tries + 1):
        for name in (BASELINE, OURS) if number % 2 else (OURS, BASELINE):
            times = start_s(name)
            if number:
                found[name].append(times)
    return found


def report(found: dict[str, list[tuple[float, float]]]) -> str:
    """Medians, spread and ratio; one line a time."""
    lines = []
    for column, what in enumerate(("to kernel_info reply", "to first cell")):
        plain, ours = (sorted(times[column] for times in found[name]) for name in (BASELINE, OURS))
        ratio = statistics.median(ours) / statistics.median(plain)
        texts = [f"{statistics.median(times):.3f} s ({times[0]:.3f}-{times[-1]:.3f})" for times in (plain, ours)]
        lines.append(
            f"kernel start {what}: {BASELINE} {texts[0]}, {OURS} {texts[1]}, ratio {ratio:.2f} (at most {LIMIT})"
        )
    return "\n".join(lines)


@contextlib.contextmanager
def own_folders() -> Iterator[None]:
    """The `sciml` kernelspec of this Python, and folders of IPython and Jupyter that nobody else uses."""
    with tempfile.TemporaryDirectory() as folder:
        before = dict(os.environ)
        for name in ("IPYTHONDIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "XDG_STATE_HOME"):
            os.environ[name] = str(Path(folder) / name)
        os.environ["JUPYTER_PATH"] = kernel_path(Path(folder) / "prefix")
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def main(arguments: list[str]) -> int:
    tries = int(arguments[0]) if arguments else 9
    with own_folders():
        print(report(measure(tries)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
