"""Options, interpreters and places: what env/setup decides, and what it says when it can't."""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from sciml_env import existing, installer, options, pythons, tools
from sciml_env.locks import Lock
from sciml_env.main import _check_venv_place
from sciml_env.say import UNFIT, USAGE, SetupError

HERE = Path("/somewhere/project")


def parse(*arguments: str, **environ: str) -> options.Options:
    return options.parse(arguments, project=HERE, environ=environ)


def python(**change: object) -> pythons.Python:
    base = pythons.probe(sys.executable)
    assert base is not None
    return dataclasses.replace(base, **change)  # type: ignore[arg-type]


# --- options


def test_without_options_the_venv_lies_in_the_project_and_mpi_is_the_wheel() -> None:
    asked = options.with_remembered(parse(), {})
    assert asked.venv == HERE / ".venv"
    assert (asked.mpi, asked.gpu, asked.hub) == ("wheel", False, False)


def test_the_option_goes_before_the_variable() -> None:
    assert parse(SCIML_VENV="/v1").venv == Path("/v1")
    assert parse("--venv", "/v2", SCIML_VENV="/v1").venv == Path("/v2")
    assert parse(SCIML_CACHE="/c1").cache == Path("/c1")
    assert parse("--cache", "/c2", SCIML_CACHE="/c1").cache == Path("/c2")


def test_a_prefix_means_the_sites_mpi() -> None:
    assert parse("--mpi-prefix", "/opt/mpi").mpi == "system"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--mpi", "wheel", "--mpi-prefix", "/opt/mpi"), "give one of them"),
        (("--python-version", "3.10"), "write 3.11, 3.12 or 3.13"),
        (("--python", "/opt/conda/bin/python", "--venv", "v"), "--venv"),
        (("--python", "/opt/conda/bin/python", "--mpi", "wheel"), "--mpi wheel"),
    ],
)
def test_contradictions_are_wrong_use(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(SetupError, match=words) as caught:
        parse(*arguments)
    assert caught.value.code == USAGE


def test_an_unknown_option_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("--mpi-prefx", "/opt")
    assert caught.value.code == USAGE
    assert "--mpi-prefx" in capsys.readouterr().err


def test_what_is_not_given_is_taken_from_the_earlier_set_up() -> None:
    earlier = parse("--mpi-prefix", "/opt/mpi", "--hub").chosen()
    again = options.with_remembered(parse(), earlier)
    assert (again.mpi, again.mpi_prefix, again.hub) == ("system", Path("/opt/mpi"), True)
    back = options.with_remembered(parse("--mpi", "wheel"), earlier)
    assert (back.mpi, back.mpi_prefix) == ("wheel", None)


# --- interpreters


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": (3, 10, 4)}, "3.11, 3.12 or 3.13 is needed"),
        ({"version": (3, 14, 0)}, "3.11, 3.12 or 3.13 is needed"),
        ({"libc": "-"}, "Linux with glibc"),
        ({"system": "Darwin"}, "Linux with glibc"),
        ({"machine": "aarch64"}, "x86-64 is needed"),
    ],
)
def test_an_unfit_interpreter_says_why(change: dict[str, object], words: str) -> None:
    assert words in python(**change).unfit()


def test_this_interpreter_is_fit() -> None:
    assert python().unfit() == ""


@pytest.mark.parametrize("given", ["1.2.3", "not json", "exit 127"])
def test_an_interpreter_that_does_not_answer_is_none(tools: Callable[[str, str], Path], given: str) -> None:
    assert pythons.probe(tools("python3.12", given if given.startswith("exit") else f"echo {given}")) is None


