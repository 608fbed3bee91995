"""The `sciml` kernel: `python -m sciml_kernel.jupyter.kernel -f CONNECTION_FILE`.

An IPython kernel with the extension loaded, which brings the magics and ties the pools to the kernel (`ownership`).
In a batch run all that cells print also goes straight to `logs/notebook.log` of the record, so that the last line
before a crash is not lost with the kernel.
"""

from __future__ import annotations

import os
import platform
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from IPython.core import release
from traitlets import List

from sciml_kernel import __version__
from sciml_kernel.pool import owner
from sciml_kernel.pool.processes import die_with_parent

__all__ = ["SciMLKernel", "main"]

LOG_VARIABLE = "SCIML_BATCH_LOG"  # set by a batch run: file that takes what cells print
MOST_LOG_BYTES = 64_000_000

BANNER = f"""sciml_kernel {__version__}, IPython {release.version}, Python {platform.python_version()}
    %pool start -n 4    ranks of MPI; %pool? lists what else it does
    %%ranks             a cell that runs on every rank; %%ranks? lists its options
    %runs               every training, newest first
    import sciml_kernel as sk    sk? is the table of contents"""


class SciMLKernel(IPythonKernel):
    """IPython's kernel under our name. Never imports TensorFlow: that would claim the GPU of the ranks."""

    implementation = "sciml_kernel"
    implementation_version = __version__
    banner = BANNER
    # IPython's links lead to hosts that a compute node can't reach. Help is in the kernel itself: %pool?, sk?
    help_links: Any = List()

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)  # type: ignore[no-untyped-call]
        log = os.environ.get(LOG_VARIABLE)
        if log:
            for stream in (sys.stdout, sys.stderr):  # ipykernel's OutStream here
                stream.echo = _Log(Path(log))  # type: ignore[union-attr]


class _Log:
    """Appends what is written at once, unbuffered, up to MOST_LOG_BYTES."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        self._left = MOST_LOG_BYTES

    def write(self, text: str) -> int:
        if self._left > 0:
            with suppress(OSError):  # a full disk: the run ends for it, but not in the middle of a `print`
                self._left -= os.write(self._fd, text.encode("utf-8", "replace"))
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""


def end_with_batch_run() -> None:
    """Be killed when the batch run that started this kernel is: nothing could take its results any more.

    ipykernel notices the end of its parent as well, but by a thread, and a call that holds the interpreter stops that.
    """
    run = owner.batch_owner()
    if run is not None and run.here and run.pid == os.getppid():
        die_with_parent()
        if os.getppid() != run.pid:  # it ended meanwhile
            sys.exit("the batch run has ended")


def main() -> None:
    end_with_batch_run()
    IPKernelApp.launch_instance(kernel_class=SciMLKernel, extra_extensions=["sciml_kernel"])


if __name__ == "__main__":
    main()
