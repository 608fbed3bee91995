"""Which pools end with this kernel: those that it started or took over and that are not kept.

Jupyter says at the end of a kernel whether another one comes in its place. Then the pools stay, and the next kernel
with the same connection file takes them over, also after a crash. Otherwise they are stopped. A kernel that is killed
can't do either: `pool.owner` says what becomes of its pools. decisions/0003 has the reasons.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import Any

from sciml_kernel.errors import SciMLError
from sciml_kernel.jupyter.tracebacks import shorten
from sciml_kernel.pool import owner

__all__ = ["KernelRestart", "stop_owned", "take_over", "tie"]

STOP_LIMIT_S = 2.0  # Jupyter ends a kernel by force 2.5 s after it has asked
RESTART_WAIT_S = 0.1  # from Jupyter's interrupt to its request to end: a few milliseconds where both were seen


class KernelRestart(BaseException):
    """Ends the cell that runs while the kernel restarts. No KeyboardInterrupt: the ranks go on with what they do."""


def tie(kernel: Any) -> None:
    """Tie the pools of this process to its kernel (ipykernel's, or one derived from it). Twice is no harm.

    ipykernel offers no hook that tells a restart from an end but `do_shutdown` itself, so that one is wrapped. It runs
    in the control thread, also while a cell runs.
    """
    if not hasattr(kernel, "do_shutdown") or hasattr(kernel, "_sciml_tied"):
        return
    plain, restarts = kernel.do_shutdown, threading.Event()

    async def do_shutdown(restart: bool) -> Any:
        if restart:
            owner.forget()
            restarts.set()
        else:
            stop_owned()
        answer = plain(restart)
        return await answer if inspect.isawaitable(answer) else answer

    kernel.do_shutdown = do_shutdown
    kernel._sciml_tied = True
    _tell_restart_from_interrupt(kernel, restarts)
    connection_file = _connection_file()
    owner.be_kernel(connection_file)
    take_over(connection_file)


def _tell_restart_from_interrupt(kernel: Any, restarts: threading.Event) -> None:
    """Jupyter interrupts a kernel before it restarts it. That interrupt must not reach the ranks: a training goes on.

    So a cell that is interrupted waits a moment for the request to restart, which comes in the control thread.
    """
    if not hasattr(kernel, "pre_handler_hook"):
        return
    plain = kernel.pre_handler_hook

    def on_interrupt(number: int, frame: Any) -> None:
        if restarts.wait(RESTART_WAIT_S):
            raise KernelRestart("the kernel restarts")
        error = KeyboardInterrupt()
        shorten(kernel.shell, error)
        raise error

    def pre_handler_hook() -> None:
        plain()
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, on_interrupt)

    kernel.pre_handler_hook = pre_handler_hook


def stop_owned() -> None:
    """Stop them all at once: a slow one must not keep the others alive when Jupyter loses its patience.

    A keeper that was asked goes on by itself, so nothing is lost if this process is killed meanwhile.
    """
    threads = [threading.Thread(target=_stop, args=(pool,), daemon=True) for pool in owner.owned()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(STOP_LIMIT_S)


def take_over(connection_file: str) -> None:
    """Own what the kernel before this one left. Attaching tells the keepers that their pools are in use."""
    names = owner.left_by(connection_file) if connection_file else []
    for name in names:
        from sciml_kernel.pool import Pool

        with suppress(SciMLError):
            Pool.attach(name).adopt()


def _stop(pool: Any) -> None:
    with suppress(SciMLError, OSError):
        pool.stop()


def _connection_file() -> str:
    """Stays the same over a restart of the kernel; "" where there is none (a kernel inside another program)."""
    app = getattr(sys.modules.get("ipykernel.kernelapp"), "IPKernelApp", None)
    if app is None or not app.initialized():
        return ""
    path = str(getattr(app.instance(), "abs_connection_file", ""))
    return path if os.path.isfile(path) else ""
