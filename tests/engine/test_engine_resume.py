"""Checkpoints: whole or not used; a resumed run is the uninterrupted one, bit for bit on one rank."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import toy

from sciml_kernel.engine.interrupt import StopFlag
from sciml_kernel.errors import ConfigError, RecordError

pytestmark = pytest.mark.tf


def _same_bits(a: toy.Fitted, b: toy.Fitted) -> bool:
    return all(x.tobytes() == y.tobytes() for x, y in zip(a.weights, b.weights, strict=True))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_two_epochs_and_two_more_equal_four_bit_for_bit(tmp_path: Path, optimizer: str) -> None:
    settings = {"optimizer": optimizer, "dropout": 0.3, "normalise": True}
    whole = toy.fit(tmp_path / "whole", toy.make_config(epochs=4, **settings))
    half = toy.fit(tmp_path / "half", toy.make_config(epochs=2, **settings))
    assert not _same_bits(half, whole)
    rest = toy.fit(
        tmp_path / "rest", toy.make_config(epochs=4, **settings), resume_from=tmp_path / "half" / "checkpoints"
    )
    assert _same_bits(rest, whole)
    assert rest.values("val/loss") == whole.values("val/loss")[2:]
    assert rest.values("train/loss") == whole.values("train/loss")[12:]
    assert "resumed at epoch 3, step 12" in rest.said


def test_stop_in_the_middle_of_an_epoch_and_resume_equal_the_uninterrupted_run(tmp_path: Path) -> None:
    config = toy.make_config(epochs=3, schedule="linear", optimizer="adam", dropout=0.3)
    whole = toy.fit(tmp_path / "whole", config)
    # asked before the first step: known when the second has been launched
    stop = StopFlag()
    stop.request()
    part = toy.fit(tmp_path / "part", config, stop=stop)
    assert part.outcome.status == "interrupted"
    assert (part.outcome.position.epoch, part.outcome.position.batch, part.outcome.position.step) == (0, 2, 2)
    assert part.values("val/loss") == []
    assert not (tmp_path / "part" / "predictions.csv").exists()
    rest = toy.fit(tmp_path / "rest", config, resume_from=tmp_path / "part" / "checkpoints")
    assert _same_bits(rest, whole)
    np.testing.assert_array_equal(np.concatenate([part.task.seen, rest.task.seen]), whole.task.seen)
    assert rest.values("val/loss") == whole.values("val/loss")


def test_stop_during_a_validation_is_resumed_with_that_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = toy.make_config(epochs=2)
    whole = toy.fit(tmp_path / "whole", config)
    stop, original = StopFlag(), toy.ToyTask.validation_batches

    def stopping(self: toy.ToyTask, plan: object):  # type: ignore[no-untyped-def]
        stop.request()
        yield from original(self, plan)  # type: ignore[arg-type]

    monkeypatch.setattr(toy.ToyTask, "validation_batches", stopping)
    part = toy.fit(tmp_path / "part", config, stop=stop)
    assert part.outcome.status == "interrupted"
    assert part.outcome.position.step == 6
    monkeypatch.setattr(toy.ToyTask, "validation_batches", original)
    rest = toy.fit(tmp_path / "rest", config, resume_from=tmp_path / "part" / "checkpoints")
    assert rest.values("val/loss") == whole.values("val/loss")
    assert _same_bits(rest, whole)


def test_resume_of_a_finished_run_does_nothing_and_says_so(tmp_path: Path) -> None:
    config = toy.make_config(epochs=2)
    done = toy.fit(tmp_path / "done", config)
    again = toy.fit(tmp_path / "again", config, resume_from=tmp_path / "done" / "checkpoints")
    assert again.outcome.status == "completed"
    assert again.task.seen == []
    assert again.events == []
    assert _same_bits(again, done)
    assert again.said == ["nothing to do: the run is at epoch 2, step 12 already"]


def test_resume_with_no_epochs_validates_the_checkpoint(tmp_path: Path) -> None:
    done = toy.fit(tmp_path / "done", toy.make_config(epochs=2))
    seen = toy.fit(tmp_path / "seen", toy.make_config(epochs=0), resume_from=tmp_path / "done" / "checkpoints")
    assert seen.values("val/loss") == done.values("val/loss")[-1:]


def test_last_two_checkpoints_are_kept(tmp_path: Path) -> None:
    toy.fit(tmp_path, toy.make_config(epochs=5))
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-00000024.npz", "step-00000030.npz"]


def test_last_step_is_checkpointed_whatever_the_interval(tmp_path: Path) -> None:
    toy.fit(tmp_path, toy.make_config(epochs=5, checkpoint_every_epochs=3))
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-00000018.npz", "step-00000030.npz"]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path: Path, damage: str) -> None:
    config = toy.make_config(epochs=3)
    whole = toy.fit(tmp_path / "whole", config)
    toy.fit(tmp_path / "part", toy.make_config(epochs=2))
    folder = tmp_path / "part" / "checkpoints"
    newest = folder / "step-00000012.npz"
    content = bytearray(newest.read_bytes())
    if damage == "flipped":
        content[content.index(b"NUMPY") + 130] ^= 255  # behind the header of the first array: in its numbers
    newest.write_bytes({"truncated": content[: len(content) // 2], "flipped": content, "empty": b""}[damage])
    rest = toy.fit(tmp_path / "rest", config, resume_from=folder)
    assert any(str(newest) in line and "the one before it is used" in line for line in rest.said)
    assert "resumed at epoch 2, step 6" in rest.said
    assert _same_bits(rest, whole)


def test_no_whole_checkpoint_is_an_error_that_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=f"no whole checkpoint in {tmp_path}"):
        toy.fit(tmp_path / "a", toy.make_config(), resume_from=tmp_path)


@pytest.mark.parametrize(
    ("name", "value"), [("batch_size", 16), ("data_seed", 5), ("shuffle", False), ("validation_fraction", 0.5)]
)
def test_resume_with_another_data_order_is_refused(tmp_path: Path, name: str, value: object) -> None:
    toy.fit(tmp_path / "a", toy.make_config(epochs=1))
    with pytest.raises(ConfigError, match=f"was made with {name} = "):
        toy.fit(tmp_path / "b", toy.make_config(epochs=2, **{name: value}), resume_from=tmp_path / "a" / "checkpoints")


def test_resume_with_another_network_or_optimizer_is_refused(tmp_path: Path) -> None:
    toy.fit(tmp_path / "a", toy.make_config(epochs=1))
    for other in ({"normalise": True}, {"optimizer": "adam"}):
        with pytest.raises(ConfigError, match="resume with the config that it was made with"):
            toy.fit(tmp_path / "b", toy.make_config(epochs=2, **other), resume_from=tmp_path / "a" / "checkpoints")


def test_full_disk_while_writing_leaves_the_earlier_checkpoint_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sciml_kernel.engine import checkpoint

    toy.fit(tmp_path, toy.make_config(epochs=1))
    files = {path.name: path.read_bytes() for path in (tmp_path / "checkpoints").iterdir()}

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RecordError, match=r"checkpoint .*step-00000012.npz can't be written: No space left"):
        toy.fit(tmp_path, toy.make_config(epochs=3), resume_from=tmp_path / "checkpoints")
    assert {path.name: path.read_bytes() for path in (tmp_path / "checkpoints").iterdir()} == files
    checkpoint.read(tmp_path / "checkpoints" / "step-00000006.npz")


def test_checkpoint_of_another_format_is_refused(tmp_path: Path) -> None:
    from sciml_kernel.engine import checkpoint

    path = tmp_path / "step-00000001.npz"
    np.savez(path, meta=np.frombuffer(json.dumps({"format": 99}).encode(), np.uint8))
    with pytest.raises(RecordError, match=r"has format 99; this version reads 1"):
        checkpoint.read(path)


def test_state_hash_sees_values_shapes_dtypes_and_place() -> None:
    from sciml_kernel.engine.checkpoint import Position, state_hash

    zeros = np.zeros((2, 3), np.float32)
    cases = [
        ([zeros], Position()),
        ([zeros + np.float32(1e-30)], Position()),
        ([zeros.reshape(3, 2)], Position()),
        ([zeros.view(np.int32)], Position()),
        ([zeros], Position(step=1)),
        ([zeros, zeros], Position()),
    ]
    assert len({state_hash(arrays, position) for arrays, position in cases}) == len(cases)


def test_bfloat16_survives_the_file(tmp_path: Path) -> None:
    import keras

    from sciml_kernel.engine.checkpoint import Checkpoints, Position, read

    class State:
        variables = (keras.Variable([1.5, -2.0], dtype="bfloat16"),)
        seeds = ()

    Checkpoints(tmp_path, digest="", order={}, rank=0).save(State(), Position(step=3))  # type: ignore[arg-type]
    (array,) = read(tmp_path / "step-00000003.npz").arrays
    assert array.dtype.name == "bfloat16"
    np.testing.assert_array_equal(array.astype(np.float32), [1.5, -2.0])


def test_checkpoints_may_move_to_another_folder(tmp_path: Path) -> None:
    toy.fit(tmp_path / "a", toy.make_config(epochs=1))
    shutil.move(tmp_path / "a" / "checkpoints", tmp_path / "elsewhere")
    rest = toy.fit(tmp_path / "b", toy.make_config(epochs=2), resume_from=tmp_path / "elsewhere")
    assert rest.outcome.position.step == 12


def test_ranks_that_hold_other_weights_after_a_load_are_named(tmp_path: Path) -> None:
    from sciml_kernel.engine.collective import SingleCollective

    class ThirdRankDiffers(SingleCollective):
        """Answers for two more ranks; what the last one says is not what rank 0 says."""

        def gather_json(self, value: object) -> list[object]:
            return [value, value, "0" * 64] if isinstance(value, str) else [value] * 3

    toy.fit(tmp_path / "a", toy.make_config(epochs=1))
    with pytest.raises(RecordError, match="other weights than on rank 0 are on rank 2"):
        toy.fit(
            tmp_path / "b",
            toy.make_config(epochs=2),
            collective=ThirdRankDiffers(),
            resume_from=tmp_path / "a" / "checkpoints",
        )
