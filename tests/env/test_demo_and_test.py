"""`env/demo` and `env/test`, and the shell scripts as such."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from site_of_tests import Site


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
