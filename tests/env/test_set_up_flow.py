"""`env/setup` from end to end, with a fake uv that "installs" in no time and a tiny library in the place of MPI.

What is real: the shell script, the interpreter, the venv, the order of the steps, the dynamic linker, the files that
are left. What is fake: the packages, Horovod's build (a wheel lies in the cache), mpiexec.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sciml_env import horovod, mpi, pythons
from sciml_env.locks import Lock

from sciml_kernel.pool.mpi import find_mpi

BASE = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info[1]}"
SITE = f"lib/python3.{sys.version_info[1]}/site-packages"
FAKE_UV = r"""
echo "uv $*" >> "$FAKE/calls"
[ -z "${https_proxy:-}" ] || echo "proxy $https_proxy" >> "$FAKE/calls"
case "$1 ${2:-}" in
"--version "*) echo "uv 0.9.1" ;;
"venv "*) for last; do :; done; exec "@BASE@" -m venv --without-pip "$last" ;;
"pip install")
  [ ! -e "$FAKE/break" ] || { rm "$FAKE/break"; echo "connection reset by peer"; exit 1; }
  python=$4; venv=${python%/bin/python}
  for last; do :; done
  case "$*" in
  *--require-hashes*)
    [ ! -e "$FAKE/own_certificate" ] || [ -n "${UV_SYSTEM_CERTS:-}" ] || { echo "invalid peer certificate"; exit 2; }
    cp "$last" "$FAKE/requirements.txt"
    if grep -q '^mpich==' "$last"; then
      cp "$FAKE/libmpi.so.12" "$venv/lib/"; ln -sf libmpi.so.12 "$venv/lib/libmpi.so"
      cp "$FAKE/mpiexec" "$venv/bin/"; cp "$FAKE/mpiexec" "$venv/bin/mpicxx"
    fi ;;
  *.whl) mkdir -p "$venv/@SITE@/horovod/tensorflow"; cp "$FAKE/mpi_lib.so" "$venv/@SITE@/horovod/tensorflow/" ;;
  *--editable*) echo "$last" > "$venv/@SITE@/project.pth" ;;
  *) cp -r "$last/sciml_kernel" "$venv/@SITE@/" ;;
  esac ;;
