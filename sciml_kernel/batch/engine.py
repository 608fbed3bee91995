"""papermill's engine and client, made truthful.

papermill injects the parameters, keeps the notebook and walks through the cells; nbclient talks to the kernel. Ours
differ where a record must not lie: a cell that was not run says so, a dead kernel, a signal and a time limit are told
apart, and the notebook on disk is whole at every moment.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from jupyter_core.utils import ensure_event_loop
from nbclient.exceptions import CellExecutionError, DeadKernelError
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, NotebookExecutionManager, papermill_engines
from papermill.translators import PythonTranslator, papermill_translators

from sciml_kernel.batch.ending import Ending
from sciml_kernel.batch.literals import as_json, as_source
from sciml_kernel.batch.outputs import Streams, add_kept_outputs, write_notebook
from sciml_kernel.batch.progress import Progress
from sciml_kernel.batch.stages import tagged
from sciml_kernel.contracts import ERROR_VARIABLE, STAGES_VARIABLE
from sciml_kernel.pool.oom import oom_kills
from sciml_kernel.pool.processes import ProcessId
from sciml_kernel.records import process_usage, write_atomic

__all__ = ["ENGINE", "KERNEL", "SciMLEngine", "State", "register", "translate"]

ENGINE = KERNEL = "sciml"
START_TIMEOUT_S = 60
IOPUB_TIMEOUT_S = 120  # a flood of output takes its time to arrive after the cell's end
_FILES = ("stdout_file", "stderr_file", "log_output")  # of papermill's command line
_INTERRUPTS = ("KeyboardInterrupt", "RunInterruptedError")


class State:
    """One run, shared between `run_notebook` and papermill's engine: what is wanted, then what was seen.

    cells: the record's list. error: its error entry, None while all is well. status: how the notebook ended, without
    its children. kernel: its process, once it runs. usage: what that took, up to the last cell. copy: another place for
    the executed notebook. earlier: the executed notebook of the run that this one goes on from.
    """

    def __init__(
        self,
        *,
        notebook: Path,
        log: Path,
        env: dict[str, str],
        ending: Ending,
        progress: Progress,
        cell_timeout_s: float | None,
        on_cells: Callable[[list[dict[str, Any]], int | None], None],
        before_shutdown: Callable[[State], None],
        copy: Path | None = None,
        earlier: Path | None = None,
    ) -> None:
        self.notebook, self.copy, self.log, self.env = notebook, copy, log, env
        self.earlier = earlier
        self.ending, self.progress, self.cell_timeout_s = ending, progress, cell_timeout_s
        self.on_cells, self.before_shutdown = on_cells, before_shutdown
        self.cells: list[dict[str, Any]] = []
        self.error: dict[str, Any] | None = None
        self.status = "completed"
        self.node: Any = None
        self.kernel: dict[str, Any] | None = None
        self.usage: dict[str, Any] = {}

    def plan(self, node: Any) -> None:
        self.node = node
        if stages := tagged(node.cells):
            write_atomic(Path(self.env[STAGES_VARIABLE]), json.dumps(stages))
        indices = [index for index, cell in enumerate(node.cells) if cell.cell_type == "code"]
        self.cells = [{"index": index, "status": "not_run", "seconds": None} for index in indices]
        self.on_cells(self.cells, None)

    def number(self, index: int) -> int:
        """1 for the first code cell."""
        return 1 + [cell["index"] for cell in self.cells].index(index)

    def fail(self, status: str, type_: str, message: str, index: int | None, **more: Any) -> None:
        """Note how the run ends; the first note stays, but a wish to end explains what follows from it."""
        reason = self.ending.reason
        if reason is not None:
            status, type_, message, more = reason.status, reason.type, reason.message, {}
        if self.error is None:
            self.status = status
            self.error = {"type": type_, "message": message, "cell": index, **more}

    def noted_error(self) -> dict[str, Any] | None:
        """The error entry that the kernel noted of the cell that has just raised; once."""
        path = Path(self.env.get(ERROR_VARIABLE, os.devnull))
        try:
            entry = json.loads(path.read_text(encoding="utf-8"))
            path.unlink()
        except (OSError, ValueError):
            return None
        return {key: value for key, value in entry.items() if key != "cell"}

    def cell_begins(self, index: int, cell: Any) -> None:
        self.on_cells(self.cells, index)
        self.progress.cell_begins(self.number(index), cell)

    def cell_ends(self, index: int, status: str, seconds: float) -> None:
        if self.kernel is not None:
            found = process_usage(self.kernel["pid"])
            self.usage = found if found["cpu_s"] is not None else self.usage
        entry = next(cell for cell in self.cells if cell["index"] == index)
        entry.update(status=status, seconds=round(seconds, 3))
        self.on_cells(self.cells, None)
        self.progress.cell_ends(self.number(index), status, seconds)


class _Manager(NotebookExecutionManager):
    """papermill's book-keeping in the notebook's metadata; saves atomically and marks only what was run."""

    def __init__(self, nb: Any, state: State) -> None:
        super().__init__(nb, output_path=None, progress_bar=False, autosave_cell_every=5)
        self.state, self.trouble = state, ""

    def save(self, **kwargs: Any) -> None:
        """A disk that is full ends the run at the end of this cell; what was written before stays whole."""
        self.trouble = ""
        for path in filter(None, (self.state.notebook, self.state.copy)):
            try:
                write_notebook(self.nb, path)
            except OSError as error:
                self.trouble = f"{path} can't be written: {error.strerror or error}"
        self.last_save_time = self.now()

    def stuck(self, index: int) -> bool:
        """Whether the last save failed; the run then fails at this cell."""
        if self.trouble:
            self.state.fail("failed", "OSError", self.trouble, index)
        return bool(self.trouble)

    def notebook_start(self, **kwargs: Any) -> None:
        meta = self.nb.metadata.papermill
        meta["parameters"] = as_json(dict(meta.get("parameters", {})))
        meta["input_path"] = meta["output_path"] = None  # papermill has the whole notebook there
        super().notebook_start(**kwargs)
        for cell in self.nb.cells:
            if cell.cell_type != "code":
                cell.metadata.papermill["status"] = self.COMPLETED
        self.state.plan(self.nb)

    def notebook_complete(self, **kwargs: Any) -> None:
        self.end_time = self.now()
        meta = self.nb.metadata.papermill
        meta["end_time"] = self.end_time.isoformat()
        meta["duration"] = (self.end_time - self.start_time).total_seconds() if self.start_time else None
        self.save()


class _Client(PapermillNotebookClient):
    """Runs the cells until one fails or an end is wanted; then waits for what they started, with the kernel alive."""

    def __init__(self, nb_man: _Manager, **kwargs: Any) -> None:
        super().__init__(nb_man, **kwargs)
        self.state = nb_man.state
        self._streams = Streams()
        self._kills = oom_kills()

    def execute(self, **kwargs: Any) -> Any:
        self.reset_execution_trackers()
        state = self.state
        if state.ending.reason is not None:
            state.fail("", "", "", None)
            return self.nb
        try:
            with self.setup_kernel(env=state.env, **kwargs):
                pid = _kernel_pid(self.km)
                state.kernel = ProcessId.of(pid).to_json() if pid is not None else None
                state.ending.watch_kernel(pid)
                self.papermill_execute_cells()
                self.set_widgets_metadata()
                state.before_shutdown(state)
        except Exception as error:  # nbclient raises plain RuntimeErrors for a kernel that does not start
            state.fail("failed", type(error).__name__, str(error), None)
        finally:
            state.ending.watch_kernel(None)
            _close_loop()
        return self.nb

    def papermill_execute_cells(self) -> None:
        for index, cell in enumerate(self.nb.cells):
            if cell.cell_type != "code":
                continue
            if self.state.ending.reason is not None:
                self.state.fail("", "", "", index)
                return
            if not self._run_cell(index, cell):
                return

    def _run_cell(self, index: int, cell: Any) -> bool:
        """Whether the next cell is to run."""
        state, begin = self.state, time.monotonic()
        log_begin = _size(state.log)
        self.nb_man.cell_start(cell, index)
        if self.nb_man.stuck(index):
            return False
        state.cell_begins(index, cell)
        status, goes_on = "completed", True
        try:
            with state.ending.limit(state.cell_timeout_s, f"cell {index}"):
                self.execute_cell(cell, index)
        except CellExecutionError as error:
            status, goes_on = self._judge(error, index), False
        except DeadKernelError:
            self._recover_output(cell, index, log_begin)
            status, goes_on = "failed" if state.ending.reason is None else "interrupted", False
            words = _death(self.km, self._kills)
            cell.outputs.append(_error_output("DeadKernelError", words))
            state.fail("failed", "DeadKernelError", words, index, signal=_death_signal(self.km))
        if status == "completed" and state.earlier is not None:
            add_kept_outputs(cell, state.earlier)
        if status == "completed" and state.ending.reason is not None and goes_on:
            state.fail("", "", "", index)  # the cell was done, or swallowed the interrupt; the rest is not run
            goes_on = False
        if status != "completed":
            self.nb_man.cell_exception(cell, cell_index=index)
        self.nb_man.cell_complete(cell, cell_index=index)
        if self.nb_man.stuck(index):
            status, goes_on = "failed" if status == "completed" else status, False
        state.cell_ends(index, status, time.monotonic() - begin)
        return goes_on

    def _judge(self, error: CellExecutionError, index: int) -> str:
        """Status of a cell that raised. `sys.exit(0)` ends the notebook well."""
        name, value = str(error.ename), str(error.evalue)
        if name == "SystemExit" and value in ("", "0", "None"):
            return "completed"
        interrupted = name in _INTERRUPTS or self.state.ending.reason is not None
        entry = self.state.noted_error() or {"type": name, "message": value}
        message = entry.pop("message") or ("the cell was interrupted" if interrupted else "")
        self.state.fail("interrupted" if interrupted else "failed", entry.pop("type"), message, index, **entry)
        return "interrupted" if interrupted else "failed"

    def _recover_output(self, cell: Any, index: int, log_begin: int) -> None:
        """What a dead kernel printed last: first what still arrives, then what only reached the log."""
        assert self.kc is not None
        cell.outputs = cell.get("outputs", [])
        while True:
            try:
                message = _get_message(self)
                self.process_message(message, cell, index)
            except Exception:  # nothing more, or the end of the cell
                break
        seen = sum(len(output.text) for output in cell.outputs if output.output_type == "stream")
        written = _read_from(state_log := self.state.log, log_begin) if seen < 100_000 else ""
        joined = "".join(output.text for output in cell.outputs if output.output_type == "stream")
        if state_log and written.startswith(joined) and len(written) > len(joined):
            self._take_stream(cell.outputs, "stdout", written[len(joined) :])

    def _take_stream(self, outputs: list[Any], name: str, text: str) -> None:
        from nbformat.v4 import new_output

        output = new_output("stream", name=name, text=text)
        if self.log_output or self.stdout_file or self.stderr_file:
            self.log_output_message(output)
        self._streams.add(outputs, output)
        self.state.progress.text(name, text)

    def output(self, outs: list[Any], msg: Any, display_id: Any, cell_index: int) -> Any:
        """nbclient's; texts are joined and bounded, and everything is shown at once."""
        hooked = self.output_hook_stack[msg["parent_header"].get("msg_id")]
        if msg["msg_type"] == "stream" and not hooked and not self.clear_before_next_output:
            self._take_stream(outs, msg["content"]["name"], msg["content"]["text"])
            return None
        out = super().output(outs, msg, display_id, cell_index)
        data = (out or {}).get("data", {})
        if "text/plain" in data and not any(kind.startswith("image/") for kind in data):
            self.state.progress.text("result", data["text/plain"] + "\n")
        return out


