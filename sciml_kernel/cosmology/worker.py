"""Simulates files of universes; runs in `factory`'s worker processes, or in the calling process.

As a process (`python -m sciml_kernel.cosmology.worker`): reads one job a line from standard input (JSON), answers on
standard output (JSON): {"sample": 1} after each sample, {"file": {...}} at the end of a job, or {"error", "message"}.
It ends when its input ends. A process of its own, and not `multiprocessing`, because that would run the caller's main
module again, which in a notebook or an unguarded script is not wanted.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sciml_kernel.cosmology.simulator import simulate
from sciml_kernel.cosmology.targets import PRIORS, draw
from sciml_kernel.data.manifest import ShardFile, sha256_of
from sciml_kernel.data.readers.framing import write_records
from sciml_kernel.data.readers.tfrecord import encode_sample
from sciml_kernel.errors import DataError

__all__ = ["Job", "describe", "run_job"]


@dataclass(frozen=True)
class Job:
    """One file: simulations first..last-1 of a data set, written to folder/name."""

    folder: str
    name: str
    first: int
    last: int
    seed: int
    n_particles: int
    grid: int
    box_size_mpc_h: float
    method: str


def run_job(job: Job, *, after_sample: Callable[[], None] = lambda: None) -> ShardFile:
    """Simulate and write one file: whole and flushed to disk under its name, or not there at all.

    Raises DataError when the disk is full or can't be written.
    """
    path = Path(job.folder) / job.name
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        with open(temporary, "wb") as stream:
            for i_simulation in range(job.first, job.last):
                values, phases = draw(job.seed, i_simulation)
                counts = simulate(
                    **values,
                    n_particles=job.n_particles,
                    grid=job.grid,
                    box_size_mpc_h=job.box_size_mpc_h,
                    method=job.method,
                    seed=phases,
                )
                targets = np.array([values[prior.name] for prior in PRIORS], dtype=np.float32)
                write_records(stream, [encode_sample(counts.values[..., None], targets)])
                after_sample()
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise DataError(f"can't write {path}: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return describe(path, job.last - job.first)


def describe(path: Path, n_samples: int) -> ShardFile:
    return ShardFile(path.name, n_samples, path.stat().st_size, sha256_of(path))


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints must not get between the answers

    def answer(**fields: object) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    for line in sys.stdin:
        try:
            file = run_job(Job(**json.loads(line)), after_sample=lambda: answer(sample=1))
        except Exception as error:
            answer(error=type(error).__name__, message=str(error))
        else:
            answer(file=dataclasses.asdict(file))


if __name__ == "__main__":
    try:
        main()
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(1)  # the caller is gone, or is being interrupted itself and says so
