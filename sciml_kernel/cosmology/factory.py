"""Makes data sets of universes: parallel, restartable, whole or not there.

Files are written into `<out>.partial`, each under its name only when it is whole; the manifest comes last, and then the
folder gets its name in one step. So a folder `out` with a manifest is always a finished data set, and the same call
after an interrupt goes on where the earlier one was.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from sciml_kernel.cosmology.check import check_data, describe_data
from sciml_kernel.cosmology.checks import whole
from sciml_kernel.cosmology.crew import available_cores, run_jobs
from sciml_kernel.cosmology.linear import OMEGA_B, H
from sciml_kernel.cosmology.simulator import METHODS, check_sizes
from sciml_kernel.cosmology.targets import PRIORS, draw
from sciml_kernel.cosmology.worker import Job, describe
from sciml_kernel.data.manifest import MANIFEST, Manifest, ShardFile, read_manifest, write_atomically
from sciml_kernel.data.readers.framing import OVERHEAD, index_records, read_span
from sciml_kernel.data.readers.tfrecord import encode_sample
from sciml_kernel.errors import DataError, UsageError, did_you_mean

__all__ = ["check_data", "describe_data", "make_universes"]

FORMATS = ("tfrecord",)
REQUEST = "request.json"  # in the unfinished folder: what it is to become
LOCK = ".lock"
SECONDS_A_PARTICLE = 1.4e-7  # measured, one core: 64^3 particles in 0.035 s, 128^3 in 0.30 s
WORKER_PAYS_S = 3.0  # a worker starts in about one second


def make_universes(
    out: str | Path,
    *,
    n_sims: int,
    grid: int,
    box_size_mpc_h: float,
    n_particles: int | None = None,
    seed: int = 1,
    method: str = "2lpt",
    fmt: str = "tfrecord",
    samples_per_file: int = 16,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    overwrite: bool = False,
) -> Manifest:
    """Simulate universes with parameters drawn from the paper's priors, and write them with a manifest.

    out: folder to make; may exist if it is empty. n_sims: universes, one sample each. grid: voxels a side.
    box_size_mpc_h: side of each box, Mpc/h. n_particles: particles a side; None: twice the grid, 8 a voxel as in the
    paper. (As many as the grid is eight times less work, but noisier.) seed: universe i is a function of (seed, i), not
    of n_sims, workers or files. method, fmt: "2lpt", "tfrecord". samples_per_file: the last file may hold fewer.
    workers: processes; None: the cores that this process may use, fewer for a short job. progress: called with
    (done, n_sims) after each universe, in this thread. overwrite: replace an earlier data set of ours in `out`.

    A call for a data set that is there already, whole, gives its manifest and does nothing; an unfinished one goes on.

    Raises UsageError for an argument, DataError when `out` holds something else or can't be written. Then `out` is as
    it was; files that were finished stay in `<out>.partial` for the next call.
    """
    n_sims = whole("n_sims", n_sims, at_least=1, meaning="universes")
    grid = whole("grid", grid, at_least=2, meaning="voxels a side")
    n_particles, grid, box = check_sizes(2 * grid if n_particles is None else n_particles, grid, box_size_mpc_h)
    seed = whole("seed", seed, at_least=0)
    samples_per_file = whole("samples_per_file", samples_per_file, at_least=1)
    if workers is None:
        workers = min(available_cores(), 1 + int(n_sims * n_particles**3 * SECONDS_A_PARTICLE / WORKER_PAYS_S))
    workers = whole("workers", workers, at_least=1, at_most=1024)
    for name, value, known in (("method", method, METHODS), ("fmt", fmt, FORMATS)):
        if value not in known:
            raise UsageError(f"{name} {value!r} is not available; {did_you_mean(str(value), known)}")

    out = Path(out).expanduser().absolute()
    request = {
        "n_sims": n_sims,
        "grid": grid,
        "box_size_mpc_h": box,
        "n_particles": n_particles,
        "seed": seed,
        "method": method,
        "format": fmt,
        "samples_per_file": samples_per_file,
    }
    done = _finished(out, request, overwrite=overwrite)
    if done is not None:
        _report(progress, n_sims, n_sims)
        return done
    partial = out.with_name(out.name + ".partial")
    with _locked(partial, request, overwrite=overwrite):
        jobs = [
            Job(str(partial), name, first, last, seed, n_particles, grid, box, method)
            for name, first, last in _files(n_sims, samples_per_file)
        ]
        files = _run(jobs, workers=workers, progress=progress, n_sims=n_sims)
        manifest = _manifest(request, files)
        try:
            text = json.dumps(manifest.to_json(), indent=1, sort_keys=True) + "\n"
            write_atomically(partial / MANIFEST, text.encode())
            (partial / REQUEST).unlink()
        except OSError as error:
            raise DataError(f"can't write {partial / MANIFEST}: {error.strerror}") from error
    _publish(partial, out)
    return manifest


def _files(n_sims: int, samples_per_file: int) -> list[tuple[str, int, int]]:
    """Name, first and last + 1 simulation of each file."""
    n_files = -(-n_sims // samples_per_file)
    return [
        (
            f"universes-{i:05d}-of-{n_files:05d}.tfrecord",
            i * samples_per_file,
            min((i + 1) * samples_per_file, n_sims),
        )
        for i in range(n_files)
    ]


def _run(jobs: list[Job], *, workers: int, progress: Callable[[int, int], None] | None, n_sims: int) -> list[ShardFile]:
    """Make what is missing; take what an earlier call finished, after reading it."""
    files = {job.name: file for job in jobs if (file := _earlier(job)) is not None}
    done = sum(file.n_samples for file in files.values())
    if done:
        _report(progress, done, n_sims)

    def after_sample() -> None:
        nonlocal done
        done += 1
        _report(progress, done, n_sims)

    missing = [job for job in jobs if job.name not in files]
    made = run_jobs(missing, workers=workers, after_sample=after_sample)
    files |= {file.name: file for file in made}
    return [files[job.name] for job in jobs]


def _earlier(job: Job) -> ShardFile | None:
    """The job's file if it is there and every record of it is whole."""
    path = Path(job.folder) / job.name
    n_samples = job.last - job.first
    counts = np.zeros((job.grid, job.grid, job.grid, 1), dtype=np.int16)
    size = OVERHEAD + len(encode_sample(counts, np.zeros(len(PRIORS), dtype=np.float32)))
    if not path.is_file() or path.stat().st_size != size * n_samples:
        return None
    try:
        for span in index_records(path):
            read_span(path, span)
    except DataError:
        return None
    return describe(path, n_samples)