class SciMLEngine(NBClientEngine):
    """The engine that papermill calls; `state` comes through papermill's engine arguments. `plugin.Engine` is the one
    that others find by its name."""

    @classmethod
    def execute_notebook(cls, nb: Any, kernel_name: str, *, state: State, **kwargs: Any) -> Any:
        manager = _Manager(nb, state)
        manager.notebook_start()
        client = _Client(
            manager,
            kernel_name=kernel_name,
            timeout=None,
            startup_timeout=START_TIMEOUT_S,
            iopub_timeout=IOPUB_TIMEOUT_S,
            extra_arguments=["--log-level=ERROR"],
            **{name: kwargs[name] for name in _FILES if kwargs.get(name) is not None},
        )
        try:
            client.execute()
        finally:
            manager.notebook_complete()
        return manager.nb


class _Translator(PythonTranslator):
    """Writes parameters so that they come back as they were: tuples, dates, text of any kind."""

    @classmethod
    def translate(cls, val: Any) -> str:
        return as_source(val)


def translate(values: Mapping[str, Any]) -> str:
    """Source of the cell that sets the parameters."""
    return str(_Translator.codify(dict(values), "Parameters"))


def register() -> None:
    """Make engine and translator known to papermill. Twice is no harm."""
    papermill_engines.register(ENGINE, SciMLEngine)
    papermill_translators.register(KERNEL, _Translator)


