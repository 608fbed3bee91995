"""The `sciml` kernel: `python -m sciml_kernel.jupyter.kernel -f CONNECTION_FILE`.

An IPython kernel with the extension loaded. A shutdown stops the pools that it started and that are not kept; a restart
leaves them for the kernel that comes after it. In a batch run all that cells print also goes straight to
`logs/notebook.log` of the record, so that the last line before a crash is not lost with the kernel.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp

from sciml_kernel import __version__
from sciml_kernel.jupyter import ownership

__all__ = ["SciMLKernel", "main"]

LOG_VARIABLE = "SCIML_BATCH_LOG"  # set by a batch run: file that takes what cells print
MOST_LOG_BYTES = 64_000_000


class SciMLKernel(IPythonKernel):
    """IPython's kernel under our name. Never imports TensorFlow: that would claim the GPU of the ranks."""

    implementation = "sciml_kernel"
    implementation_version = __version__
    banner = f"sciml_kernel {__version__}: %pool, %%ranks, %runs; `import sciml_kernel as sk`"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)  # type: ignore[no-untyped-call]
        ownership.take_over(_connection_file())
        log = os.environ.get(LOG_VARIABLE)
        if log:
            for stream in (sys.stdout, sys.stderr):  # ipykernel's OutStream here
                stream.echo = _Log(Path(log))  # type: ignore[union-attr]

    def do_shutdown(self, restart: bool) -> Any:
        """Called by Jupyter, in the control thread: also while a cell runs."""
        if restart:
            ownership.hand_over(_connection_file())
        else:
            ownership.stop_owned()
        return super().do_shutdown(restart)  # type: ignore[no-untyped-call]


class _Log:
    """Appends what is written at once, unbuffered, up to MOST_LOG_BYTES."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._left = MOST_LOG_BYTES

    def write(self, text: str) -> int:
        if self._left > 0:
            self._left -= os.write(self._fd, text.encode("utf-8", "replace"))
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""


def _connection_file() -> str:
    """Stays the same over a restart of the kernel."""
    return str(IPKernelApp.instance().abs_connection_file) if IPKernelApp.initialized() else ""


def main() -> None:
    IPKernelApp.launch_instance(kernel_class=SciMLKernel, extra_extensions=["sciml_kernel"])


if __name__ == "__main__":
    main()