"pip uninstall") echo gone ;;
esac
"""
KERNELSPEC = """
import pathlib, sys
assert sys.argv[1:] == ["install", "--sys-prefix"], sys.argv
target = pathlib.Path(sys.prefix) / "share/jupyter/kernels/sciml"
target.mkdir(parents=True, exist_ok=True)
(target / "kernel.json").write_text("{}")
"""
RANK = {"mpi4py": "Fake MPI 12", "size": 2, "horovod": 2, "same": True, "mean": 1.5}

Result = subprocess.CompletedProcess[str]


class Site:
    """A clone of the project and a machine on which `env/setup` can run in a second."""

    def __init__(self, clone: Path, fake: Path, run: Callable[..., Result], bare_env: dict[str, str]) -> None:
        self.clone, self.fake, self._run = clone, fake, run
        self.venv = clone / ".venv"
        self.cache = Path(bare_env["HOME"]) / ".cache" / "sciml"

    def setup(self, *options: str, **extra: str) -> Result:
        environ = {"FAKE": str(self.fake), "SCIML_SETUP_RETRY_S": "0.01", **extra}
        return self._run(self.clone / "env" / "setup", *options, extra=environ)

    def calls(self) -> list[str]:
        file = self.fake / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return [line for line in lines if line != "uv --version"]

    def told(self, name: str) -> dict[str, object]:
        value: dict[str, object] = json.loads((self.venv / "etc" / "sciml" / f"{name}.json").read_text())
        return value


@pytest.fixture
def site(
    tmp_path: Path, clone: Path, tools: Callable[[str, str], Path], run: Callable[..., Result], bare_env: dict[str, str]
) -> Site:
    fake = tmp_path / "fake"
    fake.mkdir()
    tools(BASE.name, f'exec "{BASE}" "$@"')
    tools("uv", FAKE_UV.replace("@BASE@", str(BASE)).replace("@SITE@", SITE))
    for name in ("cp", "ln", "grep", "timeout"):
        found = shutil.which(name)
        if found:
            (tmp_path / "bin" / name).symlink_to(found)
    # A library that only knows its version, and "Horovod" that is linked to it as the real one is.
    (fake / "mpi.c").write_text(
        "#include <string.h>\nint MPI_Get_library_version(char *t, int *n)"
        ' { strcpy(t, "Fake MPI\\t12\\nmore"); *n = 11; return 0; }\n'
    )
    (fake / "lib.c").write_text(
        "int MPI_Get_library_version(char *, int *);\nint f() { return MPI_Get_library_version(0, 0); }\n"
    )
    gcc = ["g++", "-x", "c", "-shared", "-fPIC"]
    subprocess.run([*gcc, "-Wl,-soname,libmpi.so.12", "mpi.c", "-o", "libmpi.so.12"], cwd=fake, check=True)
    subprocess.run(
        [*gcc, "lib.c", "-x", "none", "libmpi.so.12", "-Wl,-rpath,$ORIGIN/../../../..", "-o", "mpi_lib.so"],
        cwd=fake,
        check=True,
    )
    (fake / "mpiexec").write_text("#!/bin/sh\n" + f"echo 'RANK {json.dumps(RANK)}'\n" * 2)
    (fake / "mpiexec").chmod(0o755)
    (clone / "sciml_kernel" / "jupyter" / "__init__.py").write_text("")
    (clone / "sciml_kernel" / "jupyter" / "kernelspec.py").write_text(KERNELSPEC)
    # Horovod was built before.
    base = pythons.probe(BASE)
    assert base is not None
    lock = Lock(clone / "env" / "lock" / "cpu.txt")
    parts = horovod.key_parts(
        env_directory=clone / "env",
        python=base,
        tensorflow=f"tensorflow-cpu {lock.version('tensorflow-cpu')}",
        mpi=mpi.wheel_identity(lock.version("mpich")),
        gpu=False,
        environ={},
    )
    wheel = fake / "horovod-0.28.1-cp3-none-any.whl"
    wheel.write_bytes(b"wheel")
    result = Site(clone, fake, run, bare_env)
    horovod._put(result.cache, parts, wheel)
    return result


def test_a_fresh_clone_is_set_up_and_the_second_run_does_nothing(site: Site) -> None:
    first = site.setup()
    assert first.returncode == 0, first.stdout + first.stderr
    assert "ready in" in first.stdout
    calls = site.calls()
    assert [call.split(" -")[0] for call in calls] == ["uv venv", "uv pip install", "uv pip install", "uv pip install"]
    assert (site.venv / "share/jupyter/kernels/sciml/kernel.json").exists()
    assert (site.venv / SITE / "project.pth").read_text().strip() == str(site.clone)

    second = site.setup()
    assert (second.returncode, second.stderr) == (0, "")
    assert "up to date" in second.stdout
    assert site.calls() == []


def test_each_step_says_how_long_it_took(site: Site) -> None:
    said = site.setup().stdout
    steps = said.count("\n== ") + said.startswith("== ")
    assert steps >= 5
    assert said.count("done in ") == steps


def test_the_record_names_the_mpi_of_the_venv(site: Site) -> None:
    site.setup()
    told = site.told("environment")
    assert told["schema"] == 1
    assert told["mpi"] == {
        "kind": "wheel",
        "vendor": None,
        "mpiexec": str(site.venv / "bin" / "mpiexec"),
        "libmpi": str(site.venv / "lib" / "libmpi.so.12"),
        "library_version": "Fake MPI 12",
    }
    lock = Lock(site.clone / "env" / "lock" / "cpu.txt")
    assert told["lock"] == {"name": "cpu.txt", "sha256": lock.sha256}
    assert isinstance(told["horovod"], dict)
    assert told["horovod"]["version"] == "0.28.1"
    assert told["horovod"]["built_with"]["tf"] == lock.version("tensorflow-cpu")
    # What the package itself makes of it.
    assert find_mpi(str(site.venv)).mpiexec == str(site.venv / "bin" / "mpiexec")


def test_everything_can_be_read_by_others(site: Site) -> None:
    site.setup()
    for name in ("environment", "stamp", "installed"):
        assert (site.venv / "etc" / "sciml" / f"{name}.json").stat().st_mode & 0o044 == 0o044


def test_nothing_is_written_beside_the_code_or_into_home(site: Site, bare_env: dict[str, str]) -> None:
    before = sorted(site.clone.rglob("*"))
    site.setup()
    made = [path for path in site.clone.rglob("*") if path not in before and site.venv not in (path, *path.parents)]
    # The package itself may be compiled on import by the kernel's installation.
    assert [path for path in made if "__pycache__" not in path.parts] == []
    assert [path for path in made if "env" in path.relative_to(site.clone).parts] == []
    assert os.listdir(bare_env["HOME"]) == [".cache"]
    assert os.listdir(bare_env["TMPDIR"]) == []


def test_a_broken_download_is_resumed(site: Site) -> None:
    (site.fake / "break").touch()
    done = site.setup()
    assert done.returncode == 0
    assert "connection reset by peer" in done.stdout


def test_a_venv_that_was_left_half_made_is_made_anew(site: Site) -> None:
    assert site.setup().returncode == 0
    (site.venv / "etc/sciml/installed.json").unlink()  # what an interrupt in mid-installation leaves
    (site.venv / "etc/sciml/stamp.json").unlink()
    (site.venv / SITE / "half").mkdir()
    site.calls()
    done = site.setup()
    assert done.returncode == 0
    assert "made anew" in done.stdout
    assert not (site.venv / SITE / "half").exists()
    assert site.calls()[0].startswith("uv venv")


def test_a_set_up_that_failed_late_is_finished_without_a_new_venv(site: Site) -> None:
    (site.clone / "sciml_kernel/jupyter/kernelspec.py").write_text("raise SystemExit('no kernel')")
    failed = site.setup()
    assert failed.returncode == 1
    assert "no kernel" in failed.stderr
    assert "log" in failed.stderr
    (site.clone / "sciml_kernel/jupyter/kernelspec.py").write_text(KERNELSPEC)
    site.calls()
    assert site.setup().returncode == 0
    assert not any(call.startswith("uv venv") or "--require-hashes" in call for call in site.calls())


def test_a_changed_lock_is_installed_again(site: Site) -> None:
    site.setup()
    site.calls()
    lock = site.clone / "env/lock/cpu.txt"
    lock.write_text(lock.read_text() + "\n# changed\n")
    done = site.setup()
    assert done.returncode == 0
    calls = site.calls()
    assert sum("--require-hashes" in call for call in calls) == 1
    assert not any(call.startswith("uv venv") for call in calls)


def test_a_venv_that_was_moved_is_made_anew(site: Site, tmp_path: Path) -> None:
    # Its scripts start with the old path.
    site.setup()
    site.venv.rename(tmp_path / "moved")
    site.calls()
    done = site.setup("--venv", str(tmp_path / "moved"))
    assert done.returncode == 0
    assert site.calls()[0].startswith("uv venv")


def test_a_proxy_reaches_the_installer(site: Site) -> None:
    site.setup(https_proxy="http://proxy.example:3128")
    assert "proxy http://proxy.example:3128" in site.calls()


def test_behind_a_proxy_with_its_own_certificate_the_systems_certificates_are_used(site: Site) -> None:
    (site.fake / "own_certificate").touch()
    done = site.setup()
    assert done.returncode == 0
    assert "with the system's certificates" in done.stdout
    # Asked once without and once with them: waiting would not have helped.
    assert sum("--require-hashes" in call for call in site.calls()) == 2


def test_packages_are_installed_with_hashes_and_byte_compiled(site: Site) -> None:
    site.setup(PYTHONDONTWRITEBYTECODE="1")
    (locked,) = [call for call in site.calls() if "--require-hashes" in call]
    assert "--compile-bytecode" in locked
    assert "mpich==" in (site.fake / "requirements.txt").read_text()


def test_no_compiler_stops_before_anything_is_downloaded(site: Site) -> None:
    shutil.rmtree(site.cache / "wheels")  # so Horovod must be built
    done = site.setup()
    assert done.returncode == 3
    assert "sudo apt-get install g++ make" in done.stderr
    assert site.calls() == []
    assert not site.venv.exists()


def test_a_launcher_that_starts_worlds_of_one_fails_the_set_up(site: Site) -> None:
    alone = json.dumps({**RANK, "size": 1, "horovod": 1})
    (site.fake / "mpiexec").write_text(f"#!/bin/sh\necho 'RANK {alone}'\necho 'RANK {alone}'\n")
    done = site.setup()
    assert done.returncode == 3
    assert "a world of 1 (Horovod: 1) instead of 2 ranks" in done.stderr
    assert not (site.venv / "etc/sciml/stamp.json").exists()


def test_a_horovod_of_another_library_fails_the_set_up(site: Site, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(site.fake / "libmpi.so.12", other)
    done = site.setup(LD_LIBRARY_PATH=str(other))
    assert done.returncode == 3
    assert f"Horovod would load {other}/libmpi.so.12" in done.stderr


def test_two_set_ups_at_once_make_one_venv(site: Site) -> None:
    import concurrent.futures

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: site.setup(), range(2)))
    assert [done.returncode for done in both] == [0, 0]
    assert sum(call.startswith("uv venv") for call in site.calls()) == 1


def test_without_a_kernelspec_the_set_up_fails(site: Site) -> None:
    (site.clone / "sciml_kernel/jupyter/kernelspec.py").unlink()
    done = site.setup()
    assert done.returncode == 1
    assert "kernelspec" in done.stderr


def test_no_python_says_what_to_install(
    clone: Path, run: Callable[..., Result], tools: Callable[[str, str], Path]
) -> None:
    tools("python3", "exit 127")
    done = run(clone / "env" / "setup")
    assert done.returncode == 3
    assert "sudo apt-get install python3 python3-venv" in done.stderr


def test_wrong_options_end_with_2(clone: Path, run: Callable[..., Result], real_python: Path) -> None:
    for options in (["--nonsense"], ["--mpi", "lam"], ["--python-version", "2.7"]):
        done = run(clone / "env" / "setup", *options)
        assert done.returncode == 2, options
        assert done.stdout == ""
    assert not (clone / ".venv").exists()


# --- env/demo and env/test


def _finished(site: Site) -> None:
    assert site.setup().returncode == 0


def test_demo_runs_the_tour_and_says_where_the_results_lie(site: Site) -> None:
    _finished(site)
    sciml = site.venv / "bin" / "sciml"
    sciml.write_text(
        '#!/bin/sh\necho "sciml $*"\nd="$SCIML_RUNS/r1"; mkdir -p "$d/figures"\n'
        'touch "$d/record.json" "$d/notebook.ipynb" "$d/notebook.html" "$d/figures/density.png"\n'
    )
    sciml.chmod(0o755)
    done = site._run(site.clone / "env" / "demo", "-p", "n_ranks", "2", cwd=site.fake)
    assert done.returncode == 0, done.stderr
    assert f"sciml batch {site.clone}/notebooks/00_tour.ipynb -p n_ranks 2" in done.stdout
    for name in ("record    ", "notebook.html", "notebook.ipynb", "figures/density.png"):
        assert name in done.stdout
    assert str(site.clone / "papermill_runs" / "r1") in done.stdout


@pytest.mark.parametrize("code", [1, 2, 130])
def test_demo_ends_with_the_code_of_the_run(site: Site, code: int) -> None:
    _finished(site)
    (site.venv / "bin" / "sciml").write_text(f"#!/bin/sh\nexit {code}\n")
    (site.venv / "bin" / "sciml").chmod(0o755)
    done = site._run(site.clone / "env" / "demo")
    assert done.returncode == code
    assert f"failed (exit code {code})" in done.stdout


def test_demo_and_test_stop_when_the_set_up_fails(site: Site) -> None:
    shutil.rmtree(site.cache / "wheels")
    for name in ("demo", "test"):
        done = site._run(site.clone / "env" / name, extra={"FAKE": str(site.fake)})
        assert done.returncode == 3
        assert "g++" in done.stderr


def test_a_skip_fails_in_ci_and_not_elsewhere(tmp_path: Path, project: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\ndef test_a(): pass\ndef test_b(): pytest.skip('no browser')\n"
        "@pytest.mark.xfail\ndef test_c(): assert False\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", "."]
    environ = {**os.environ, "PYTHONPATH": str(project / "env" / "lib")}
    by_hand = subprocess.run([*command, "test_it.py"], cwd=tmp_path, capture_output=True, text=True)
    assert by_hand.returncode == 0, by_hand.stdout
    in_ci = subprocess.run(
        [*command, "-p", "strict_skips", "test_it.py"], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert in_ci.returncode == 1
    assert "no browser" in in_ci.stdout
    assert "test_c" not in in_ci.stdout.split("counted as failures")[1]


@pytest.mark.parametrize("name", ["env/setup", "env/demo", "env/test", "env/lock/update", ".ci/run"])
def test_the_scripts_are_whole_and_executable(project: Path, name: str) -> None:
    assert os.access(project / name, os.X_OK)
    assert subprocess.run(["bash", "-n", str(project / name)]).returncode == 0


def test_a_venv_keeps_its_options_also_when_the_set_up_failed(site: Site) -> None:
    hub = Lock(site.clone / "env" / "lock" / "hub.txt")
    (site.clone / "sciml_kernel/jupyter/kernelspec.py").write_text("raise SystemExit('no kernel')")
    assert site.setup("--hub").returncode == 1
    (site.clone / "sciml_kernel/jupyter/kernelspec.py").write_text(KERNELSPEC)
    again = site.setup()
    assert again.returncode == 0
    assert "env/lock/hub.txt" in again.stdout
    assert site.told("environment")["lock"] == {"name": "hub.txt", "sha256": hub.sha256}


def _shut(clone: Path) -> None:
    """Make the clone look as it does to a person who can only read it. (Root, as CI is, could write all the same.)"""
    with (clone / "env" / "lib" / "sciml_env" / "tools.py").open("a") as file:
        file.write(
            "\n\n_anywhere = writable\n\n\ndef writable(directory):  # noqa: F811\n"
            f"    return not Path(directory).is_relative_to({str(clone)!r}) and _anywhere(directory)\n"
        )


def test_a_second_user_of_a_shared_clone_has_nothing_to_do(site: Site, tmp_path: Path) -> None:
    assert site.setup().returncode == 0
    _shut(site.clone)
    site.calls()
    home = tmp_path / "second home"
    home.mkdir()
    done = site.setup(HOME=str(home))
    assert (done.returncode, done.stderr) == (0, "")
    assert "up to date" in done.stdout
    assert (site.calls(), os.listdir(home)) == ([], [])


def test_a_second_user_is_told_when_the_owner_must_act(site: Site) -> None:
    assert site.setup().returncode == 0
    _shut(site.clone)
    lock = site.clone / "env/lock/cpu.txt"
    lock.write_text(lock.read_text() + "\n# changed\n")
    done = site.setup()
    assert done.returncode == 3
    assert "Ask its owner to run env/setup" in done.stderr


def test_from_a_clone_that_cannot_be_written_the_package_is_copied(site: Site, tmp_path: Path) -> None:
    _shut(site.clone)
    site.venv = tmp_path / "my venv"
    done = site.setup("--venv", str(site.venv))
    assert done.returncode == 0, done.stderr
    assert (site.venv / SITE / "sciml_kernel" / "__init__.py").exists()
    assert not (site.venv / SITE / "project.pth").exists()
    again = site.setup("--venv", str(site.venv))
    assert "up to date" in again.stdout
    (site.clone / "sciml_kernel" / "new.py").write_text("")
    assert "ready in" in site.setup("--venv", str(site.venv)).stdout
    assert (site.venv / SITE / "sciml_kernel" / "new.py").exists()


def test_offline_without_uv_is_refused_before_the_venv_is_thrown_away(site: Site, tmp_path: Path) -> None:
    assert site.setup().returncode == 0
    (tmp_path / "bin" / "uv").unlink()
    done = site.setup("--offline", "--rebuild")
    assert done.returncode == 3
    assert "run once online" in done.stderr
    assert "up to date" in site.setup().stdout
