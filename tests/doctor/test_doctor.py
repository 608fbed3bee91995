"""`sciml doctor` on this environment and on broken ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sciml_kernel.pool import doctor
from sciml_kernel.pool.doctor import Check, examine
from sciml_kernel.pool.mpi import find_mpi
from sciml_kernel.testing.notebooks import kernel_path
from sciml_kernel.testing.pool_suite import wait_for

FAST = ("_python", "_set_up", "_mpiexec", "_mpi_library", "_mpi_ranks", "_other_mpi", "kernelspec", "locking",
        "ports", "state_folder", "machine", "_ipyparallel")  # fmt: skip


@pytest.fixture
def some(monkeypatch: pytest.MonkeyPatch) -> object:
    """Run the named checks only; return them by name."""

    def run(*names: str, prefix: Path | None = None) -> dict[str, Check]:
        monkeypatch.setattr(doctor, "_CHECKS", tuple(getattr(doctor, name) for name in names))
        return {check.name: check for check in examine(prefix=prefix)}

    return run


def environment(prefix: Path, mpiexec: str, **more: object) -> Path:
    """What env/setup would have noted."""
    folder = prefix / "etc" / "sciml"
    folder.mkdir(parents=True)
    noted = {"schema": 1, "mpi": {"kind": "wheel", "mpiexec": mpiexec, "library_version": "x"}, **more}
    (folder / "environment.json").write_text(json.dumps(noted))
    return prefix


def fake_mpiexec(folder: Path, version: str) -> str:
    """An mpiexec of another MPI, as mpi4py sees it: it starts n processes that know nothing of each other."""
    script = folder / "mpiexec"
    script.write_text(
        "#!/bin/bash\n"
        f"if [ \"$1\" = --version ]; then echo '{version}'; exit 0; fi\n"
        'while [ $# -gt 0 ] && [ "$1" != -n ]; do shift; done\nn=$2; shift 2\n'
        'for i in $(seq "$n"); do "$@"; done\n'
    )
    script.chmod(0o755)
    return str(script)


@pytest.mark.mpi
def test_this_environment_is_fit(some, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PATH", kernel_path(tmp_path))
    found = some(*FAST)
    assert [check for check in found.values() if check.result == "fail"] == []
    assert found["mpi ranks"].found == "two ranks are one world of size 2"
    assert all((check.result == "ok") != bool(check.mend) for check in found.values())


@pytest.mark.tf
@pytest.mark.horovod
def test_horovod_and_tensorflow_fit_together(some, tmp_path: Path) -> None:
    found = some("_set_up", "_mpi_library", "_tensorflow", "_horovod")
    assert found["tensorflow"].result == "ok", found["tensorflow"]
    assert found["horovod"].result == "ok", found["horovod"]
    prefix = environment(tmp_path, find_mpi().mpiexec, horovod={"version": "0", "built_with": {"tf": "1.0"}})
    wrong = some("_set_up", "_tensorflow", "_horovod", prefix=prefix)["horovod"]
    assert wrong.result == "fail"
    assert "built against TensorFlow 1.0" in wrong.found


@pytest.mark.mpi
def test_an_mpiexec_of_another_mpi_fails(some, tmp_path: Path) -> None:
    mine = find_mpi().vendor
    other = "mpiexec (OpenRTE) 4.1.4" if mine == "mpich" else "HYDRA build details:\n    Version:    5.0.2"
    prefix = environment(tmp_path, fake_mpiexec(tmp_path, other))
    found = some("_mpiexec", "_mpi_library", "_mpi_ranks", prefix=prefix)
    assert found["mpiexec"].result == "ok"  # it is there and runs; what it is of is the next question
    assert found["mpi library"].result == "fail"
    assert "world of size 1" in found["mpi library"].found
    assert found["mpi ranks"].result == "fail"
    assert "2 worlds of size 1" in found["mpi ranks"].found
    assert "env/setup" in found["mpi ranks"].mend


@pytest.mark.mpi
@pytest.mark.parametrize("there", [True, False])
def test_an_mpich_without_its_launcher_that_opens_no_port_is_a_warning(there: bool, some, tmp_path: Path) -> None:
    script = Path(fake_mpiexec(tmp_path, "HYDRA build details:\n    Version:    5.0.2"))
    if there:
        shutil.copy(script, script.with_name("mpiexec.gforker"))
    found = some("_mpiexec", prefix=environment(tmp_path, str(script)))
    assert found["mpiexec"].result == "ok"
    assert [found[name].result for name in found if name == "mpi port"] == ([] if there else ["warn"])


def test_an_mpiexec_that_hides_whose_it_is_is_found_out_by_its_ranks(some, tmp_path: Path) -> None:
    prefix = environment(tmp_path, fake_mpiexec(tmp_path, "site launcher 1.0"))
    found = some("_mpiexec", "_mpi_library", "_mpi_ranks", prefix=prefix)
    assert found["mpiexec"].result == "warn"
    assert found["mpi ranks"].result == "fail"


def test_a_missing_mpiexec_fails(some, tmp_path: Path) -> None:
    found = some("_mpiexec", "_mpi_ranks", prefix=environment(tmp_path, "/nowhere/mpiexec"))
    assert found["mpiexec"].result == "fail"
    assert "/nowhere/mpiexec" in found["mpiexec"].found
    assert found["mpi ranks"].result == "fail"


def test_a_hanging_mpiexec_is_ended_and_leaves_no_process(
    some, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Path(fake_mpiexec(tmp_path, "HYDRA build details: Version: 5.0.2"))
    script.write_text(script.read_text().replace("while", f"sleep 300 & echo $! > {tmp_path}/pid; wait\nwhile"))
    monkeypatch.setattr(doctor, "MPI_TIMEOUT_S", 1.0)
    found = some("_mpiexec", "_mpi_ranks", prefix=environment(tmp_path, str(script)))
    assert found["mpi ranks"].result == "fail"
    assert "timed out" in found["mpi ranks"].found
    pid = (tmp_path / "pid").read_text().strip()
    stat = Path(f"/proc/{pid}/stat")
    # Killed, which takes the system a moment; whoever inherits an orphan reaps it when it likes.
    wait_for(lambda: not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z")


def test_a_broken_note_of_the_set_up_fails(some, tmp_path: Path) -> None:
    assert some("_set_up", prefix=tmp_path)["set-up"].result == "warn"
    environment(tmp_path, "x")
    assert some("_set_up", prefix=tmp_path)["set-up"].result == "ok"
    (tmp_path / "etc" / "sciml" / "environment.json").write_text("{")
    assert some("_set_up", prefix=tmp_path)["set-up"].result == "fail"


def test_another_mpi_on_path_is_a_warning(some, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_mpiexec(tmp_path, "mpiexec (OpenRTE) 4.1.4")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert some("_mpiexec", "_other_mpi")["mpi on PATH"].result == "warn"


def test_a_missing_stale_or_foreign_kernelspec_fails(some, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PATH", kernel_path(tmp_path))
    assert some("kernelspec")["kernelspec"].result == "ok"
    spec = tmp_path / "share" / "jupyter" / "kernels" / "sciml" / "kernel.json"
    for interpreter, words in {"/gone/python": "can't be run", shutil.which("sh"): "another environment"}.items():
        spec.write_text(json.dumps({"argv": [interpreter]}))
        found = some("kernelspec")["kernelspec"]
        assert found.result == "fail"
        assert words in found.found
        assert "sciml kernel install" in found.mend
    spec.write_text("{")
    assert some("kernelspec")["kernelspec"].result == "fail"


def test_no_kernelspec_fails(some, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import jupyter_core.paths

    monkeypatch.setattr(jupyter_core.paths, "jupyter_path", lambda *parts: [str(tmp_path)])
    assert some("kernelspec")["kernelspec"].result == "fail"


def test_a_state_folder_that_can_not_be_written_fails(some, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert some("state_folder")["state folder"].result == "ok"
    (tmp_path / "file").touch()  # a file where a folder is due: also refused to root
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    found = some("state_folder")["state folder"]
    assert found.result == "fail"
    assert "XDG_STATE_HOME" in found.mend


def test_a_state_folder_open_to_others_is_a_warning(some, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "sciml" / "pools").mkdir(parents=True)
    (tmp_path / "sciml" / "pools").chmod(0o755)
    assert some("state_folder")["state folder"].result == "warn"


def test_a_runs_folder_that_can_not_be_written_fails(some, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SCIML_RUNS", str(tmp_path / "file" / "runs"))
    assert some("locking")["files in runs folder"].result == "fail"


def test_doctor_leaves_no_file(some, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SCIML_RUNS", str(tmp_path / "runs"))
    some("locking", "state_folder", "ports", "machine")
    assert list(tmp_path.iterdir()) == []


def test_a_check_that_breaks_is_a_failure_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def _broken(seen: object) -> None:
        raise RuntimeError("oops")

    monkeypatch.setattr(doctor, "_CHECKS", (_broken, doctor._python))
    broken, python = examine()
    assert (broken.name, broken.result) == ("broken", "fail")
    assert "oops" in broken.found
    assert python.result == "ok"


BLOCKER = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
"""


@pytest.mark.mpi
def test_the_command_ends_with_3_without_horovod_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow is blocked too: the answer is the same, without its import."""
    (tmp_path / "block").mkdir()
    (tmp_path / "block" / "sitecustomize.py").write_text(BLOCKER.format(blocked={"horovod", "tensorflow"}))
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "block"), "JUPYTER_PATH": kernel_path(tmp_path)}
    command = [sys.executable, "-c", "from sciml_kernel.cli import main; main(['doctor', '--json'])"]
    answer = subprocess.run(command, capture_output=True, text=True, env=env, timeout=100, check=False)
    assert answer.returncode == 3, answer.stderr
    found = {check["name"]: check for check in json.loads(answer.stdout)}
    assert found["horovod"]["result"] == "fail"
    assert "horovod" in found["horovod"]["found"]
    assert found["mpi ranks"]["result"] == "ok", found["mpi ranks"]
    assert {check["name"] for check in found.values() if check["result"] == "fail"} == {"horovod", "tensorflow"}
