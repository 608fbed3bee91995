"""The last look at a new environment: two MPI ranks average a tensor through Horovod, and say which MPI they are on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from sciml_env.mpi import ALLOWED, Mpi, first_line, ldd, loaded_libmpi
from sciml_env.say import FAILED, Log, SetupError, note

__all__ = ["check_linked", "check_ranks"]

PROGRAM = """
import json, sys
from mpi4py import MPI
import tensorflow as tf, horovod.tensorflow as hvd
hvd.init()
mean = tf.function(lambda x: hvd.allreduce(x, op=hvd.Average))(tf.constant(1.0 + hvd.rank()))
print("RANK " + json.dumps(dict(mpi4py=MPI.Get_library_version(), size=MPI.COMM_WORLD.size, horovod=hvd.size(),
      same=MPI.COMM_WORLD.rank == hvd.rank(), mean=float(mean))), flush=True)
"""


def check_linked(site: Path, mpi: Mpi) -> None:
    """Horovod's library must load the same libmpi file as the launcher's."""
    libraries = sorted((site / "horovod" / "tensorflow").glob("mpi_lib*.so"))
    if not libraries:
        raise SetupError(f"Horovod in {site} has no TensorFlow library", FAILED)
    got = loaded_libmpi(ldd(libraries[0]))
    if got is None or Path(got).resolve() != Path(mpi.libmpi).resolve():
        raise SetupError(
            f"Horovod would load {got or 'no libmpi at all'}, but the launcher belongs to {mpi.libmpi}.\n"
            "Unset LD_LIBRARY_PATH (or load one MPI module only) and run env/setup again.",
        )


def check_ranks(python: Path, mpi: Mpi, log: Log, env: Mapping[str, str]) -> None:
    """Start two ranks for real. Raises with what they printed when the pieces don't fit."""
    if mpi.mpiexec is None:
        note("no mpiexec: two ranks were not tried; `sciml doctor` inside a job does it")
        return
    begin = log.path.stat().st_size
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": env.get("CUDA_VISIBLE_DEVICES", "")}
    # -P: a checkout in the current directory is not what was installed.
    log.run(
        ["timeout", "-k", "10", "240", mpi.mpiexec, "-n", "2", str(python), "-P", "-c", PROGRAM],
        what="starting two MPI ranks",
        env={**env, **ALLOWED, **quiet},
        hint="On a login node that forbids MPI: --no-rank-check. `sciml doctor` says more.",
    )
    printed = log.path.read_bytes()[begin:].decode(errors="replace")
    said = [json.loads(part.split("\n")[0]) for part in printed.split("RANK ")[1:] if part.startswith("{")]
    problems = judge(said, mpi.library_version)
    if problems:
        raise SetupError("MPI and Horovod don't fit together: " + "; ".join(problems) + f"\nLog: {log.path}")
    note(f"2 ranks averaged a tensor through Horovod on {mpi.library_version}")


def judge(said: list[dict[str, object]], library_version: str) -> list[str]:
    """What is wrong with the answers of the two ranks; [] when all is well."""
    if len(said) != 2:
        return [f"{len(said)} of 2 ranks answered"]
    problems = []
    for answer in said:
        if answer["size"] != 2 or answer["horovod"] != 2:
            problems.append(f"a world of {answer['size']} (Horovod: {answer['horovod']}) instead of 2 ranks")
        elif not answer["same"]:
            problems.append("mpi4py and Horovod number the ranks differently")
        elif answer["mean"] != 1.5:
            problems.append(f"the mean of 1 and 2 came out as {answer['mean']}")
        elif first_line(str(answer["mpi4py"])) != library_version:
            problems.append(f"mpi4py is on {first_line(str(answer['mpi4py']))!r}, Horovod on {library_version!r}")
    return sorted(set(problems))
