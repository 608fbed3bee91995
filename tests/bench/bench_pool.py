"""A pool against plain ipyparallel, in one run: `python tests/bench/bench_pool.py [TRIES] [-n RANKS] [--markdown]`.

Baselines: `ipyparallel`, a Cluster of MPI engines as its documentation starts it; `tuned`, the same with the heartbeat
and the controller options of our pools. All three use the same mpiexec and the same Python, and take turns.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import statistics
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ipyparallel as ipp
from traitlets.config import Config

from sciml_kernel.errors import SciMLError
from sciml_kernel.pool import Pool
from sciml_kernel.pool.launch import HEARTBEAT_MS
from sciml_kernel.pool.launch_local import LocalLauncher
from sciml_kernel.pool.mpi import find_mpi

OURS, PLAIN, TUNED = "sciml_kernel", "ipyparallel", "tuned"
TRIPS = 50
MARK = "SCIML_BENCH_MARK"


class PATIENCE:
    s = 45.0  # what has not happened by then is written as "> 45 s"; heartbeats by default need about 30 s


ON_RANKS = '''
import os, time
from pathlib import Path

def who():
    return os.getpid()

def wait(folder):
    """Until a signal ends it."""
    Path(folder, str(os.getpid())).touch()
    while True:
        time.sleep(0.05)

def half_a_collective(folder):
    """The last rank raises, and says when; the others wait for it in a barrier."""
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    if world.rank == world.size - 1:
        Path(folder, "raised").write_text(repr(time.time()))
        raise ValueError("on purpose")
    world.Barrier()
'''
WHAT = {
    "start": "start, until all ranks have answered a call",
    "attach": "attach from new, until all ranks have answered a call",
    "trip": "round trip of a call to all ranks",
    "interrupt": "interrupt of a call on all ranks, until it is over",
    "restart": "restart, until all ranks have answered a call",
    "fail_fast": "a rank raises, others wait in a collective: until the caller has its error",
    "mend": "and until all ranks answer again",
    "kill": "a rank is killed in a call: until the caller has an error",
    "suspend": "a rank is suspended in a call: until the caller has an error",
    "stop": "stop",
    "left": "processes left after stop",
}


def bench(name: str) -> Callable[..., Any]:
    """A function of the module that the ranks import too."""
    return getattr(__import__("bench_on_ranks"), name)  # type: ignore[no-any-return]


class Ours:
    name = OURS

    def start(self, n: int) -> None:
        self.pool = Pool.start(n, oversubscribe=True)

    def attach(self) -> Callable[[], object]:
        pool = Pool.attach(self.pool.name)
        return lambda: pool.run(bench("who"))

    def who(self) -> list[int]:
        return [int(pid) for pid in self.pool.run("bench_on_ranks:who")]

    def begin(self, function: str, folder: str) -> Any:
        return self.pool.submit(f"bench_on_ranks:{function}", folder)

    def result(self, call: Any) -> None:
        if call.wait(PATIENCE.s):
            call.result()
        else:
            raise TimeoutError

    def interrupt(self, call: Any) -> None:
        call.interrupt()

    def restart(self) -> None:
        self.pool.restart()

    def mend(self) -> None:
        self.who()  # by itself; a call waits for the new ranks

    def stop(self) -> None:
        self.pool.stop()


class Raw:
    """Plain ipyparallel."""

    def __init__(self, tuned: bool) -> None:
        self.name = TUNED if tuned else PLAIN
        self.options: list[str] = []
        if tuned:
            self.options = [
                f"--HeartMonitor.period={HEARTBEAT_MS}",
                "--IPController.broadcast_scheduler_depth=0",
                "--nodb",
            ]

    def start(self, n: int) -> None:
        mpi, launcher = find_mpi(), LocalLauncher()
        config = Config()
        spec: Any = argparse.Namespace(mpiexec=mpi.mpiexec, mpi_vendor=mpi.vendor, n=n)
        config.MPIEngineSetLauncher.mpi_cmd = launcher.command(spec, [])[:-2]  # without -n N
        os.environ.update({**launcher.variables(spec), **mpi.variables})
        self.n = n
        self.cluster = ipp.Cluster(n=n, engines="mpi", config=config, controller_args=self.options, log_level=50)
        self.client = self.cluster.start_and_connect_sync(activate=False)
        self.client.wait_for_engines(n, timeout=60, interactive=False)

    def attach(self) -> Callable[[], object]:
        cluster = ipp.Cluster.from_file(cluster_id=self.cluster.cluster_id, profile_dir=self.cluster.profile_dir)
        client = cluster.connect_client_sync()
        client.wait_for_engines(self.n, timeout=60, interactive=False)
        return lambda: client[:].apply_sync(bench("who"))

    def who(self) -> list[int]:
        return list(self.client[:].apply_async(bench("who")).get(timeout=PATIENCE.s))

    def begin(self, function: str, folder: str) -> Any:
        return self.client[:].apply_async(bench(function), folder)

    def result(self, call: Any) -> None:
        call.get(timeout=PATIENCE.s)

    def interrupt(self, call: Any) -> None:
        self.client.send_signal(signal.SIGINT, block=False)

    def restart(self) -> None:
        self.cluster.restart_engines_sync()
        self.client.wait_for_engines(self.n, timeout=60, interactive=False)

    def mend(self) -> None:
        # By hand, as soon as one knows. Not restart_engines: after a half-entered collective it does not come back.
        self.stop()
        self.start(self.n)
        self.who()

    def stop(self) -> None:
        self.client.close()
        self.cluster.stop_cluster_sync()


# -- one try ----------------------------------------------------------------------------------------------------------


def one_try(system: Ours | Raw, n: int) -> dict[str, float]:
    """Seconds by the keys of `WHAT`; inf: not within `PATIENCE.s`, or it never came back."""
    with clean_folder() as folder:
        found = {"start": timed(lambda: (system.start(n), system.who()))}
        try:
            found["attach"] = timed(lambda: system.attach()())
            found["trip"] = statistics.median(timed(system.who) for _ in range(TRIPS))
            found["interrupt"] = _interrupt(system, n, folder)
            found["restart"] = timed(lambda: (system.restart(), system.who()))
            found["kill"] = _signal(system, n, folder, signal.SIGKILL)
        finally:
            found["stop"] = timed(system.stop)
    found["left"] = left_over()
    for work in (_fail_fast, _suspend):
        with clean_folder() as folder:
            system.start(n)
            try:
                found |= work(system, n, folder)
            finally:
                with contextlib.suppress(Exception):
                    system.stop()
        left_over()
    return found


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    try:
        work()
    except TimeoutError:
        return math.inf
    return time.perf_counter() - begin


def _error_s(system: Ours | Raw, call: Any) -> float:
    """Seconds until the caller has an error."""
    begin = time.perf_counter()
    try:
        system.result(call)
    except TimeoutError:
        return math.inf
    except (SciMLError, ipp.error.IPythonError):
        return time.perf_counter() - begin
    raise AssertionError("the call ended well")


def _running(system: Ours | Raw, n: int, folder: str) -> tuple[Any, list[int]]:
    """A call that waits on all ranks, and their pids."""
    call, deadline = system.begin("wait", folder), time.monotonic() + 60
    while len(pids := [int(path.name) for path in Path(folder).iterdir()]) < n:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return call, pids


def _interrupt(system: Ours | Raw, n: int, folder: str) -> float:
    call, _ = _running(system, n, folder)
    system.interrupt(call)
    taken = _error_s(system, call)
    for path in Path(folder).iterdir():
        path.unlink()
    return taken


def _signal(system: Ours | Raw, n: int, folder: str, number: int) -> float:
    call, pids = _running(system, n, folder)
    os.kill(pids[-1], number)
    return _error_s(system, call)


def _suspend(system: Ours | Raw, n: int, folder: str) -> dict[str, float]:
    return {"suspend": _signal(system, n, folder, signal.SIGSTOP)}


def _fail_fast(system: Ours | Raw, n: int, folder: str) -> dict[str, float]:
    call = system.begin("half_a_collective", folder)
    found = {"fail_fast": _error_s(system, call)}
    if found["fail_fast"] < PATIENCE.s:
        raised = float((Path(folder) / "raised").read_text())
        found["fail_fast"] = time.time() - raised
    return found | {"mend": timed(system.mend)}


def left_over() -> int:
    """Processes of this benchmark that still run 0.5 s later; they are killed."""
    deadline = time.monotonic() + 0.5
    while (left := marked()) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(left)


def marked() -> list[int]:
    """Processes that were started here, by a variable of this run."""
    wanted, found = f"{MARK}={os.environ[MARK]}".encode(), []
    for place in Path("/proc").iterdir():
        if not place.name.isdigit() or int(place.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            stopped_for_good = place.joinpath("stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
            if not stopped_for_good and wanted in place.joinpath("environ").read_bytes().split(b"\0"):
                found.append(int(place.name))
    return found


# -- the run ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def clean_folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield folder


@contextlib.contextmanager
def own_folders() -> Iterator[None]:
    """Folders of IPython and of pools that nobody else uses, and a module that ranks can import."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        before = dict(os.environ)
        for name in ("IPYTHONDIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "XDG_STATE_HOME"):
            os.environ[name] = str(Path(folder) / name)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, before.get("PYTHONPATH")]))
        os.environ[MARK] = uuid.uuid4().hex
        (Path(folder) / "bench_on_ranks.py").write_text(ON_RANKS)
        sys.path.insert(0, folder)
        try:
            yield
        finally:
            left_over()
            sys.path.remove(folder)
            os.environ.clear()
            os.environ.update(before)


