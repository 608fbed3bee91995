"""One engine set of a pool: a controller and the mpiexec of n wrapped engines. Used by the keeper only.

A pool that lost its engine set gets a new generation, controller included, in a directory of its own. So no id, key or
half-read message of the old set can be taken for one of the new.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sciml_kernel.pool import launch, leftovers
from sciml_kernel.pool.files import age_s, read_json, tail
from sciml_kernel.pool.processes import MARK, RANK_TMPDIR, ProcessId, die_with_parent, kill_marked, marked_pids
from sciml_kernel.pool.spec import PoolDir, PoolSpec

__all__ = ["Generation"]

# IPython would make these with the mode that the rank's user has for files of his own.
_PROFILE = [f"profile/{name}" for name in ("security", "log", "pid", "startup")]
SUSPENDED_LIMIT_S = 1.5  # the hub would give it up, without naming a signal, after 2.2 s


class Generation:
    """Start it, ask `arrived` until it is whole, ask `trouble` while it lives, `end` it."""

    def __init__(self, directory: PoolDir, spec: PoolSpec, number: int) -> None:
        self.number = number
        self.n = spec.n
        self.ranks: list[dict[str, Any]] = []
        self._directory, self._spec = directory, spec
        self._place = directory.generation(number)
        self._mark = f"{spec.id}.{number}"
        self._controller: subprocess.Popen[bytes] | None = None
        self._mpiexec: subprocess.Popen[bytes] | None = None
        self._helpers: list[ProcessId] = []  # the controller's schedulers: without one of them calls hang
        self._begun = time.time()

    def start(self) -> None:
        for name in ("ranks", "exits", "stops", "calls", "ipython", *_PROFILE):
            (self._place / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        driver = launch.launcher(self._spec.launcher)
        variables = {
            **os.environ,
            MARK: self._mark,
            "IPYTHONDIR": str(self._place / "ipython"),
            **driver.variables(self._spec),
            **launch.rank_variables(self._spec),
        }
        spec, directory, number = self._spec, self._directory, self.number
        self._controller = self._popen(
            launch.controller_command(spec, directory, number, driver.controller_ip), variables, "controller"
        )
        tmp = leftovers.own_tmp(self._mark)
        tmp.mkdir(mode=0o700, exist_ok=True)
        variables |= {RANK_TMPDIR: variables.get("TMPDIR", ""), "TMPDIR": str(tmp)}  # the wrapper puts it back
        self._mpiexec = self._popen(
            driver.command(spec, launch.wrapper_command(spec, directory, number)), variables, "mpiexec"
        )

    def _popen(self, command: list[str], variables: Mapping[str, str], log: str) -> subprocess.Popen[bytes]:
        with open(self._directory.log(log), "ab") as file:
            return subprocess.Popen(
                command,
                cwd=self._spec.cwd,
                env=dict(variables),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # Nothing may outlive a killed keeper. SIGTERM, so that both can end what they started themselves.
                preexec_fn=lambda: die_with_parent(signal.SIGTERM),
            )

    @property
    def pids(self) -> dict[str, int]:
        named = {"controller": self._controller, "mpiexec": self._mpiexec}
        return {name: process.pid for name, process in named.items() if process is not None}

    def watch(self) -> list[int]:
        """Pids whose end must wake the keeper at once."""
        return list(self.pids.values())

    def arrived(self) -> tuple[bool, str]:
        """(all n ranks are there and fit, what is wrong). An empty text means: not yet."""
        entries = [entry for path in self._place.glob("ranks/*.json") if (entry := read_json(path))]
        for entry in entries:
            if entry.get("set_up_error"):  # at once: the others may wait for it in a collective
                report = entry["report"]
                return False, f"rank {report['rank']} @ {report['host']}: {entry['set_up_error']}"
        if len(entries) < self.n:
            return False, ""
        entries.sort(key=lambda entry: (entry["report"]["rank"], entry["engine_id"]))
        wrong = self._mismatch(entries)
        if wrong or not all(entry["ready"] for entry in entries):
            return False, wrong
        self.ranks = entries
        session, pids = self.pids["controller"], marked_pids(self._mark)
        self._helpers = [ProcessId.of(pid) for pid in pids if _session(pid) == session]
        leftovers.unlink_early(pids)
        return True, ""

    def _mismatch(self, entries: list[dict[str, Any]]) -> str:
        """Why these are not one MPI world with engine id == rank; "" when they are."""
        n, reports = self.n, [entry["report"] for entry in entries]
        sizes = sorted({report["world_size"] for report in reports})
        if sizes != [n]:
            return (
                f"{n} engines came as MPI worlds of size {', '.join(map(str, sizes))}, not as one world of {n}: "
                f"{self._spec.mpiexec} is not of the MPI that mpi4py uses ({reports[0]['mpi_library']}); "
                "`sciml doctor` says how to mend it"
            )
        pairs = [(entry["report"]["rank"], entry["engine_id"]) for entry in entries]
        if pairs != [(rank, rank) for rank in range(n)]:
            found = ", ".join(f"rank {rank} is engine {identity}" for rank, identity in pairs)
            return f"engine ids are not the MPI ranks ({found}); was an engine started without --mpi?"
        return ""

    def some_arrived(self) -> bool:
        return any(self._place.glob("ranks/*.json"))

    def missing(self) -> str:
        """Who has not arrived, and the last lines of what the others wrote."""
        here = {entry["report"]["rank"] for path in self._place.glob("ranks/*.json") if (entry := read_json(path))}
        absent = [str(rank) for rank in range(self.n) if rank not in here]
        if not absent:
            late = [mark["rank"] for path in self.calls() if (mark := read_json(path))]
            return f"rank {', '.join(map(str, sorted(late)))} had not ended the set-up cells\n{self.last_words(late)}"
        return f"missing rank {', '.join(absent)} of {self.n}\n{self.last_words([int(r) for r in absent])}".rstrip()

    def last_words(self, ranks: list[int]) -> str:
        names = ["mpiexec", "controller", *(f"rank-{rank}" for rank in ranks[:2])]
        texts = [(name, tail(self._directory.log(name), 8)) for name in names]
        return "\n".join(f"--- {name}.log\n{text}" for name, text in texts if text)

    def exits(self) -> list[dict[str, Any]]:
        """RankExit of each rank that ended, first to end first."""
        found = [entry for path in self._place.glob("exits/*.json") if (entry := read_json(path))]
        return sorted(found, key=lambda entry: str(entry["ended_utc"]))

    def trouble(self) -> str:
        """What was lost, as a sentence; "" while all is well."""
        if self._mpiexec is not None and self._mpiexec.poll() is not None:
            self._wait_for_exit_file()
        ended = self.exits()
        if ended:
            return _ended(ended[0])
        if self._mpiexec is not None and self._mpiexec.poll() is not None:
            return f"mpiexec ended with {_code(self._mpiexec.returncode)}"
        # Helpers first: they end with a killed controller, and between two looks it would seem that only they did.
        lost = next((helper for helper in self._helpers if not helper.alive()), None)
        if self._controller is not None and self._controller.poll() is not None:
            return f"the controller (pid {self._controller.pid}) ended with {_code(self._controller.returncode)}"
        if lost is not None:
            return f"a scheduler of the controller (pid {lost.pid}) ended"
        return self._suspended()

    def _suspended(self) -> str:
        for path in self._place.glob("stops/*.json"):
            entry = read_json(path)
            if entry and age_s(entry["since_utc"]) > SUSPENDED_LIMIT_S:
                return f"rank {entry['rank']} @ {entry['host']} (pid {entry['pid']}) was stopped by {entry['signal']}"
        for helper in self._helpers:
            if helper.suspended():
                return f"the controller (pid {helper.pid}) was stopped by a signal"
        return ""

    def _wait_for_exit_file(self) -> None:
        """mpiexec may be seen to end a moment before the wrapper's file is there."""
        deadline = time.monotonic() + 0.3
        while not self.exits() and time.monotonic() < deadline:
            time.sleep(0.02)

    def calls(self) -> list[Path]:
        """Markers of the ranks that run a call now."""
        return list(self._place.glob("calls/rank-*.json"))

    def end(self) -> None:
        """No process of this engine set is left afterwards, and nothing that its MPI made elsewhere."""
        named = [process for process in (self._mpiexec, self._controller) if process is not None]
        held = leftovers.mapped(marked_pids(self._mark))
        if self._spec.mpi_vendor != "mpich":
            # Open MPI leaves its session directory behind when it is killed.
            for process in named:
                process.terminate()
            deadline = time.monotonic() + 1.0
            while any(process.poll() is None for process in named) and time.monotonic() < deadline:
                time.sleep(0.02)
        for process in named:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        kill_marked(self._mark)
        for process in named:
            process.wait(timeout=5)
        leftovers.remove(held | leftovers.orphans(self._begun))
        leftovers.remove_tmp(self._mark)


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


def _ended(entry: Mapping[str, Any]) -> str:
    who = f"rank {entry['rank']} @ {entry['host']} (pid {entry['pid']})"
    if entry["signal"]:
        return f"{who} was ended by {entry['signal']}{_why_killed(entry)}"
    return f"{who} ended with exit code {entry['exit_code']}"


def _why_killed(entry: Mapping[str, Any]) -> str:
    if entry["signal"] != "SIGKILL":
        return ""
    match entry.get("memory_ran_out"):
        case True:
            return ": memory ran out, and the kernel killed it"
        case None:  # the kernel does not count here
            return " (nobody sent it? then memory ran out)"
    return ""


def _code(returncode: int) -> str:
    return f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"
