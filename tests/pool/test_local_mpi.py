"""Pools of real ranks: what outlives what, what is seen when something is killed, and what is left afterwards."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sciml_kernel.errors import PoolDeadError, PoolStartError, UsageError
from sciml_kernel.pool import Pool, connection, plan
from sciml_kernel.pool.files import read_json
from sciml_kernel.pool.mpi import Mpi
from sciml_kernel.pool.processes import ProcessId, marked_pids
from sciml_kernel.pool.spec import PoolDir, pools_root
from sciml_kernel.testing.pool_suite import HERE, check_a_tainted_pool_that_waits, wait_for

pytestmark = pytest.mark.mpi

Start = Callable[..., Pool]


def _keeper(pool: Pool) -> int:
    keeper = pool.measure().keeper
    assert keeper is not None
    return keeper.pid


def _pids(pool: Pool) -> dict[str, int]:
    return dict((read_json(pool.path / "pool.json") or {})["pids"])


def _python(code: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=check)


def test_four_ranks_are_one_world_with_engine_id_equal_to_rank(start: Start) -> None:
    begin = time.monotonic()
    pool = start(4)
    assert time.monotonic() - begin < 15  # 2.4 s on an idle machine; the bench has the figure
    report = pool.report()
    assert list(report["rank"]) == [0, 1, 2, 3]
    assert list(report["state"]) == ["alive"] * 4
    assert len(set(report["pid"])) == 4
    assert all("MPICH" in library or "Open MPI" in library for library in report["mpi_library"])
    assert pool.client.ids == [0, 1, 2, 3]
    assert pool.run("os:getpid") == list(report["pid"])  # what ipyparallel calls rank r is rank r
    assert pool.run(f"{HERE}:who") == [[rank, 4] for rank in range(4)]


def test_another_process_finds_ranks_and_variables_even_when_the_first_was_killed() -> None:
    """The starter is killed in the middle of a call; the pool lives and the variable is there."""
    code = (
        "import os, signal, sciml_kernel as sk\n"
        "pool = sk.Pool.start(2, oversubscribe=True)\n"
        "pool.execute('kept = 40 + mpi_rank')\n"
        "print(pool.run('os:getpid'), flush=True)\n"
        "pool.submit('time:sleep', 0.5)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    pids = json.loads(_python(code, check=False).stdout)
    begin = time.monotonic()
    pool = Pool.attach()
    assert time.monotonic() - begin < 0.5
    assert list(pool.report()["pid"]) == pids
    wait_for(lambda: pool.state == "ready")
    printed: list[str] = []
    pool.execute("print(kept)", on_output=lambda rank, _stream, text: printed.append(f"{rank}:{text.strip()}"))
    assert sorted(printed) == ["0:40", "1:41"]
    pool.stop()


@pytest.mark.parametrize(("keep", "states"), [(False, []), (True, ["ready"])])
def test_the_normal_end_of_a_script_stops_its_pool_unless_kept(keep: bool, states: list[str]) -> None:
    _python(f"import sciml_kernel as sk; sk.Pool.start(1, keep={keep})")
    assert list(Pool.list()["state"]) == states


def test_a_pool_that_nobody_uses_ends_after_its_time_to_live() -> None:
    _python("import sciml_kernel as sk; sk.Pool.start(1, keep=True, ttl_s=0.5)")
    wait_for(lambda: list(Pool.list()["state"]) == ["expired"])
    table = Pool.list()
    assert "nobody used it for 0.5 s" in table.loc[0, "reason"]
    pool = Pool.attach(table.loc[0, "name"])
    wait_for(lambda: marked_pids(pool._spec().id) == [])  # the keeper goes last
    with pytest.raises(PoolDeadError, match="expired"):
        pool.run(f"{HERE}:who")
    pool.stop()
    assert list(Pool.list()["state"]) == []


def test_a_pool_in_use_does_not_expire(start: Start) -> None:
    pool = start(1, ttl_s=0.2)
    assert pool.run("time:sleep", 1.5) == [None]
    assert pool.state == "ready"  # this process lives and uses it


def test_a_killed_keeper_takes_all_with_it_and_the_list_says_so(start: Start) -> None:
    pool = start(2)
    mark, keeper = pool._spec().id, _keeper(pool)
    os.kill(keeper, signal.SIGKILL)
    wait_for(lambda: list(Pool.list()["state"]) == ["dead"], 1.0)
    assert f"pid {keeper}" in Pool.list().loc[0, "reason"]
    wait_for(lambda: marked_pids(mark) == [], 5.0)
    with pytest.raises(PoolDeadError, match="keeper"):
        pool.run(f"{HERE}:who")
    pool.restart()
    assert pool.run(f"{HERE}:who") == [[0, 2], [1, 2]]


def test_a_killed_controller_is_seen_during_a_call(start: Start) -> None:
    pool = start(2)
    call = pool.submit(f"{HERE}:wait_in_collective")
    controller = _pids(pool)["controller"]
    begin = time.monotonic()
    os.kill(controller, signal.SIGKILL)
    with pytest.raises(PoolDeadError, match=f"controller \\(pid {controller}\\)"):
        call.result()
    assert time.monotonic() - begin < 2.0
    assert pool.state == "dead"
    pool.restart()
    assert pool.run(f"{HERE}:who") == [[0, 2], [1, 2]]


def test_a_killed_scheduler_of_the_controller_is_seen(start: Start) -> None:
    pool = start(1)
    controller = _pids(pool)["controller"]
    children = Path(f"/proc/{controller}/task/{controller}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    wait_for(lambda: pool.state == "dead", 2.0)
    assert "scheduler" in pool.health().reason


def test_a_suspended_rank_is_named(start: Start) -> None:
    pool = start(2)
    pid = int(pool.report().set_index("rank").loc[1, "pid"])
    call = pool.submit(f"{HERE}:wait_in_collective")
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: "suspended" in list(pool.report()["state"]), 1.0)
    with pytest.raises(PoolDeadError, match=f"rank 1 @ .*pid {pid}.* stopped by SIGSTOP"):
        call.result()


def test_a_rank_that_exits_is_lost_with_its_exit_code(start: Start) -> None:
    pool = start(2)
    with pytest.raises(PoolDeadError, match=r"rank [01] @ .* exit code 7"):
        pool.run("os:_exit", 7)


def test_a_signal_from_inside_names_the_rank_that_got_it(start: Start) -> None:
    """The other rank dies of it as well: the first to end is the one named."""
    pool = start(2)
    with pytest.raises(PoolDeadError, match=r"rank 1 @ .*SIGSEGV"):
        pool.run(f"{HERE}:kill_myself", 1, int(signal.SIGSEGV))


def test_stop_is_quick_whatever_is_suspended(start: Start) -> None:
    pool = start(2)
    mark = pool._spec().id
    os.kill(_keeper(pool), signal.SIGSTOP)
    os.kill(int(pool.report().loc[0, "pid"]), signal.SIGSTOP)
    begin = time.monotonic()
    pool.stop()
    assert time.monotonic() - begin < 5.0
    assert marked_pids(mark) == []


def test_stop_while_ranks_wait_in_a_collective_ends_the_call(start: Start) -> None:
    pool = start(2)
    call = pool.submit(f"{HERE}:wait_in_collective")
    pool.stop()
    with pytest.raises(PoolDeadError, match="stopped"):
        call.result()


def test_a_destroyed_state_file_is_dead_and_restart_mends_it(start: Start) -> None:
    pool = start(1)
    os.kill(_keeper(pool), signal.SIGKILL)
    (pool.path / "pool.json").write_text('{"state": "rea')
    assert pool.state == "dead"
    pool.restart()
    assert pool.run(f"{HERE}:who") == [[0, 1]]


def test_ranks_that_the_controller_does_not_know_are_replaced(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the controller had given the first engine set up while it registered."""
    made = connection.Connection.__init__

    def refuse_the_first_set(self: connection.Connection, directory: PoolDir, generation: int, n: int) -> None:
        if generation == 1:
            raise connection.RanksMissingError("rank 0 is not known to the controller")
        made(self, directory, generation, n)

    monkeypatch.setattr(connection.Connection, "__init__", refuse_the_first_set)
    pool = start(2)
    assert pool.state == "ready"
    assert pool.health().generation == 2
    assert pool.run(f"{HERE}:who") == [[0, 2], [1, 2]]