def test_a_shim_that_does_not_run_is_passed_over(tmp_path: Path, tools: Callable[[str, str], Path]) -> None:
    # pyenv leaves shims on PATH for versions that are not chosen; they exit 127.
    tools("python3.11", "echo 'pyenv: command not found' >&2; exit 127")
    second = tmp_path / "second"
    second.mkdir()
    (second / "python3.11").symlink_to(sys.executable)
    chosen = pythons.choose(None, {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{second}"})
    assert chosen.executable == str(second / "python3.11")


def test_no_fit_interpreter_lists_what_was_looked_at(tools: Callable[[str, str], Path], tmp_path: Path) -> None:
    shim = tools("python3.12", "exit 127")
    with pytest.raises(SetupError) as caught:
        pythons.choose("3.12", {"PATH": str(tmp_path / "bin")})
    assert f"{shim} does not run" in str(caught.value)
    assert "apt-get install python3" in str(caught.value)


def test_a_wrong_PYTHON_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="PYTHON=/no/such does not run") as caught:
        pythons.choose(None, {"PATH": str(tmp_path), "PYTHON": "/no/such"})
    assert caught.value.code == USAGE


def test_settings_that_send_an_installation_elsewhere_are_dropped_and_a_proxy_is_kept() -> None:
    given = {"PYTHONPATH": "x", "PIP_USER": "1", "PIP_TARGET": "t", "HTTPS_PROXY": "http://proxy:3128", "no_proxy": "l"}
    assert pythons.clean_env(given) == {"HTTPS_PROXY": "http://proxy:3128", "no_proxy": "l"}


# --- how the venv is made


def test_uv_goes_before_venv_and_venv_before_pip() -> None:
    both = python(has_ensurepip=True, has_pip=True)
    assert installer.maker(both, "/usr/bin/uv") == "uv"
    assert installer.maker(both, None) == "venv"
    assert installer.maker(python(has_ensurepip=False, has_pip=True), None) == "pip"


def test_with_nothing_to_make_a_venv_the_one_command_is_said() -> None:
    with pytest.raises(SetupError) as caught:
        installer.maker(python(has_ensurepip=False, has_pip=False, version=(3, 11, 2)), None)
    assert "sudo apt-get install python3.11-venv" in str(caught.value)
    assert caught.value.code == UNFIT


@pytest.mark.parametrize(("said", "found"), [("uv 0.9.1", True), ("uv 0.1.2", False), ("nonsense", False)])
def test_an_old_uv_is_not_used(tools: Callable[[str, str], Path], tmp_path: Path, said: str, found: bool) -> None:
    tools("uv", f"echo '{said}'")
    assert (installer.find_uv({"PATH": str(tmp_path / "bin")}) is not None) is found


def test_the_locked_uv_is_kept_for_a_set_up_without_network(tmp_path: Path, project: Path) -> None:
    lock = Lock(project / "env" / "lock" / "cpu.txt")
    inside = tmp_path / "venv" / "bin" / "uv"
    inside.parent.mkdir(parents=True)
    assert installer.kept_uv(tmp_path / "cache", lock) is None
    installer.keep_uv(tmp_path / "cache", lock, tmp_path / "venv")  # pip was used: nothing to keep
    assert installer.kept_uv(tmp_path / "cache", lock) is None
    inside.write_text("#!/bin/sh\necho uv 0.9\n")
    inside.chmod(0o755)
    installer.keep_uv(tmp_path / "cache", lock, tmp_path / "venv")
    kept = installer.kept_uv(tmp_path / "cache", lock)
    assert kept is not None
    assert Path(kept).read_text() == inside.read_text()


# --- places


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Directories that can't be written. (Root, as CI is, can write everywhere: so it is told, not tried.)"""
    shut: list[Path] = []
    real = tools.writable
    monkeypatch.setattr(tools, "writable", lambda d: real(d) and not any(Path(d).is_relative_to(s) for s in shut))
    return shut


def test_a_home_that_cannot_be_written_sends_the_cache_to_the_project(
    tmp_path: Path, closed: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    project.mkdir()
    assert tools.cache_directory(None, project, {"HOME": str(home)}) == home / ".cache" / "sciml"
    closed.append(home)
    assert tools.cache_directory(None, project, {"HOME": str(home)}) == project / ".cache" / "sciml"
    said = capsys.readouterr().out
    assert "can't be written" in said
    assert "--cache DIR" in said


def test_the_last_resort_is_a_private_directory(
    tmp_path: Path, closed: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    closed += [tmp_path / "home", tmp_path / "project"]
    found = tools.cache_directory(None, tmp_path / "project", {"HOME": str(tmp_path / "home")})
    assert found.parent == tmp_path / "scratch"
    assert found.stat().st_mode & 0o777 == 0o700


def test_a_named_cache_that_cannot_be_written_is_refused(tmp_path: Path, closed: list[Path]) -> None:
    closed.append(tmp_path / "shut")
    with pytest.raises(SetupError, match="--cache DIR"):
        tools.cache_directory(tmp_path / "shut", tmp_path, {})


def test_xdg_cache_home_is_used(tmp_path: Path) -> None:
    assert tools.cache_directory(None, tmp_path, {"XDG_CACHE_HOME": str(tmp_path / "x")}) == tmp_path / "x" / "sciml"


def test_downloads_follow_a_named_cache_but_not_the_users_own_setting(tmp_path: Path, closed: list[Path]) -> None:
    home = {"HOME": str(tmp_path / "home")}
    (tmp_path / "home").mkdir()
    assert tools.download_caches(tmp_path / "c", home, ours=False) == {}
    named = tools.download_caches(tmp_path / "c", {**home, "UV_CACHE_DIR": "/mine"}, ours=True)
    assert named == {"PIP_CACHE_DIR": str(tmp_path / "c" / "pip")}
    closed.append(tmp_path / "home")
    assert tools.download_caches(tmp_path / "c", home, ours=False)["UV_CACHE_DIR"] == str(tmp_path / "c" / "uv")


def test_a_project_that_cannot_be_written_says_which_option_helps(tmp_path: Path, closed: list[Path]) -> None:
    closed.append(tmp_path / "shared")
    with pytest.raises(SetupError, match=r"SCIML_VENV=DIR env/demo") as caught:
        _check_venv_place(tmp_path / "shared" / ".venv")
    assert "--venv DIR" in str(caught.value)


def test_a_directory_that_is_no_venv_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(SetupError, match="is no virtual environment") as caught:
        _check_venv_place(tmp_path)
    assert caught.value.code == USAGE
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_too_little_disk_is_said_before_a_download(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="GB free; about 1000000000 GB are needed"):
        tools.check_disk(tmp_path / "not" / "yet", needed=10**18)


# --- the compiler


def test_no_compiler_says_the_apt_line(tools: Callable[[str, str], Path], tmp_path: Path) -> None:
    from sciml_env.tools import check_compiler

    with pytest.raises(SetupError) as caught:
        check_compiler({"PATH": str(tmp_path / "bin")})
    assert "g++ and make not found" in str(caught.value)
    assert "sudo apt-get install g++ make" in str(caught.value)
    assert "Nothing was downloaded" in str(caught.value)


def test_a_compiler_that_is_too_old_is_named(tools: Callable[[str, str], Path], tmp_path: Path) -> None:
    from sciml_env.tools import check_compiler

    tools("make", "exit 0")
    old = tools("g++", "echo 'unrecognized option -std=c++17' >&2; exit 1")
    with pytest.raises(SetupError, match=r"unrecognized option -std=c\+\+17"):
        check_compiler({"PATH": str(tmp_path / "bin"), "CXX": str(old)})


def test_gpu_without_nvcc_is_refused(tools: Callable[[str, str], Path], tmp_path: Path) -> None:
    from sciml_env.tools import check_cuda

    with pytest.raises(SetupError, match="no nvcc on PATH"):
        check_cuda({"PATH": str(tmp_path / "bin")})
    tools("nvcc", "exit 0")
    check_cuda({"PATH": str(tmp_path / "bin")})


# --- an existing environment


def test_an_interpreter_of_the_operating_system_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    # PEP 668: EXTERNALLY-MANAGED beside the standard library, and no venv.
    monkeypatch.setattr(existing, "probe", lambda path: python(managed=True, prefix="/usr", base_prefix="/usr"))
    with pytest.raises(SetupError, match="PEP 668") as caught:
        existing.check(Path("/usr/bin/python3"), project, os.environ)
    assert "without --python" in str(caught.value)


def test_everything_that_an_existing_environment_lacks_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, project: Path
) -> None:
    import venv

    venv.create(tmp_path / "empty", with_pip=False)
    with pytest.raises(SetupError) as caught:
        existing.check(tmp_path / "empty" / "bin" / "python", project, {"PATH": ""})
    text = str(caught.value)
    for name in ("tensorflow>=2.21,<2.22", "mpi4py>=4", "ipyparallel>=9.0", "setuptools", "cmake>=3.21,<4"):
        assert name in text
    assert "environment.yml" in text
    assert f"-m pip install --require-hashes -r '{project}/env/lock/cpu.txt'" in text
    assert "Nothing was changed" in text


def test_a_cmake_that_refuses_horovod_is_named(tools: Callable[[str, str], Path], tmp_path: Path) -> None:
    environ = {"PATH": str(tmp_path / "bin")}
    assert existing._cmake_problem(tmp_path, environ) == "missing"
    tools("cmake", "echo 'cmake version 4.1.0'")
    assert existing._cmake_problem(tmp_path, environ) == "is 4.1"
    tools("cmake", "echo 'cmake version 3.31.6'")
    assert existing._cmake_problem(tmp_path, environ) == ""