def _get_message(client: Any) -> Any:
    from nbclient.util import run_sync

    return run_sync(client.kc.iopub_channel.get_msg)(timeout=0.3)


def _close_loop() -> None:
    """nbclient leaves its event loop to this thread, open, with three sockets."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        loop = ensure_event_loop()
        for task in (tasks := asyncio.all_tasks(loop)):
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.close()
        asyncio.set_event_loop(None)


def _kernel_pid(manager: Any) -> int | None:
    pid = getattr(getattr(manager, "provisioner", None), "pid", None)
    return pid if isinstance(pid, int) and pid > 0 and os.getpgid(pid) == pid else None


def _exit_code(manager: Any) -> int | None:
    process = getattr(getattr(manager, "provisioner", None), "process", None)
    return cast("int | None", process.poll()) if process is not None else None


def _death_signal(manager: Any) -> str | None:
    import signal

    code = _exit_code(manager)
    return signal.Signals(-code).name if code is not None and code < 0 else None


def _death(manager: Any, kills: int | None) -> str:
    """kills: what `oom_kills` said before the kernel was started."""
    code = _exit_code(manager)
    how = _death_signal(manager) or (f"exit code {code}" if code is not None else "no exit code")
    now = oom_kills()
    if how == "SIGKILL" and kills is not None and now is not None and now > kills:
        how += ": memory ran out, and the system killed a process for it"
    return f"the kernel ended while the cell ran ({how})"


def _error_output(name: str, value: str) -> Any:
    from nbformat.v4 import new_output

    return new_output("error", ename=name, evalue=value, traceback=[f"{name}: {value}"])


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _read_from(path: Path, offset: int) -> str:
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(1_000_000).decode("utf-8", "replace")