def _report(progress: Callable[[int, int], None] | None, done: int, total: int) -> None:
    if progress is not None:
        progress(done, total)


def _manifest(request: dict[str, Any], files: list[ShardFile]) -> Manifest:
    drawn = [draw(request["seed"], i) for i in range(request["n_sims"])]
    return Manifest(
        format=request["format"],
        grid=request["grid"],
        channels=1,
        box_size_mpc_h=request["box_size_mpc_h"],
        voxel_size_mpc_h=request["box_size_mpc_h"] / request["grid"],
        n_particles=request["n_particles"],
        method=request["method"],
        redshifts=(0.0,),
        cosmology={"omega_b": OMEGA_B, "h": H, "flat": True, "transfer": "Eisenstein & Hu 1998 with wiggles"},
        seed=request["seed"],
        parameters=PRIORS,
        files=tuple(files),
        simulations=tuple(range(request["n_sims"])),
        seeds=tuple(phases for _, phases in drawn),
        targets=tuple(tuple(values[prior.name] for prior in PRIORS) for values, _ in drawn),
        made_with={"numpy": np.__version__},
        request=request,
    )


def _finished(out: Path, request: dict[str, Any], *, overwrite: bool) -> Manifest | None:
    """The manifest if `out` is what is asked for. None: `out` may be written. Else DataError."""
    if not out.exists():
        if out.is_symlink():
            raise DataError(f"{out} is a link to nothing")
        return None
    if not out.is_dir():
        raise DataError(f"{out} is a file; choose another folder")
    try:
        names = sorted(entry.name for entry in out.iterdir())
    except OSError as error:
        raise DataError(f"can't read {out}: {error.strerror}") from None
    if not names:
        return None
    if MANIFEST not in names:
        raise DataError(f"{out} is not empty and no data set of universes (it holds {names[0]}); choose another folder")
    manifest = read_manifest(out)
    own = {MANIFEST, *(file.name for file in manifest.files)}
    if manifest.request == request and own == set(names):
        if all((out / file.name).stat().st_size == file.bytes for file in manifest.files):
            return manifest
        if not overwrite:
            raise DataError(f"{out} holds this data set, but files are truncated; overwrite=True makes it anew")
    if not overwrite:
        raise DataError(f"{out} holds another data set; choose another folder, or overwrite=True")
    foreign = sorted(set(names) - own)
    if foreign:
        raise DataError(f"{out} holds what is not of its data set ({', '.join(foreign[:5])}); nothing was overwritten")
    return None