def measure(tries: int, n: int, *, progress: bool = False) -> dict[str, dict[str, list[float]]]:
    """By system and key of `WHAT`: one number a try. The systems take turns, in another order each time."""
    systems: list[Ours | Raw] = [Ours(), Raw(tuned=False), Raw(tuned=True)]
    found: dict[str, dict[str, list[float]]] = {system.name: {key: [] for key in WHAT} for system in systems}
    for number in range(tries):
        for system in systems[number % 3 :] + systems[: number % 3]:
            seen = one_try(system, n)
            if progress:
                print(f"try {number + 1} of {tries}, {system.name}: {seen}", file=sys.stderr, flush=True)
            for key in WHAT:
                found[system.name][key].append(seen[key])
    return found


def _seconds(value: float) -> str:
    if value == math.inf:
        return f"> {PATIENCE.s:g} s"
    return f"{value * 1e3:.1f} ms" if value < 0.1 else f"{value:.2f} s"


def report(found: dict[str, dict[str, list[float]]], n: int, *, markdown: bool = False) -> str:
    """Medians; a ratio above 1 says how many times as long the better baseline takes."""
    tries = len(found[OURS]["start"])
    lines = []
    if markdown:
        cores = len(os.sched_getaffinity(0))
        lines += [f"| {n} ranks, {cores} cores, median of {tries} | {OURS} | {PLAIN} | {TUNED} | {TUNED} / {OURS} |"]
        lines += ["|---|---|---|---|---|"]
    for key, what in WHAT.items():
        ours, plain, tuned = (statistics.median(found[name][key]) for name in (OURS, PLAIN, TUNED))
        if key == "left":
            texts, ratio = [f"{value:g}" for value in (ours, plain, tuned)], ""
        else:
            never = tuned == math.inf
            texts = [_seconds(value) for value in (ours, plain, tuned)]
            ratio = f"{'> ' if never else ''}{(PATIENCE.s if never else tuned) / ours:.2f}"
        if markdown:
            lines.append(f"| {what} | {' | '.join(texts)} | {ratio} |")
        else:
            words = f"pool, {what}: {OURS} {texts[0]}, {PLAIN} {texts[1]}, {TUNED} {texts[2]}"
            lines.append(words + (f", ratio {ratio}" if ratio else ""))
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tries", nargs="?", type=int, default=5)
    parser.add_argument("-n", type=int, default=4, help="ranks")
    parser.add_argument("--patience", type=float, default=PATIENCE.s, metavar="S", help="longer counts as never")
    parser.add_argument("--markdown", action="store_true")
    given = parser.parse_args(arguments)
    PATIENCE.s = given.patience
    with own_folders(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = measure(given.tries, given.n, progress=True)
        print(report(found, given.n, markdown=given.markdown))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
