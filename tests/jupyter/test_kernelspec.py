"""The kernelspec, and what `sciml lab` would start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sciml_kernel.errors import EnvironmentNotFitError, UsageError
from sciml_kernel.jupyter import kernelspec, lab


def test_it_names_this_interpreter_and_has_logos(tmp_path: Path) -> None:
    place = kernelspec.install(tmp_path)
    assert place == tmp_path / "share" / "jupyter" / "kernels" / "sciml"
    content = json.loads((place / "kernel.json").read_text())
    assert content["argv"][0] == sys.executable
    assert content["language"] == "python"
    assert {path.name for path in place.iterdir()} == {
        "kernel.json", "logo-32x32.png", "logo-64x64.png", "logo-svg.svg",
    }  # fmt: skip


def test_installing_again_replaces_it_and_leaves_nothing_else(tmp_path: Path) -> None:
    place = kernelspec.install(tmp_path)
    (place / "kernel.json").write_text("{}")
    (place / "old").touch()
    kernelspec.install(tmp_path)
    assert "argv" in json.loads((place / "kernel.json").read_text())
    assert [path.name for path in place.parent.iterdir()] == ["sciml"]
    assert not (place / "old").exists()


def test_the_user_folder_is_jupyters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    assert kernelspec.install(user=True, name="mine") == tmp_path / "data" / "kernels" / "mine"


def test_a_place_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "share").touch()  # a file where a folder is due: also refused to root
    with pytest.raises(UsageError, match=str(tmp_path)):
        kernelspec.install(tmp_path)
    with pytest.raises(UsageError, match="can't be used"):
        kernelspec.install(tmp_path, name="../x")


def test_the_module_is_a_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sciml_kernel.jupyter.kernelspec", "install", "--prefix", str(tmp_path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert Path(answer.stdout.strip()).is_dir()


def test_a_missing_or_stale_kernelspec_is_said_with_its_remedy(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentNotFitError, match="sciml kernel install"):
        kernelspec.installed(tmp_path)
    place = kernelspec.install(tmp_path)
    assert kernelspec.installed(tmp_path) == place
    (place / "kernel.json").write_text(json.dumps({"argv": [str(tmp_path / "gone" / "python")]}))
    with pytest.raises(EnvironmentNotFitError, match="can't be run"):
        kernelspec.installed(tmp_path)


def test_lab_listens_on_loopback_and_serves_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = lab.command(["--no-browser", "--port=9999"])
    assert command[:3] == [sys.executable, "-m", "jupyterlab"]
    assert "--ServerApp.ip=127.0.0.1" in command
    assert f"--ServerApp.root_dir={tmp_path}" in command
    assert command[-2:] == ["--no-browser", "--port=9999"]
    assert "--ServerApp.ip=127.0.0.1" not in lab.command(["--ip=0.0.0.0"])
    assert not any(word.startswith("--ServerApp.root_dir") for word in lab.command([str(tmp_path)]))


def test_lab_finds_this_environments_kernels_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTER_PATH", "/elsewhere")
    variables = lab.environment()
    assert variables["JUPYTER_PATH"].split(os.pathsep) == [f"{sys.prefix}/share/jupyter", "/elsewhere"]
    assert variables["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
