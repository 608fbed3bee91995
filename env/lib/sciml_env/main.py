"""The story of a set-up: decide, check, then install step by step. Everything is checked before the first download."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from sciml_env import existing, horovod, installer, mpi, options, pythons, ranks, record, tools
from sciml_env.locks import Lock
from sciml_env.options import Options
from sciml_env.pythons import Python
from sciml_env.say import USAGE, Log, SetupError, fail, note, say, step

__all__ = ["main"]

PROJECT = Path(__file__).resolve().parents[3]
KEPT_LOGS = 10


def main(arguments: Sequence[str]) -> int:
    signal.signal(signal.SIGTERM, _terminated)
    try:
        asked = options.parse(arguments, project=PROJECT, environ=os.environ)
        if asked.python is not None:
            return _into_existing(asked, PROJECT)
        return _set_up(asked, PROJECT)
    except SetupError as error:
        return fail(error)
    except KeyboardInterrupt:
        return fail(SetupError("interrupted; run it again to go on from here", 130))
    except OSError as error:
        return fail(SetupError(f"{error}\n(a full disk, a quota or a directory that can't be written?)", 1))


def _terminated(number: int, frame: object) -> None:
    raise SetupError("ended by SIGTERM; run it again to go on from here", 143)


def _lock(asked: Options, project: Path) -> Lock:
    return Lock(project / "env" / "lock" / ("gpu.txt" if asked.gpu else "hub.txt" if asked.hub else "cpu.txt"))


def _open_log(cache: Path) -> Log:
    logs = cache / "logs"
    for old in sorted(logs.glob("setup-*.log"))[:-KEPT_LOGS]:
        old.unlink(missing_ok=True)
    return Log(logs / f"setup-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}.log")


# --- the usual road: a venv


def _set_up(asked: Options, project: Path) -> int:
    start = time.monotonic()
    asked = options.with_remembered(asked, record.read(asked.venv, "options"))
    lock = _lock(asked, project)
    # A person who only reads a shared clone uses what its owner installed, which is editable.
    editable = record.is_editable(asked.venv) or tools.writable(project)
    wanted = record.fingerprint(asked, lock, project, editable=editable)
    if not asked.rebuild and record.up_to_date(asked, wanted):
        say(f"env/setup: {asked.venv} is up to date ({time.monotonic() - start:.1f} s)")
        return 0
    _check_venv_place(asked.venv)
    cache = tools.cache_directory(asked.cache, project, os.environ)
    name = hashlib.sha256(os.fsencode(os.path.realpath(asked.venv))).hexdigest()[:16]
    with horovod.exclusive(cache / "locks" / f"{name}.lock", str(asked.venv)):
        if not asked.rebuild and record.up_to_date(asked, wanted):  # the other one, waited for, did it
            say(f"env/setup: {asked.venv} is up to date")
            return 0
        _make(asked, project, lock, cache, wanted, editable=editable)
    say(f"env/setup: ready in {time.monotonic() - start:.0f} s. Next: env/demo, env/test, {asked.venv}/bin/sciml lab")
    return 0


def _check_venv_place(venv: Path) -> None:
    if venv.exists() and not (venv / "pyvenv.cfg").exists() and any(venv.iterdir()):
        raise SetupError(f"--venv {venv} exists and is no virtual environment; name another directory", USAGE)
    if tools.writable(venv):
        return
    if venv.exists():
        raise SetupError(
            f"{venv} is out of date, and you can't write there. Ask its owner to run env/setup, or make your own:\n"
            "  env/setup --venv DIR   (then SCIML_VENV=DIR env/demo)"
        )
    raise SetupError(
        f"{venv} can't be made: {venv.parent} can't be written by you. Name a place that can:\n"
        "  env/setup --venv DIR   (then SCIML_VENV=DIR env/demo)"
    )


def _base(asked: Options, environ: Mapping[str, str]) -> tuple[Python, bool]:
    """The interpreter to use, and whether the venv that exists can be kept."""
    venv = asked.venv
    finished = record.read(venv, "installed") and not asked.rebuild
    if finished and not environ.get("PYTHON"):
        current = pythons.probe(venv / "bin" / "python")
        moved = record.read(venv, "installed").get("venv") != str(venv)
        fits = current is not None and not current.unfit() and not moved
        if current is not None and fits and asked.python_version in (None, "{}.{}".format(*current.version)):
            return current, True
    chosen = pythons.choose(asked.python_version, environ)
    if finished:
        current = pythons.probe(venv / "bin" / "python")
        same = current is not None and (current.version, current.base_prefix) == (chosen.version, chosen.base_prefix)
        if same and record.read(venv, "installed").get("venv") == str(venv):
            return current or chosen, True
    return chosen, False


def _tensorflow(lock: Lock, gpu: bool | None) -> str:
    name = "tensorflow" if gpu else "tensorflow-cpu"
    return f"{name} {lock.version(name)}"


def _make(
    asked: Options, project: Path, lock: Lock, cache: Path, wanted: Mapping[str, object], *, editable: bool
) -> None:
    environ = pythons.clean_env()
    venv = asked.venv
    log = _open_log(cache)
    say(f"env/setup: {venv}, packages of env/lock/{lock.path.name}, MPI: {asked.mpi}; log {log.path}")

    base, keep = _base(asked, environ)
    if record.read(venv, "installed"):
        installer.keep_uv(cache, lock, venv)
    uv = installer.find_uv(environ) or installer.kept_uv(cache, lock)
    if not keep:
        if asked.offline and uv is None:
            raise SetupError(
                f"--offline: no uv on PATH, and no earlier set-up kept one in {cache / 'bin'}; run once online"
            )
        installer.maker(base, uv)
        tools.check_disk(venv)
    site_mpi = None
    if asked.mpi == "system":
        with step("Asking the site's MPI"):
            site_mpi = mpi.site_mpi(asked.mpi_prefix, environ, not_in=venv / "bin", check_ranks=asked.check_ranks)
            note(f"{site_mpi.library_version}; {site_mpi.libmpi}; {site_mpi.mpiexec}")
    parts = horovod.key_parts(
        env_directory=project / "env",
        python=base,
        tensorflow=_tensorflow(lock, asked.gpu),
        mpi=site_mpi.identity() if site_mpi else mpi.wheel_identity(lock.version("mpich")),
        gpu=bool(asked.gpu),
        environ=environ,
    )
    wheel = horovod.cached(cache, parts)
    if wheel is None:
        tools.check_compiler(environ)
        tools.scratch_directory()
        if asked.gpu:
            tools.check_cuda(environ)

    record.remove(venv, "stamp")
    environ |= tools.download_caches(cache, environ, ours=asked.cache is not None)
    if not keep:
        if venv.exists():
            # Without the mark of a finished installation, files of a package may be missing that pass for installed.
            why = "as asked" if asked.rebuild else "it is not whole, was moved, or is of another Python"
            note(f"{venv} is made anew, {why} (downloads are kept)")
            shutil.rmtree(venv)
        with step(f"Making the venv from {base.executable} ({base.text})"):
            installer.make_venv(venv, base, uv, log, environ)
    # From here on a run without options goes on with these, also when this one fails.
    record.write(venv, "options", asked.chosen())
    do = installer.Installer.for_venv(venv, base, lock, log=log, env=environ, uv=uv, offline=asked.offline)
    current = pythons.probe(venv / "bin" / "python")
    if current is None:
        raise SetupError(f"{venv}/bin/python does not run; see {log.path}", 1)

    requirements = lock.without("mpich") if site_mpi else lock.text
    mark = {"requirements": hashlib.sha256(requirements.encode()).hexdigest(), "venv": str(venv)}
    if record.read(venv, "installed") != mark:
        tool = "uv" if do.uv else "pip"
        with step(f"Installing {len(lock.blocks)} locked packages with {tool} (about 3 GB when the cache is empty)"):
            record.remove(venv, "installed")
            if site_mpi:
                do.uninstall("mpich")
            else:
                mpi.unpoint_mpi4py(venv)
            do.install_locked(requirements, what="installing the locked packages")
            record.write(venv, "installed", mark)
            installer.keep_uv(cache, lock, venv)

    found_mpi = site_mpi or mpi.wheel_mpi(venv)
    if site_mpi:
        mpi.point_mpi4py(venv, site_mpi)
    wheel = _horovod(wheel, cache, parts, asked, project, venv, current, found_mpi, log, environ)
    with step("Installing Horovod and this package"):
        do.install_wheel(wheel.path)
        do.install_project(project, editable=editable)
        if not editable:
            note(f"{project} can't be written: the package was copied; run env/setup again after changes there")
    _finish(venv, current, found_mpi, wheel, lock, log, environ, check=asked.check_ranks, sys_prefix=venv)
    record.write(venv, "stamp", {"fingerprint": wanted, "python": current.text})


def _horovod(
    wheel: horovod.Wheel | None,
    cache: Path,
    parts: Mapping[str, object],
    asked: Options,
    project: Path,
    prefix: Path,
    python: Python,
    found_mpi: mpi.Mpi,
    log: Log,
    environ: Mapping[str, str],
) -> horovod.Wheel:
    if wheel is not None:
        note(f"Horovod {parts['horovod']}: wheel from the cache, {wheel.path.parent.name}")
        return wheel
    one_at_a_time = cache / "locks" / f"{horovod.wheel_key(parts)}.lock"
    title = f"Building Horovod {parts['horovod']} against {parts['tensorflow']} and {found_mpi.library_version}"
    with step(f"{title} (minutes)"), horovod.exclusive(one_at_a_time, "the same Horovod wheel"):
        return horovod.cached(cache, parts) or horovod.build(
            cache=cache,
            env_directory=project / "env",
            prefix=prefix,
            python=python,
            mpi=found_mpi,
            parts=parts,
            gpu=bool(asked.gpu),
            log=log,
            env=environ,
            offline=asked.offline,
        )


def _finish(
    prefix: Path,
    python: Python,
    found_mpi: mpi.Mpi,
    wheel: horovod.Wheel,
    lock: Lock | None,
    log: Log,
    environ: Mapping[str, str],
    *,
    check: bool,
    sys_prefix: Path,
) -> None:
    executable = sys_prefix / "bin" / "python"
    ranks.check_linked(Path(python.site), found_mpi)
    record.write(prefix, "environment", record.environment(mpi=found_mpi, wheel=wheel, lock=lock, python=python))
    with step("Installing the Jupyter kernel `sciml`"):
        log.run(
            [str(executable), "-P", "-m", "sciml_kernel.jupyter.kernelspec", "install", "--sys-prefix"],
            what="installing the kernel",
            env=environ,
        )
    if check:
        with step("Trying two MPI ranks"):
            ranks.check_ranks(executable, found_mpi, log, environ)


# --- the other road: an interpreter that exists


def _into_existing(asked: Options, project: Path) -> int:
    start = time.monotonic()
    assert asked.python is not None
    environ = pythons.clean_env()
    python, tensorflow = existing.check(asked.python, project, environ)
    prefix = Path(python.prefix)
    cache = tools.cache_directory(asked.cache, project, os.environ)
    log = _open_log(cache)
    say(f"env/setup: into {prefix} (Python {python.text}, {tensorflow}); log {log.path}")
    with step("Asking its MPI"):
        where = existing.mpi_prefix(python, asked.mpi_prefix, environ)
        found = mpi.site_mpi(where, environ, check_ranks=asked.check_ranks)
        note(f"{found.library_version}; {found.libmpi}; {found.mpiexec}")
    parts = horovod.key_parts(
        env_directory=project / "env",
        python=python,
        tensorflow=tensorflow,
        mpi=found.identity(),
        gpu=bool(asked.gpu),
        environ=environ,
    )
    wheel = horovod.cached(cache, parts)
    if wheel is None:
        tools.check_compiler(environ)
        if asked.gpu:
            tools.check_cuda(environ)
    wheel = _horovod(wheel, cache, parts, asked, project, prefix, python, found, log, environ)
    with step("Installing Horovod and this package"):
        do = existing.installer(python, log, environ, offline=asked.offline)
        do.install_wheel(wheel.path)
        do.install_project(project, editable=tools.writable(project))
    _finish(prefix, python, found, wheel, None, log, environ, check=asked.check_ranks, sys_prefix=prefix)
    say(f"env/setup: ready in {time.monotonic() - start:.0f} s.  Next: {prefix}/bin/sciml doctor")
    return 0