def test_a_long_path_is_no_obstacle(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A unix socket's address holds 108 bytes; spaces are allowed too."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / ("with space " + "long" * 20) / ("deeper" * 20)))
    pool = start(1)
    assert len(str(pool.path)) > 200
    assert pool.run(f"{HERE}:who") == [[0, 1]]
    assert Pool.attach().name == pool.name
    pool.stop()


def test_ranks_that_never_come_are_named_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An mpiexec that starts rank 0 only."""
    script = tmp_path / "mpiexec"
    script.write_text('#!/bin/sh\nshift 2\nSLURM_PROCID=0 exec "$@"\n')
    script.chmod(0o755)
    monkeypatch.setattr(plan, "find_mpi", lambda: Mpi(str(script), "unknown", "test"))
    with pytest.raises(PoolStartError, match=r"after 4 s missing rank 1 of 2"):
        Pool.start(2, timeout=4)
    assert list(pools_root().iterdir()) == []


def test_n_worlds_of_size_one_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An mpiexec of another MPI: each engine is a world of its own and would train alone."""
    script = tmp_path / "mpiexec"
    script.write_text('#!/bin/sh\nshift 2\nSLURM_PROCID=0 "$@" &\nSLURM_PROCID=1 "$@" &\nwait\n')
    script.chmod(0o755)
    monkeypatch.setattr(plan, "find_mpi", lambda: Mpi(str(script), "unknown", "test"))
    with pytest.raises(PoolStartError, match=r"2 engines came as MPI worlds of size 1, not as one world of 2"):
        Pool.start(2, timeout=20)
    assert list(pools_root().iterdir()) == []


def test_an_mpiexec_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "mpiexec"
    script.write_text("#!/bin/sh\necho no such fabric\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setattr(plan, "find_mpi", lambda: Mpi(str(script), "unknown", "test"))
    with pytest.raises(PoolStartError, match=r"(?s)mpiexec ended with exit code 3.*no such fabric"):
        Pool.start(1)
    assert list(pools_root().iterdir()) == []


def test_two_pools_share_no_name_file_or_rank(start: Start) -> None:
    one, two = start(1), start(1)
    assert one.name != two.name
    assert one.run("os:getpid") != two.run("os:getpid")
    assert list(Pool.list()["name"]) == [two.name, one.name]
    assert Pool.attach().name == two.name
    with pytest.raises(UsageError, match="already"):
        Pool.start(1, name=one.name)
    two.stop()
    assert one.run(f"{HERE}:who") == [[0, 1]]


def test_no_key_is_in_a_readable_file_an_argument_or_an_environment(start: Start) -> None:
    pool = start(2)
    info = json.loads(pool._directory.connection_file(1).read_text())
    key = info["curve_serverkey"]
    assert key  # CurveZMQ is on
    assert info["interface"] == "tcp://127.0.0.1"
    assert stat.S_IMODE(pool.path.stat().st_mode) == 0o700
    for path in [*pool.path.glob("*.json"), *pool.path.glob("logs/*"), *pool.path.rglob("security/*")]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    for pid in [_keeper(pool), *marked_pids(pool._spec().id)]:
        for name in ("cmdline", "environ"):
            assert key.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
    holders = [path.name for path in pool.path.rglob("*") if path.is_file() and key in path.read_text(errors="replace")]
    assert sorted(holders) == ["ipcontroller-client.json", "ipcontroller-engine.json"]
    assert key not in pool.command()


def test_files_of_a_rank_have_the_mode_of_its_user(start: Start, tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        pool = start(1)
    finally:
        os.umask(old)
    pool.execute(f"open({str(tmp_path / 'made')!r}, 'w').close()")
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o644


def test_ranks_run_where_the_caller_stands_with_its_budget(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = "def seen():\n    return [os.getcwd(), os.environ['MY'], os.environ['OMP_NUM_THREADS']]\n"
    (tmp_path / "mine.py").write_text(f"import os\n{seen}")
    monkeypatch.chdir(tmp_path)
    pool = start(2, env={"MY": "own"})
    threads = str(max(1, plan.available_cores() // 2))
    assert pool.run("mine:seen") == [[str(tmp_path), "own", threads]] * 2


@pytest.mark.parametrize("watched", [True, False])
def test_the_log_of_a_rank_has_all_that_it_printed(
    start: Start, watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """watched: ipykernel watches the descriptors of stdout and stderr, which it does not under pytest."""
    if watched:
        monkeypatch.delenv("PYTEST_CURRENT_TEST")
    pool = start(2)
    pool.execute("print('from Python', mpi_rank)")
    pool.execute("import os; _ = os.write(1, b'from C\\n')")
    wait_for(lambda: "from C" in pool.logs(1))
    assert pool.logs(1).count("from Python 1") == 1
    assert pool.logs(1).count("from C") == 1
    assert "from Python 0" not in pool.logs(1)


def test_what_a_rank_publishes_is_seen_while_it_runs(start: Start) -> None:
    pool = start(1)
    pool.execute(
        "import sys, types, time\n"
        "from ipyparallel.engine.datapub import publish_data\n"
        "def publish():\n"
        "    for i in range(3):\n"
        "        publish_data({'step': i})\n"
        "        print('step', i)\n"
        "    time.sleep(30)\n"
        "sys.modules['mine'] = types.SimpleNamespace(publish=publish)\n"
    )
    seen: list[int] = []
    call = pool.submit("mine:publish", publish=lambda _rank, data: seen.append(data["step"]))
    wait_for(lambda: call.data(0).get("step") == 2)
    assert seen == [0, 1, 2]
    wait_for(lambda: "step 2" in call.outputs()[0])
    assert not call.done()
    call.interrupt()
    assert call.wait(5.0)


def test_ctrl_c_in_the_caller_reaches_the_ranks_and_comes_back(start: Start) -> None:
    pool = start(1)
    code = (
        "import signal, sciml_kernel as sk\n"
        # Python takes no SIGINT where it was started with it ignored, as a shell starts what goes to the background.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"pool = sk.Pool.attach({pool.name!r})\n"
        "try:\n"
        f"    pool.run('{HERE}:sleep', 60)\n"
        "except KeyboardInterrupt:\n"
        f"    print('interrupted', pool.state, pool.run('{HERE}:sleep', 0))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        try:
            wait_for(lambda: pool.measure().state == "busy")
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=20)[0].split() == ["interrupted", "ready", "['slept']"]
        finally:
            process.kill()


def test_a_call_of_another_process_can_be_interrupted(start: Start) -> None:
    pool = start(2)
    code = (
        "import sciml_kernel as sk\n"
        f"try:\n    sk.Pool.attach({pool.name!r}).run('{HERE}:sleep', 60)\n"
        "except sk.errors.RemoteError as error:\n    print(error.type_name)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        try:
            wait_for(lambda: pool.measure().state == "busy")
            pool.interrupt()
            assert process.communicate(timeout=20)[0].split() == ["KeyboardInterrupt"]
        finally:
            process.kill()
    assert pool.state == "ready"


def test_the_command_shows_what_was_launched(start: Start) -> None:
    pool = start(2)
    text = pool.command()
    assert "2 ranks x" in text
    argv = Path(f"/proc/{_pids(pool)['mpiexec']}/cmdline").read_bytes().decode().split("\0")[:-1]
    assert all(part in text for part in argv)


def test_a_stopped_pool_is_no_zombie_of_its_starter(start: Start) -> None:
    pool = start(1)
    keeper = _keeper(pool)
    pool.stop()
    assert ProcessId.of(keeper).start_ticks == 0  # not even an entry in the process table


def test_an_interrupted_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C arrives before the keeper has written anything."""
    from sciml_kernel.pool import control

    keepers: list[int] = []
    spawn = control.spawn_keeper

    def spawn_and_note(*arguments: object) -> int:
        keepers.append(spawn(*arguments))  # type: ignore[arg-type]
        return keepers[0]

    def interrupted(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(control, "spawn_keeper", spawn_and_note)
    monkeypatch.setattr(control, "wait_settled", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Pool.start(1)
    assert list(pools_root().iterdir()) == []
    assert ProcessId.of(keepers[0]).start_ticks == 0


def test_of_two_processes_that_submit_at_once_one_is_refused(start: Start, tmp_path: Path) -> None:
    """Both see a ready pool; without a claim the second call would wait behind the first, unseen."""
    pool = start(2)
    code = (
        "import pathlib, sys, time, sciml_kernel as sk\n"
        f"pool = sk.Pool.attach({pool.name!r})\n"
        "pool.client.ids\n"  # connected
        f"pathlib.Path({str(tmp_path)!r}, sys.argv[1]).touch()\n"
        f"while len(list(pathlib.Path({str(tmp_path)!r}).iterdir())) < 2:\n    time.sleep(0.0005)\n"
        "try:\n"
        f"    print('ran', pool.run('{HERE}:sleep', 1.5)[0])\n"
        "except sk.errors.PoolBusyError as error:\n"
        "    print('refused', error)\n"
    )
    script = [sys.executable, "-c", code]
    processes = [subprocess.Popen([*script, name], stdout=subprocess.PIPE, text=True) for name in "ab"]
    try:
        said = sorted(process.communicate(timeout=60)[0] for process in processes)
    finally:
        for process in processes:
            process.kill()
    assert said[0].startswith("ran slept")
    assert "is running" in said[1]
    assert said[1].startswith("refused")


def test_a_tainted_pool_keeps_its_ranks_where_that_was_asked_for(start: Start) -> None:
    pool = start(2, replace=False)
    pids = list(pool.report()["pid"])
    check_a_tainted_pool_that_waits(pool)
    assert set(pids).isdisjoint(pool.report()["pid"])