@contextlib.contextmanager
def _locked(partial: Path, request: dict[str, Any], *, overwrite: bool) -> Iterator[None]:
    """Make or take over the unfinished folder, alone. On failure it goes, unless it holds finished files."""
    there = partial.exists()
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir(exist_ok=True)
        if not os.access(partial, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
        lock = FileLock(partial / LOCK, timeout=0)
        lock.acquire()
    except Timeout:
        raise DataError(f"another process is making this data set (it holds {partial / LOCK})") from None
    except OSError as error:
        raise DataError(f"can't write {partial}: {error.strerror}") from error
    try:
        if there and not overwrite:
            _check_earlier(partial, request)
        _clear(partial, everything=overwrite)
        write_atomically(partial / REQUEST, (json.dumps(request, indent=1, sort_keys=True) + "\n").encode())
        yield
    except BaseException as error:
        kept = sum(1 for _ in partial.glob("universes-*"))
        if kept or (there and isinstance(error, _NotOurs)):
            with contextlib.suppress(OSError):
                _clear(partial, everything=False)
            if kept and isinstance(error, Exception):
                error.add_note(f"{kept} finished files stay in {partial}; the same call goes on from there")
        else:
            shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError):
            raise DataError(f"can't write {partial}: {error.strerror}") from error
        raise
    finally:
        lock.release()
        (partial / LOCK).unlink(missing_ok=True)


class _NotOurs(DataError):
    """What lies in the unfinished folder is not of this request: hands off."""


def _check_earlier(partial: Path, request: dict[str, Any]) -> None:
    names = {entry.name for entry in partial.iterdir()} - {LOCK}
    if not names:
        return
    try:
        earlier = json.loads((partial / REQUEST).read_bytes())
    except FileNotFoundError:
        # Between the manifest and the folder's new name there is no request: then it is finished, and is made again.
        if MANIFEST in names and read_manifest(partial).request == request:
            return
        raise _NotOurs(
            f"{partial} is in the way and not an unfinished data set; remove it or choose another folder"
        ) from None
    except ValueError:
        earlier = None
    if earlier != request:
        raise _NotOurs(
            f"{partial} is an unfinished data set of another request; remove it, or choose another folder or "
            "overwrite=True"
        )


def _clear(partial: Path, *, everything: bool) -> None:
    """Remove half-written files of a call that was killed; with `everything`, all files of ours."""
    for entry in partial.iterdir():
        ours = entry.name.startswith("universes-") or entry.name in (MANIFEST, REQUEST)
        if (entry.name.startswith(".") and ".tmp-" in entry.name) or (everything and ours):
            entry.unlink(missing_ok=True)


def _publish(partial: Path, out: Path) -> None:
    """Give the finished folder its name; an earlier data set there is kept until the new one is in its place."""
    old = out.with_name(f"{out.name}.old-{os.getpid()}")
    try:
        if out.exists() and any(out.iterdir()):
            os.replace(out, old)
        os.replace(partial, out)
    except OSError as error:
        if old.exists() and not out.exists():
            os.replace(old, out)
        raise DataError(
            f"can't rename {partial} to {out}: {error.strerror}; the finished data is in the former"
        ) from error
    shutil.rmtree(old, ignore_errors=True)
