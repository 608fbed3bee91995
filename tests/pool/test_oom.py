"""Whether the kernel killed for lack of memory, told from the counters of the control group."""

from __future__ import annotations

from pathlib import Path

import pytest

from sciml_kernel.pool.generation import _ended
from sciml_kernel.pool.oom import oom_kills

_V2 = "low 0\nhigh 0\nmax 12\noom 1\noom_kill 3\noom_group_kill 0\n"
_V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("own", "file", "text", "count"),
    [
        ("0::/user.slice/job\n", "user.slice/job/memory.events", _V2, 3),
        ("0::/../../host/path\n", "memory.events", _V2, 3),  # seen from inside a container
        ("9:cpu:/\n4:memory:/job_1\n", "memory/job_1/memory.oom_control", _V1, 5),
        ("4:cpu,memory:/job_1\n0::/\n", "memory/job_1/memory.oom_control", _V1, 5),
        ("4:memory:/gone\n", "memory/memory.oom_control", _V1, 5),
        ("4:memory:/old\n", "memory/old/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n", None),
        ("0::/\n", "other", "", None),
    ],
)
def test_the_count_is_that_of_our_control_group(
    tmp_path: Path, own: str, file: str, text: str, count: int | None
) -> None:
    _write(tmp_path / "root" / file, text)
    assert oom_kills(tmp_path / "root", _write(tmp_path / "cgroup", own)) == count


def test_no_control_groups_are_no_answer(tmp_path: Path) -> None:
    assert oom_kills(tmp_path, tmp_path / "missing") is None


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (True, "rank 1 @ nid1 (pid 9) was ended by SIGKILL: memory ran out, and the kernel killed it"),
        (False, "rank 1 @ nid1 (pid 9) was ended by SIGKILL"),
        (None, "rank 1 @ nid1 (pid 9) was ended by SIGKILL (nobody sent it? then memory ran out)"),
    ],
)
def test_memory_is_named_only_when_it_is_known(known: bool | None, words: str) -> None:
    entry = {"rank": 1, "host": "nid1", "pid": 9, "exit_code": None, "signal": "SIGKILL", "memory_ran_out": known}
    assert _ended(entry) == words
