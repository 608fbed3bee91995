"""What must not be in a record is not in it, and what must be is."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from record_helpers import make

from sciml_kernel.records.hardware import hardware
from sciml_kernel.records.secrets import VARIABLES, is_secret_name, kept_variables, mask

# Invented ones, put together here so that no scanner takes them for real.
GITHUB = "ghp_" + "a1B2" * 9
AWS = "AKIA" + "ABCD2345" * 2
SECRETS = [
    ("--token {}", "hunter2hunter2"),
    ("-p api_key {} -p epochs 3", "s3cr3t-value"),
    ('password = "{}"', "correct horse"),
    ("'client_secret': '{}'", "abc/def+ghi"),
    ("AWS_SECRET_ACCESS_KEY={}", "wJalrXUtnFEMI/K7MDENG"),
    ("curl -H 'Authorization: Bearer {}'", "abcdefghijklmnop1234"),
    ("postgres://me:{}@db/x", "pass-word"),
    ("git clone {}", GITHUB),
    ("id {} in a text", AWS),
    ("-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----", "MIIEpAIBAAKCAQEA"),
]


@pytest.mark.parametrize(("form", "secret"), SECRETS)
def test_a_secret_is_masked_and_what_is_around_it_stays(form: str, secret: str) -> None:
    masked = mask(form.format(secret))
    assert secret not in masked
    assert "***" in masked
    assert masked.startswith(form.split("{}")[0].rstrip("\n"))


@pytest.mark.parametrize(
    "text",
    [
        "sciml batch n.ipynb -p epochs 30 -p data_dir /scratch/u",
        "n_tokens = 512",
        "tokenizer: 'bert'",
        "optimizer = keras.optimizers.Adam(1e-3)",
        "diff --git a/x.py b/x.py\n@@ -1 +1 @@\n-a\n+b\n",
        "see https://arxiv.org/abs/1808.04728",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert mask(text) == text


def test_names_that_say_secret() -> None:
    assert all(map(is_secret_name, ["token", "API_KEY", "db_password", "aws-secret-access-key", "HF_TOKEN"]))
    assert not any(map(is_secret_name, ["n_tokens", "key", "keyword", "monkey", "passes", "seed", "token_size"]))


def test_variables_are_kept_by_name_and_no_other() -> None:
    environ = {
        "OMP_NUM_THREADS": "4",
        "HOROVOD_FUSION_THRESHOLD": "1",
        "SLURM_JOB_ID": "7",
        "HOME": "/home/me",
        "HF_TOKEN": "x",
        "TF_API_TOKEN": "x",
        "XLA_FLAGS": f"--token={GITHUB}",
        "SLURM_JWT": "x",
    }
    assert kept_variables(environ) == {
        "HOROVOD_FUSION_THRESHOLD": "1",
        "OMP_NUM_THREADS": "4",
        "SLURM_JOB_ID": "7",
        "XLA_FLAGS": "--token=***",
    }
    assert len(set(VARIABLES)) == len(VARIABLES)


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=e@x", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "train.py").write_text("rate = 1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    monkeypatch.chdir(folder)
    return folder


def test_a_planted_secret_is_nowhere_in_the_record(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "SLURM_JWT", "HOROVOD_SECRET_KEY", "TF_PASSWORD"):
        monkeypatch.setenv(name, "planted-in-the-environment")
    monkeypatch.setenv("XLA_FLAGS", f"--x={GITHUB}")
    (repository / "train.py").write_text(f'rate = 2\ntoken = "planted-in-the-tree"\nother = "{AWS}"\n')
    (repository / ".env").write_text("planted-untracked")
    record = make(tmp_path / "runs", launch="sciml batch n.ipynb -p api_token planted-on-the-line -p epochs 3")
    everything = "".join(path.read_text() for path in record.path.rglob("*") if path.is_file())
    assert "planted" not in everything
    assert GITHUB not in everything
    assert AWS not in everything
    content = record.read()
    assert "-p epochs 3" in content["launch"]
    assert content["git"]["patch_masked"] is True
    assert "+rate = 2" in (record.path / content["git"]["patch"]).read_text()
    assert content["git"]["untracked"] == [".env"]


def test_the_patch_makes_the_files_of_the_run_again(repository: Path, tmp_path: Path) -> None:
    (repository / "train.py").write_text("rate = 2\n")
    (repository / "picture.bin").write_bytes(bytes(range(256)))
    git(repository, "add", "picture.bin")
    record = make(tmp_path / "runs")
    patch = record.path / record.read()["git"]["patch"]
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(repository), str(clone))
    git(clone, "apply", str(patch))
    assert (clone / "train.py").read_text() == "rate = 2\n"
    assert (clone / "picture.bin").read_bytes() == bytes(range(256))


def test_a_patch_that_is_too_long_is_left_out_and_its_length_said(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sciml_kernel.records.git.MOST_PATCH_BYTES", 1000)
    (repository / "train.py").write_text("x = 1\n" * 1000)
    record = make(tmp_path / "runs")
    git_entry = record.read()["git"]
    assert git_entry["patch"] is None
    assert git_entry["patch_bytes"] > 6000
    assert git_entry["dirty"] is True
    assert not list(record.path.glob("*.patch"))


def test_hardware_is_read_from_proc(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor : 0\nmodel name\t: Some CPU @ 2 GHz\nprocessor : 1\n")
    (tmp_path / "meminfo").write_text("MemTotal:       1000 kB\nMemFree: 1 kB\n")
    device = tmp_path / "driver" / "nvidia" / "gpus" / "0000:01:00.0"
    device.mkdir(parents=True)
    (device / "information").write_text("Model: \t\t NVIDIA A100\nIRQ: 1\n")
    found = hardware(tmp_path)
    assert (found["cpu"], found["memory_bytes"], found["gpus"]) == ("Some CPU @ 2 GHz", 1_024_000, ["NVIDIA A100"])
    assert found["cores_allowed"] == len(os.sched_getaffinity(0))
    nothing = hardware(tmp_path / "missing")
    assert (nothing["cpu"], nothing["memory_bytes"], nothing["gpus"]) == (None, None, [])


def test_a_full_disk_leaves_room_for_how_the_run_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = make(tmp_path)
    record.start()
    reserve = record.path / ".reserve"
    assert reserve.stat().st_size >= 65_536
    from sciml_kernel.records import record as module

    write = module.write_atomic

    def full_until_there_is_room(path: Path, data: str) -> None:
        if reserve.exists():
            raise OSError(28, "No space left on device")
        write(path, data)

    monkeypatch.setattr(module, "write_atomic", full_until_there_is_room)
    record.close("failed", {"type": "OSError", "message": "No space left on device"})
    assert json.loads((record.path / "record.json").read_text())["status"] == "failed"


def test_an_ended_run_keeps_no_reserve(tmp_path: Path) -> None:
    record = make(tmp_path)
    record.start()
    record.close("completed")
    assert not (record.path / ".reserve").exists()
