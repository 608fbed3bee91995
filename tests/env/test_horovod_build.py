"""The patch, the wheel cache and the settings of the build."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from sciml_env import horovod, mpi, pythons, ranks
from sciml_env.say import SetupError

# Lines 74 to 82 of horovod/tensorflow/CMakeLists.txt of the 0.28.1 sdist, with as many lines before as the real file.
CONTEXT = """\
    set(TF_EIGEN_DONE)

# TF SOURCES
list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/mpi_ops.cc")
list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")

# Create library
set_output_dir()
add_library(${TF_TARGET_LIB} SHARED ${SOURCES} ${TF_SOURCES})
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    directory = tmp_path / "horovod-0.28.1" / "horovod" / "tensorflow"
    directory.mkdir(parents=True)
    (directory / "CMakeLists.txt").write_text("# filler\n" * 74 + CONTEXT)
    return tmp_path / "horovod-0.28.1"


def test_the_patch_takes_out_the_one_line(tree: Path, project: Path) -> None:
    (patch,) = horovod.patches(project / "env")
    before = (tree / "horovod/tensorflow/CMakeLists.txt").read_text().splitlines()
    assert horovod.apply_patch(tree, patch) == ["horovod/tensorflow/CMakeLists.txt"]
    after = (tree / "horovod/tensorflow/CMakeLists.txt").read_text().splitlines()
    assert after == [line for line in before if "xla_mpi_ops" not in line]
    assert len(after) == len(before) - 1


def test_a_source_that_differs_is_refused_and_left(tree: Path, project: Path) -> None:
    file = tree / "horovod/tensorflow/CMakeLists.txt"
    changed = file.read_text().replace("xla_mpi_ops", "xla_ops")
    file.write_text(changed)
    with pytest.raises(SetupError, match=r"does not fit horovod/tensorflow/CMakeLists\.txt, line 79"):
        horovod.apply_patch(tree, horovod.patches(project / "env")[0])
    assert file.read_text() == changed


