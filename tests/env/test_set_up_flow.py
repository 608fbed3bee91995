"""`env/setup` from end to end, on the machine of `site_of_tests.py`."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from sciml_env.locks import Lock
from site_of_tests import KERNELSPEC, RANK, SITE, Result, Site

from sciml_kernel.pool.mpi import find_mpi


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
