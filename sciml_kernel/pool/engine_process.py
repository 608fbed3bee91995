"""What the wrapper's forked child becomes: ipyparallel's engine, with its nanny forked from it.

By itself the engine starts a second interpreter beside it, the nanny, which hands on signals and tells the controller
at once when the engine has ended, and waits until that has imported the same libraries again. With more ranks than
cores these imports were half of a start. So the nanny is forked here when they are loaded, and before MPI is touched: a
process that has called MPI_Init must not fork.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import socket
import struct
import sys
from typing import Any, NoReturn

import ipyparallel.engine.app as engine_app
from ipyparallel.engine.nanny import KernelNanny

__all__ = ["main"]

_PR_SET_NAME = 15
_LENGTH = struct.Struct("!Q")


def main(arguments: list[str], rank: int) -> NoReturn:
    """Be the engine of this rank; ends the process. arguments: those of `python -m ipyparallel.engine`."""
    line = _fork_nanny(rank)
    _name_process(f"sciml-rank-{rank}")

    def tell_nanny(**facts: Any) -> tuple[str, socket.socket]:
        told = pickle.dumps({**facts, "pid": os.getpid()})
        line.sendall(_LENGTH.pack(len(told)) + told)
        with line.makefile("r") as stream:
            address = stream.readline().strip()
        if not address:
            raise RuntimeError("the nanny of this rank ended at its start; the lines above say why")
        return address, line  # the engine keeps it open

    engine_app.start_nanny = tell_nanny
    sys.argv = ["ipengine", *arguments]
    engine_app.main()
    sys.exit(0)


def _fork_nanny(rank: int) -> socket.socket:
    """Fork a nanny that waits to be told what to watch; return the engine's end of the line to it.

    It ends when the engine, or the engine's end of the line, is gone. What it prints goes where the engine's does.
    """
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        try:
            ours.close()
            _be_nanny(rank, theirs)
        finally:
            os._exit(1)
    theirs.close()
    return ours


def _be_nanny(rank: int, line: socket.socket) -> None:
    os.setsid()  # an interrupt of the group is not meant for it
    _name_process(f"sciml-nanny-{rank}")
    # mpiexec's own descriptors are among the others: an open one would make it wait for this process.
    os.closerange(3, line.fileno())
    os.closerange(line.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    head = _read(line, _LENGTH.size)
    told = _read(line, _LENGTH.unpack(head)[0]) if head else b""
    if told:  # else the engine ended before it had registered
        KernelNanny.main(**pickle.loads(told), pipe=os.fdopen(line.detach(), "w", buffering=1))
    sys.stderr.flush()
    os._exit(0)


def _read(line: socket.socket, size: int) -> bytes:
    """That many bytes; none when the other end closed."""
    data = b""
    while len(data) < size:
        more = line.recv(size - len(data))
        if not more:
            return b""
        data += more
    return data


def _name_process(name: str) -> None:
    """What `ps -o comm` and `top` show (15 bytes): the command line of a forked process is its parent's."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)