def test_a_patch_that_changes_nothing_is_an_error(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.patch").write_text("only words\n")
    with pytest.raises(SetupError, match="changes no file"):
        horovod.apply_patch(tree, tmp_path / "empty.patch")


def test_the_applied_patch_is_what_the_patch_tool_makes(tree: Path, tmp_path: Path) -> None:
    # Two roads: our strict applier, and difflib's own account of the change, over several hunks and additions.
    import difflib

    old = [f"line {i}" for i in range(60)]
    new = [*old[:5], "put in", *old[5:30], *old[31:50], "changed", *old[51:], "at the end"]
    target = tree / "a.txt"
    target.write_text("\n".join(old) + "\n")
    diff = difflib.unified_diff(old, new, "a/a.txt", "b/a.txt", lineterm="")
    (tmp_path / "many.patch").write_text("\n".join(diff) + "\n")
    horovod.apply_patch(tree, tmp_path / "many.patch")
    assert target.read_text().splitlines() == new


# --- the cache


def parts(project: Path, **change: Any) -> dict[str, Any]:
    python = pythons.probe(sys.executable)
    assert python is not None
    given: dict[str, Any] = {
        "env_directory": project / "env",
        "python": python,
        "tensorflow": "tensorflow-cpu 2.21.0",
        "mpi": mpi.wheel_identity("5.0.2"),
        "gpu": False,
        "environ": {},
    }
    return horovod.key_parts(**{**given, **change})


def test_the_key_changes_with_all_that_the_wheel_depends_on(project: Path, clone: Path) -> None:
    import dataclasses

    python = pythons.probe(sys.executable)
    assert python is not None
    (clone / "env" / "horovod" / "0002-more.patch").write_text("x")
    keys = [
        horovod.wheel_key(parts(project)),
        horovod.wheel_key(parts(project, tensorflow="tensorflow-cpu 2.21.1")),
        horovod.wheel_key(parts(project, mpi=mpi.wheel_identity("5.0.3"))),
        horovod.wheel_key(parts(project, mpi="Open MPI v4.1.4 /usr/lib/libmpi.so.40")),
        horovod.wheel_key(parts(project, python=dataclasses.replace(python, soabi="cpython-399-x86_64-linux-gnu"))),
        horovod.wheel_key(parts(project, python=dataclasses.replace(python, libc="glibc-2.17"))),
        horovod.wheel_key(parts(project, gpu=True)),
        horovod.wheel_key(parts(project, gpu=True, environ={"HOROVOD_CUDA_HOME": "/opt/cuda"})),
        horovod.wheel_key(parts(clone)),
    ]
    assert len(set(keys)) == len(keys)
    assert horovod.wheel_key(parts(project)) == keys[0]


def test_a_wheel_that_was_put_is_found_and_a_damaged_one_is_not(
    tmp_path: Path, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = tmp_path / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
    wheel.write_bytes(b"built")
    cache = tmp_path / "cache"
    assert horovod.cached(cache, parts(project)) is None
    put = horovod._put(cache, parts(project), wheel)
    found = horovod.cached(cache, parts(project))
    assert found is not None
    assert (found.path, found.sha256) == (put.path, put.sha256)
    assert horovod.cached(cache, parts(project, tensorflow="tensorflow 2.21.0")) is None
    assert [entry.name for entry in (cache / "wheels").iterdir() if entry.name.startswith(".")] == []
    found.path.write_bytes(b"half")
    assert horovod.cached(cache, parts(project)) is None
    assert "damaged" in capsys.readouterr().out


def test_a_second_set_up_waits_for_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    order: list[str] = []
    inside, go_on = threading.Event(), threading.Event()

    def first() -> None:
        with horovod.exclusive(tmp_path / "lock", "it"):
            inside.set()
            go_on.wait(10)
            order.append("first")

    def second() -> None:
        with horovod.exclusive(tmp_path / "lock", "it"):
            order.append("second")

    a, b = threading.Thread(target=first), threading.Thread(target=second)
    a.start()
    assert inside.wait(10)
    b.start()
    while "waiting" not in capsys.readouterr().out:
        b.join(0.01)
    go_on.set()
    a.join(10)
    b.join(10)
    assert order == ["first", "second"]


# --- the settings of the build


def test_lingering_settings_do_not_reach_the_build(tmp_path: Path) -> None:
    found = mpi.Mpi("wheel", str(tmp_path / "bin/mpicxx"), str(tmp_path / "bin/mpiexec"), str(tmp_path / "l"), "MPICH")
    env = {"HOROVOD_WITH_PYTORCH": "1", "HOROVOD_GPU_OPERATIONS": "NCCL", "PATH": "/usr/bin", "https_proxy": "p"}
    got = horovod.build_env(
        env, link=tmp_path / "env", mpi=found, gpu=False, site="/s", toolchain_file=tmp_path / "t.cmake"
    )
    assert "HOROVOD_WITH_PYTORCH" not in got
    assert "HOROVOD_GPU_OPERATIONS" not in got
    assert got["https_proxy"] == "p"
    # The environment's own tools, then the chosen MPI's, come before those of the system.
    assert got["PATH"].split(":") == [str(tmp_path / "env" / "bin"), str(tmp_path / "bin"), "/usr/bin"]
    assert got["HOROVOD_WITH_TENSORFLOW"] == got["HOROVOD_WITH_MPI"] == got["HOROVOD_WITHOUT_GLOO"] == "1"


def test_gpu_asks_for_nccl_and_keeps_the_sites_cuda(tmp_path: Path) -> None:
    found = mpi.Mpi("system", "/opt/mpi/bin/mpicxx", None, "/opt/mpi/lib/libmpi.so.40", "Open MPI")
    (tmp_path / "nvidia" / "nccl").mkdir(parents=True)
    got = horovod.build_env(
        {"HOROVOD_CUDA_HOME": "/opt/cuda", "PATH": "/usr/bin"},
        link=tmp_path / "env",
        mpi=found,
        gpu=True,
        site=str(tmp_path),
        toolchain_file=tmp_path / "t.cmake",
    )
    assert got["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert got["HOROVOD_CUDA_HOME"] == "/opt/cuda"
    assert got["HOROVOD_NCCL_HOME"] == str(tmp_path / "nvidia" / "nccl")


def test_an_mpi_inside_the_environment_is_found_relatively_and_one_outside_is_not(tmp_path: Path) -> None:
    prefix, link = tmp_path / "a venv", tmp_path / "link"
    inside = mpi.Mpi("wheel", f"{prefix}/bin/mpicxx", f"{prefix}/bin/mpiexec", f"{prefix}/lib/libmpi.so.12", "MPICH")
    text = horovod.toolchain(inside, prefix, link)
    assert 'CMAKE_INSTALL_RPATH "$ORIGIN/../../../.."' in text
    assert f'MPI_CXX_COMPILER "{link}/bin/mpicxx"' in text
    assert " venv" not in text  # CMake's FindMPI splits the compiler's answer at spaces
    outside = mpi.Mpi("system", "/opt/mpi/bin/mpicxx", None, "/opt/mpi/lib/libmpi.so.40", "Open MPI")
    text = horovod.toolchain(outside, prefix, link)
    assert "RPATH" not in text
    assert 'MPI_CXX_COMPILER "/opt/mpi/bin/mpicxx"' in text


def test_makeflags_of_the_person_go_before_ours() -> None:
    assert horovod.jobs({"MAKEFLAGS": "-j3"}) == "-j3"
    n = int(horovod.jobs({}).removeprefix("-j"))
    assert 1 <= n <= 8


# --- the MPI


LDD_OPENMPI = """\
	linux-vdso.so.1 (0x00007ffd5a9f2000)
	libmpi_cxx.so.40 => /lib/x86_64-linux-gnu/libmpi_cxx.so.40 (0x00007f1)
	libmpi.so.40 => /lib/x86_64-linux-gnu/libmpi.so.40 (0x00007f2)
	libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f3)
"""
LDD_MPICH = "\tlibmpicxx.so.12 => /a b/lib/libmpicxx.so.12 (0x01)\n\tlibmpi.so.12 => /a b/lib/libmpi.so.12 (0x02)\n"
LDD_CRAY = "\tlibmpi_gnu_123.so.12 => /opt/cray/pe/lib64/libmpi_gnu_123.so.12 (0x00007f)\n"


@pytest.mark.parametrize(
    ("printed", "path"),
    [
        (LDD_OPENMPI, "/lib/x86_64-linux-gnu/libmpi.so.40"),
        (LDD_MPICH, "/a b/lib/libmpi.so.12"),
        (LDD_CRAY, "/opt/cray/pe/lib64/libmpi_gnu_123.so.12"),
        ("\tlibmpi.so.40 => not found\n", None),
        ("", None),
    ],
)
def test_the_library_is_read_from_what_the_linker_says(printed: str, path: str | None) -> None:
    assert mpi.loaded_libmpi(printed) == path


@pytest.mark.parametrize(
    ("said", "vendor"),
    [
        ("MPICH Version: 5.0.2", "mpich"),
        ("Intel(R) MPI Library 2021.11 for Linux* OS", "mpich"),
        ("MVAPICH2 Version : 2.3.7", "mpich"),
        ("MPI VERSION : CRAY MPICH version 8.1.25.17 (ANL base 3.4a2)", "mpich"),
        ("Open MPI v4.1.4, package: Debian OpenMPI", "openmpi"),
        ("Fake MPI 1.0", None),
    ],
)
def test_the_vendor_is_read_from_what_the_library_says(said: str, vendor: str | None) -> None:
    assert mpi.Mpi("system", "", None, "", said).vendor == vendor


def test_the_sites_compiler_is_not_the_one_of_the_activated_venv(tmp_path: Path) -> None:
    for name in ("venv/bin", "site/bin"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "mpicxx").write_text("#!/bin/sh\n")
        (tmp_path / name / "mpicxx").chmod(0o755)
    environ = {"PATH": f"{tmp_path}/venv/bin:{tmp_path}/site/bin"}
    assert mpi.find_site_mpicxx(None, environ, tmp_path / "venv/bin") == f"{tmp_path}/site/bin/mpicxx"
    assert mpi.find_site_mpicxx(tmp_path / "venv", environ) == f"{tmp_path}/venv/bin/mpicxx"


def test_no_site_mpi_says_what_to_load(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="module load openmpi"):
        mpi.find_site_mpicxx(None, {"PATH": str(tmp_path)})
    with pytest.raises(SetupError, match=f"no mpicxx in {tmp_path}/bin"):
        mpi.find_site_mpicxx(tmp_path, {})


def _fake_mpi(directory: Path, mpiexec: str) -> Path:
    """An "MPI" of one library with one function, made with the real compiler, and a launcher that is a shell script."""
    for name in ("bin", "lib", "include"):
        (directory / name).mkdir(parents=True)
    (directory / "include" / "mpi.h").write_text(
        "#define MPI_MAX_LIBRARY_VERSION_STRING 256\n#define MPI_COMM_WORLD 0\n"
        'extern "C" { int MPI_Init(int*, char***); int MPI_Comm_size(int, int*); int MPI_Finalize();\n'
        "int MPI_Get_library_version(char*, int*); }\n"
    )
    source = directory / "fake.cc"
    source.write_text(
        '#include <mpi.h>\n#include <cstring>\nextern "C" {\nint MPI_Init(int*, char***) { return 0; }\n'
        "int MPI_Comm_size(int, int* n) { *n = 1; return 0; }\nint MPI_Finalize() { return 0; }\n"
        'int MPI_Get_library_version(char* t, int* n) { std::strcpy(t, "Fake  MPI\\t1.0\\nline 2"); return 0; }\n}\n'
    )
    flags = [f"-I{directory}/include", f"-L{directory}/lib", f"-Wl,-rpath,{directory}/lib"]
    library = ["-shared", "-fPIC", "-Wl,-soname,libmpi.so.77", "-o", f"{directory}/lib/libmpi.so.77"]
    subprocess.run(["g++", str(source), *flags, *library], check=True)
    (directory / "lib" / "libmpi.so").symlink_to("libmpi.so.77")
    for name, body in (("mpicxx", f'exec g++ "$@" {" ".join(flags)} -lmpi'), ("mpiexec", mpiexec)):
        (directory / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (directory / "bin" / name).chmod(0o755)
    return directory


@pytest.fixture
def environ() -> dict[str, str]:
    return {"PATH": "/usr/local/bin:/usr/bin:/bin"}


def test_the_sites_mpi_is_asked_for_library_version_and_launcher(tmp_path: Path, environ: dict[str, str]) -> None:
    site = _fake_mpi(tmp_path / "mpi", "echo world size 2; echo world size 2")
    found = mpi.site_mpi(site, environ)
    assert found == mpi.Mpi(
        "system", f"{site}/bin/mpicxx", f"{site}/bin/mpiexec", f"{site}/lib/libmpi.so.77", "Fake MPI 1.0"
    )


def test_a_site_whose_path_has_a_space_is_asked_too(tmp_path: Path, environ: dict[str, str]) -> None:
    # As the wrappers do: their own directory, unquoted.
    site = _fake_mpi(tmp_path / "my mpi", "echo world size 2; echo world size 2")
    (site / "bin" / "mpicxx").write_text(
        '#!/bin/sh\nd=${0%/bin/*}\nexec g++ "$@" $(echo "-I$d/include -L$d/lib -Wl,-rpath,$d/lib") -lmpi\n'
    )
    found = mpi.site_mpi(site, environ)
    assert (found.libmpi, found.library_version) == (f"{site}/lib/libmpi.so.77", "Fake MPI 1.0")


def test_a_launcher_of_another_mpi_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    # Two worlds of size 1: what a launcher does with a program of another MPI.
    site = _fake_mpi(tmp_path / "mpi", 'shift 2; "$@"; "$@"')
    with pytest.raises(SetupError, match="not two ranks of one world"):
        mpi.site_mpi(site, environ)
    assert mpi.site_mpi(site, environ, check_ranks=False).mpiexec == f"{site}/bin/mpiexec"


def test_a_launcher_that_is_forbidden_says_the_option(tmp_path: Path, environ: dict[str, str]) -> None:
    site = _fake_mpi(tmp_path / "mpi", "echo 'not on a login node' >&2; exit 9")
    with pytest.raises(SetupError, match="not on a login node") as caught:
        mpi.site_mpi(site, environ)
    assert "--no-rank-check" in str(caught.value)


def test_mpi4py_is_pointed_at_the_sites_library_and_back(tmp_path: Path) -> None:
    library = tmp_path / "site" / "libmpi.so.40"
    library.parent.mkdir()
    library.write_text("")
    venv = tmp_path / "venv"
    (venv / "lib").mkdir(parents=True)
    mpi.point_mpi4py(venv, mpi.Mpi("system", "", None, str(library), ""))
    assert (venv / "lib" / "libmpi.so").resolve() == library
    mpi.unpoint_mpi4py(venv)
    assert not (venv / "lib" / "libmpi.so").is_symlink()
    # The wheel's own file is not ours to take away.
    (venv / "lib" / "libmpi.so.12").write_text("")
    (venv / "lib" / "libmpi.so").symlink_to("libmpi.so.12")
    mpi.unpoint_mpi4py(venv)
    assert (venv / "lib" / "libmpi.so").exists()


# --- the last look


GOOD = {"mpi4py": "MPICH Version:\t5.0.2\nmore", "size": 2, "horovod": 2, "same": True, "mean": 1.5}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, None),
        ({"size": 1, "horovod": 1}, "a world of 1"),
        ({"mpi4py": "MPICH Version: 5.0.2\0"}, None),  # Open MPI's strings come with their closing zero byte
        ({"same": False}, "number the ranks differently"),
        ({"mean": 1.0}, "came out as 1.0"),
        ({"mpi4py": "Open MPI v4.1.4"}, "mpi4py is on 'Open MPI v4.1.4', Horovod on 'MPICH Version: 5.0.2'"),
    ],
)
def test_two_ranks_are_judged(change: dict[str, object], words: str | None) -> None:
    said = json.loads(json.dumps([{**GOOD, **change}] * 2))
    problems = ranks.judge(said, "MPICH Version: 5.0.2")
    assert problems == [] if words is None else words in problems[0]


def test_one_silent_rank_is_a_problem() -> None:
    assert ranks.judge([dict(GOOD)], "MPICH Version: 5.0.2") == ["1 of 2 ranks answered"]
