"""Runs one call on a rank. JSON comes in and JSON goes out; a function is named by a string.

`rank_info()` tells code on a rank (or in a `FakePool`) who it is, without asking MPI.
"""

from __future__ import annotations

import json
import os
import re
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sciml_kernel.errors import SciMLError
from sciml_kernel.pool.files import now_utc, write_json
from sciml_kernel.registry import load_target

__all__ = ["RankInfo", "call", "call_object", "execute", "rank_info", "run_guarded", "set_up"]


_HOROVOD_IS_OVER = "Horovod has been shut down"  # its own words, in a cell too: no call in this process works any more
_OUR_FRAMES = (
    __file__,
    "/IPython/core/interactiveshell.py",
    "/IPython/core/compilerop.py",
    "/sciml_kernel/pool/fake.py",
)


@dataclass(frozen=True, slots=True)
class RankInfo:
    """rank of size on host. place: directory of the engine set; None in a FakePool."""

    rank: int
    size: int
    host: str
    place: Path | None = None


class _Here(threading.local):
    info: RankInfo | None = None


_process: RankInfo | None = None
_thread = _Here()  # a FakePool's ranks are threads


def set_up(*, rank: int, size: int, host: str, place: Path | None = None, this_thread_only: bool = False) -> None:
    """Say who this process (or thread) is. Called once, by `probe` or `fake`."""
    global _process
    info = RankInfo(rank, size, host, place)
    if this_thread_only:
        _thread.info = info
    else:
        _process = info


def rank_info() -> RankInfo:
    """Who this code runs as. Raises RuntimeError outside a pool."""
    info = _thread.info or _process
    if info is None:
        raise RuntimeError("this process is no rank of a pool; run the function with pool.run")
    return info


def call(name: str, arguments: str) -> str:
    """Run "module:function" with the JSON `{"args": [...], "kwargs": {...}}`; see `run_guarded` for the answer."""

    def work() -> Any:
        given = json.loads(arguments)
        return load_target(name)(*given["args"], **given["kwargs"])

    return run_guarded(work, name)


def call_object(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Run a function object that a notebook sent: `{"ok": True, "value": object}`, else as `run_guarded`."""
    name = getattr(function, "__qualname__", repr(function))
    box: list[Any] = []
    answer: dict[str, Any] = json.loads(run_guarded(lambda: box.append(function(*args, **kwargs)), name))
    return {"ok": True, "value": box[0]} if answer["ok"] else answer


def execute(code: str) -> str:
    """Run a notebook cell in the engine's own namespace, where its names stay."""
    from ipyparallel.engine.app import IPEngine

    shell = IPEngine.instance().kernel.shell
    shell.history_manager.outputs = _Nothing(list)

    def work() -> None:
        # The caller shows the failure once, with its rank; IPython would print it on each rank as well.
        shell.showtraceback = shell.showsyntaxerror = lambda *args, **kwargs: None
        try:
            result = shell.run_cell(code, store_history=False)
        finally:
            del shell.showtraceback, shell.showsyntaxerror
        error = result.error_before_exec or result.error_in_exec
        if error is not None:
            raise error

    return run_guarded(work, "cell")


class _Nothing(defaultdict[int, list[Any]]):
    """Keeps nothing. IPython would keep all output of all cells in memory; the rank's log has it."""

    def __missing__(self, key: int) -> list[Any]:
        return []

    def setdefault(self, key: int, default: Any = None) -> Any:
        return []


def run_guarded(work: Callable[[], Any], name: str) -> str:
    """JSON text: `{"ok": true, "value": ...}`, or `{"ok": false, "type", "message", "traceback", "step", "exit_code",
    "spent"}`; spent: this process can't run another collective.

    Everything is caught, KeyboardInterrupt and SystemExit too: the answer is how a rank fails.
    """
    try:
        with _marked(name):
            value = work()
    except BaseException as error:
        return json.dumps(_failure(error))
    try:
        return json.dumps({"ok": True, "value": value}, default=_plain)
    except (TypeError, ValueError) as error:
        reason = TypeError(f"the result of {name} is no JSON ({error}); return numbers, texts, lists and dicts")
        return json.dumps(_failure(reason))


def _failure(error: BaseException) -> dict[str, Any]:
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.endswith(_OUR_FRAMES):
        frames = frames.tb_next  # begin where the user's code does
    text = "".join(traceback.format_exception(type(error), error, frames))
    # ipykernel names the code of a cell by a hash; a file of that name does not exist.
    text = re.sub(rf'File "[^"]*/ipykernel_{os.getpid()}/\d+\.py", line', "Cell, line", text)
    code = error.exit_code if isinstance(error, SciMLError) else 130 if isinstance(error, KeyboardInterrupt) else 1
    step = getattr(error, "step", None)
    return {
        "ok": False,
        "type": type(error).__name__,
        "message": f"{error.msg} (line {error.lineno})" if isinstance(error, SyntaxError) else str(error),
        "traceback": text,
        "step": step if isinstance(step, int) else None,
        "exit_code": code,
        "spent": bool(getattr(error, "engine_spent", False)) or _HOROVOD_IS_OVER in str(error),
    }


def _plain(value: Any) -> Any:
    """numpy's scalars and arrays as Python numbers and lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON")


@contextmanager
def _marked(name: str) -> Iterator[None]:
    """Leave `calls/rank-<r>.json` while the call runs: any process can see that the ranks are busy, and with what."""
    info = rank_info()
    if info.place is None:
        yield
        return
    path = info.place / "calls" / f"rank-{info.rank}.json"
    write_json(path, {"name": name, "rank": info.rank, "pid": os.getpid(), "since_utc": now_utc()}, durable=False)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
