"""Parent of one rank's engine: it starts the engine, waits for it, and writes down how it ended.

mpiexec starts one on each rank: `python -m sciml_kernel.pool.wrapper POOL_DIR GENERATION`. mpiexec's own text about a
lost rank was seen to name the wrong process, so who died of what comes from here: `exits/rank-<r>.json`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from pathlib import Path

from sciml_kernel.contracts import RankExit
from sciml_kernel.pool.files import now_utc, write_json
from sciml_kernel.pool.oom import oom_kills
from sciml_kernel.pool.processes import RANK_TMPDIR, die_with_parent, signal_name
from sciml_kernel.pool.spec import PoolDir

__all__ = ["engine_arguments", "main", "rank_of_environment"]

_RANK_VARIABLES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
_STARTUP = "import sciml_kernel.pool.probe as _probe; _probe.report(); del _probe"


def rank_of_environment() -> int:
    """The rank that mpiexec gave this process; -1 when no variable tells."""
    for name in _RANK_VARIABLES:
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return -1


def engine_arguments(directory: PoolDir, generation: int) -> list[str]:
    """Of ipyparallel's engine. `--mpi` makes it ask the hub for the id that equals its MPI rank."""
    place = directory.generation(generation)
    return [
        "--mpi",
        f"--file={directory.engine_file(generation)}",
        f"--profile-dir={place / 'profile'}",
        f"--ipython-dir={place / 'ipython'}",
        "--IPEngine.wait_for_url_file=300",  # the keeper ends a start that takes too long, and says who is missing
        "--IPEngine.timeout=60",
        f"--IPEngine.startup_command={_STARTUP}",
    ]  # fmt: skip


def main(arguments: list[str]) -> int:
    directory, generation = PoolDir(Path(arguments[0])), int(arguments[1])
    spec = directory.read_spec()
    if spec is None:
        print(f"{directory.spec_path} can't be read", file=sys.stderr)
        return 2
    die_with_parent()
    _restore_tmpdir()
    rank, kills = rank_of_environment(), oom_kills()
    child = os.fork()
    if child == 0:
        die_with_parent()
        log = os.open(directory.log(f"rank-{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.umask(spec.umask)  # what the rank writes for its user has the user's mode, not the keeper's
        from sciml_kernel.pool import engine_process  # only here: the wrapper stays small

        engine_process.main(engine_arguments(directory, generation), rank)
    # mpiexec signals the wrapper; the engine decides what it means.
    signal.signal(signal.SIGTERM, lambda number, _frame: os.kill(child, number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return _wait(child, rank, directory.generation(generation), kills)


def _restore_tmpdir() -> None:
    """mpiexec has a temporary directory of its own (`leftovers`); the rank has that of its user."""
    wanted = os.environ.pop(RANK_TMPDIR, None)
    if wanted:
        os.environ["TMPDIR"] = wanted
    elif wanted is not None:
        os.environ.pop("TMPDIR", None)


def _wait(child: int, rank: int, place: Path, kills: int | None) -> int:
    """Note each stop and continuation of the engine, and its end; return the exit code to pass on.

    kills: what `oom_kills` said before the engine was there.
    """
    host, stopped = socket.gethostname(), place / "stops" / f"rank-{rank}.json"
    while True:
        _, status = os.waitpid(child, os.WUNTRACED | os.WCONTINUED)
        if os.WIFSTOPPED(status):
            stop = signal_name(os.WSTOPSIG(status))
            write_json(stopped, {"rank": rank, "host": host, "pid": child, "signal": stop, "since_utc": now_utc()})
        elif os.WIFCONTINUED(status):
            stopped.unlink(missing_ok=True)
        else:
            break
    killed = os.WIFSIGNALED(status)
    code = None if killed else os.WEXITSTATUS(status)
    name = signal_name(os.WTERMSIG(status)) if killed else None
    now = oom_kills() if name == "SIGKILL" else kills
    out_of_memory = None if kills is None or now is None else now > kills
    record = RankExit(rank, host, child, code, name, now_utc(), out_of_memory)
    with contextlib.suppress(FileNotFoundError):  # the pool was stopped and its files are gone
        write_json(place / "exits" / f"rank-{rank}.json", record.to_json(), durable=False)
    return 128 + os.WTERMSIG(status) if killed else os.WEXITSTATUS(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
