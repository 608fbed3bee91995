"""What is decided before anything is started."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sciml_kernel.errors import EnvironmentNotFitError, NotFoundError, UsageError
from sciml_kernel.pool import Pool, mpi, plan
from sciml_kernel.pool.files import read_json, tail, write_json
from sciml_kernel.pool.launch import describe, launcher, rank_variables
from sciml_kernel.pool.mpi import Mpi, find_mpi
from sciml_kernel.pool.spec import PoolDir, PoolSpec, available_cores, pools_root


@pytest.fixture
def spec(monkeypatch: pytest.MonkeyPatch) -> PoolSpec:
    """Three ranks on eight cores, whatever this machine has."""
    monkeypatch.setattr(plan, "find_mpi", lambda: Mpi("/opt/mpi/bin/mpiexec", "mpich", "test"))
    monkeypatch.setattr(plan, "available_cores", lambda: 8)
    return plan.make_spec(3, "local", "p", False, 60.0, False, 5.0, {"A": "b c"}, {})


@pytest.mark.parametrize(("keep", "ttl_s", "lives_s"), [(False, 3600.0, 20.0), (False, None, 20.0), (True, 60.0, 60.0)])
def test_the_pool_of_a_killed_batch_run_does_not_live_for_an_hour(
    spec: PoolSpec, monkeypatch: pytest.MonkeyPatch, keep: bool, ttl_s: float | None, lives_s: float
) -> None:
    monkeypatch.setenv("SCIML_PARENT_RUN", "/runs/one")
    assert plan.make_spec(1, "local", "p", keep, ttl_s, False, 5.0, {}, {}).ttl_s == lives_s


def test_a_spec_survives_json(spec: PoolSpec) -> None:
    assert PoolSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_cores_are_shared_out_over_the_ranks(spec: PoolSpec) -> None:
    assert spec.threads_per_rank == 2  # 8 cores // 3 ranks
    variables = rank_variables(spec)
    assert (variables["OMP_NUM_THREADS"], variables["TF_NUM_INTRAOP_THREADS"], variables["A"]) == ("2", "2", "b c")


def test_what_the_caller_sets_wins_over_the_budget(spec: PoolSpec) -> None:
    import dataclasses

    assert rank_variables(dataclasses.replace(spec, env={"OMP_NUM_THREADS": "7"}))["OMP_NUM_THREADS"] == "7"


def test_the_plan_prints_budget_environment_and_commands(spec: PoolSpec) -> None:
    text = describe(spec, PoolDir.named("p"))
    assert "3 ranks x 2 threads on 8 cores" in text
    assert "export A='b c'" in text
    assert "/opt/mpi/bin/mpiexec -launcher fork -hosts localhost -n 3" in text
    assert "ipyparallel.controller" in text


def test_a_plan_writes_and_starts_nothing(spec: PoolSpec) -> None:
    assert "n 2" in Pool.plan(2)
    assert not pools_root().exists()


@pytest.mark.parametrize("n", [0, -1])
def test_no_ranks_are_refused(n: int, spec: PoolSpec) -> None:
    with pytest.raises(UsageError, match="at least 1 rank"):
        Pool.start(n)
    assert not pools_root().exists()


@pytest.mark.parametrize("n", [2.0, "4", True, None])
def test_a_number_of_ranks_that_is_none_is_refused(n: object, spec: PoolSpec) -> None:
    with pytest.raises(UsageError, match="whole number"):
        Pool.start(n)  # type: ignore[arg-type]


def test_more_than_eight_ranks_a_core_are_refused(spec: PoolSpec) -> None:
    with pytest.raises(UsageError, match="write n=64 or less"):
        Pool.start(65, oversubscribe=True)


def test_more_ranks_than_cores_warn_unless_meant(spec: PoolSpec) -> None:
    driver = launcher("local")
    many = plan.make_spec(9, "local", "p", False, None, False, 5.0, None, {})
    meant = plan.make_spec(9, "local", "p", False, None, True, 5.0, None, {})
    assert ["9 ranks share 8 cores" in text for text in driver.check(many)] == [True]
    assert driver.check(meant) == []
    assert driver.check(spec) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"launcher": "slrum"}, "unknown launcher"),
        ({"nodes": 2}, "has no option 'nodes'"),
        ({"name": "../up"}, "can't be used"),
        ({"name": ""}, "can't be used"),
        ({"ttl_s": 0}, "ttl_s"),
        ({"timeout": -1}, "timeout"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(
    options: dict[str, object], message: str, spec: PoolSpec
) -> None:
    with pytest.raises(UsageError, match=message):
        Pool.start(2, **options)  # type: ignore[arg-type]
    assert not pools_root().exists()


def test_an_unwritable_state_directory_is_named(spec: PoolSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    with pytest.raises(UsageError, match="set XDG_STATE_HOME"):
        Pool.start(2)


def test_a_missing_pool_is_not_found_and_the_known_are_listed() -> None:
    PoolDir.named("seen").create()
    with pytest.raises(NotFoundError, match="did you mean 'seen'"):
        Pool.attach("seem")
    with pytest.raises(NotFoundError, match=r"no live pool \(known: seen \(dead\)\)"):
        Pool.attach()
    PoolDir.named("seen").remove()


def test_there_may_be_no_pools_at_all() -> None:
    assert list(Pool.list().columns[:2]) == ["name", "state"]
    assert len(Pool.list()) == 0


def test_open_mpi_gets_its_own_flags(spec: PoolSpec) -> None:
    import dataclasses

    open_mpi = dataclasses.replace(spec, mpi_vendor="openmpi")
    driver = launcher("local")
    assert "--oversubscribe" in driver.command(open_mpi, ["w"])
    assert driver.variables(open_mpi)["OMPI_MCA_btl"] == "self,vader"  # no TCP between ranks of one machine


def test_mpich_starts_ranks_without_a_network_port_where_it_can(spec: PoolSpec, tmp_path: Path) -> None:
    import dataclasses

    hydra = _mpiexec(tmp_path, "HYDRA build details")
    spec = dataclasses.replace(spec, mpi_vendor="mpich", mpiexec=str(hydra))
    driver = launcher("local")
    assert driver.command(spec, ["w"])[:3] == [str(hydra), "-launcher", "fork"]
    forker = hydra.with_name("mpiexec.gforker")
    forker.touch()
    assert driver.command(spec, ["w"]) == [str(forker), "-n", "3", "w"]
    assert driver.variables(spec)["UCX_TLS"] == "self,sm"


def _mpiexec(prefix: Path, version: str) -> Path:
    path = prefix / "bin" / "mpiexec"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{version}'\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("version", "vendor"),
    [("HYDRA build details:", "mpich"), ("mpiexec (OpenRTE) 4.1.4", "openmpi"), ("acme", "unknown")],
)
def test_the_mpiexec_of_the_environment_is_taken(tmp_path: Path, version: str, vendor: str) -> None:
    path = _mpiexec(tmp_path, version)
    assert find_mpi(str(tmp_path)) == Mpi(str(path), vendor, f"bin of {tmp_path}")


def test_the_mpiexec_that_the_setup_noted_wins(tmp_path: Path) -> None:
    _mpiexec(tmp_path, "HYDRA")
    site = _mpiexec(tmp_path / "site", "Open MPI")
    noted = tmp_path / "etc" / "sciml" / "environment.json"
    noted.parent.mkdir(parents=True)
    noted.write_text(json.dumps({"mpi": {"mpiexec": str(site)}}))
    assert (find_mpi(str(tmp_path)).mpiexec, find_mpi(str(tmp_path)).vendor) == (str(site), "openmpi")


def test_the_mpiexec_on_path_is_never_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _mpiexec(tmp_path / "other", "HYDRA")
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    with pytest.raises(EnvironmentNotFitError, match=r"no mpiexec at .*run env/setup"):
        find_mpi(str(tmp_path / "this"))


def test_a_broken_note_of_the_setup_is_named(tmp_path: Path) -> None:
    noted = tmp_path / "etc" / "sciml" / "environment.json"
    noted.parent.mkdir(parents=True)
    noted.write_text('{"mpi": ')
    with pytest.raises(EnvironmentNotFitError, match=r"environment\.json names no mpi\.mpiexec"):
        find_mpi(str(tmp_path))


def test_no_mpi_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(plan, "find_mpi", lambda: mpi.find_mpi(str(tmp_path)))
    with pytest.raises(EnvironmentNotFitError):
        Pool.start(1)
    assert not pools_root().exists()


def test_cores_are_at_least_one_and_at_most_the_affinity() -> None:
    assert 1 <= available_cores() <= len(os.sched_getaffinity(0))


def test_a_file_is_replaced_whole_and_private(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    write_json(path, {"a": 2})
    assert read_json(path) == {"a": 2}
    assert path.stat().st_mode & 0o777 == 0o600
    assert [item.name for item in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize("text", ["", '{"a": ', "[1]", "nonsense"])
def test_a_file_that_holds_no_object_reads_as_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    assert read_json(tmp_path / "x.json") is None
    assert read_json(tmp_path / "missing.json") is None


def test_the_tail_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("\n".join(map(str, range(10_000))))
    assert tail(tmp_path / "x.log", 2) == "9998\n9999"
    assert tail(tmp_path / "missing.log") == ""
