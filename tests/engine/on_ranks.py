"""Trainings over the ranks of an MPI world, for `test_engine_ranks.py`.

`mpiexec -n 2 python on_ranks.py COLLECTIVE OUT`: every rank runs all scenarios in one process, one after the other, and
writes what it saw to `OUT/rank-<r>.json`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import toy

from sciml_kernel import config as configs
from sciml_kernel import records, registry
from sciml_kernel.engine import collective as collectives
from sciml_kernel.engine import device
from sciml_kernel.errors import SciMLError

EQUAL = {"optimizer": "adam", "epochs": 2}


def _weights(fitted: toy.Fitted) -> list[Any]:
    return [weight.tolist() for weight in fitted.weights]


def equal_to_one_rank(out: Path, collective: Any) -> dict[str, Any]:
    fitted = toy.fit(out / "equal", toy.make_config(collective=collective.name, **EQUAL), collective=collective)
    return {
        "weights": _weights(fitted),
        "train_loss": fitted.values("train/loss"),
        "val": [fitted.values("val/loss"), fitted.values("val/count")],
        "seen": [batch.tolist() for batch in fitted.task.seen],
        "baselines": len(fitted.values("baseline/mean/y")),
    }


def batch_norm_statistics_are_equal(out: Path, collective: Any) -> list[Any]:
    return _weights(toy.fit(out / "norm", toy.make_config(normalise=True, epochs=1), collective=collective))


def dropout_differs(out: Path, collective: Any) -> dict[str, Any]:
    import keras

    fitted = toy.fit(out / "dropout", toy.make_config(dropout=0.5, epochs=1), collective=collective)
    layer = next(layer for layer in fitted.task.model.layers if isinstance(layer, keras.layers.Dropout))
    return {"mask": (layer(toy.data()[0][:20], training=True).numpy() == 0).tolist(), "weights": _weights(fitted)}


def interrupted_and_resumed(out: Path, collective: Any) -> dict[str, Any]:
    """Only rank 1 gets the SIGINT; a run through the entry, then its resume, then the resume of a finished run."""
    from sciml_kernel.engine.entry import train

    def payload(name: str, resume_from: str | None, **settings: Any) -> dict[str, Any]:
        text = configs.to_json(toy.make_config(collective=collective.name, **settings))
        path = records.create(name, text, root=out / "runs").path if collective.rank == 0 else None
        path = collective.gather_json(str(path))[0]
        return {"run": Path(path).name, "record": path, "config": text, "resume_from": resume_from}

    first = payload("first", None, epochs=4, fault="sigint", fault_rank=1, **{"optimizer": "adam"})
    second = payload("second", first["record"], epochs=4, **{"optimizer": "adam"})
    third = payload("third", second["record"], epochs=4, **{"optimizer": "adam"})
    results = [train(first), train(second), train(third)]
    collective.barrier()
    return {
        "results": results,
        "statuses": [records.read(one["record"])["status"] for one in (first, second, third)],
        "weights": [weight.numpy().tolist() for weight in toy.ToyRecipe.last.model.weights],  # type: ignore[union-attr]
        "logs": Path(first["record"], "logs", f"rank-{collective.rank}.log").exists(),
        "record": second["record"],
    }


def refused_on_all_ranks(out: Path, collective: Any) -> dict[str, str]:
    """Each of these is seen by every rank, and the ranks go on together afterwards."""
    found: dict[str, str] = {}
    broken = out / "broken"
    if collective.rank == 0:
        broken.mkdir()
        (broken / "step-00000001.npz").write_bytes(b"not a checkpoint")
    cases: dict[str, tuple[dict[str, Any], Path | None]] = {
        "other_data": ({"fault": "other_data", "fault_rank": 1}, None),
        "shape": ({"fault": "shape"}, None),
        "nan": ({"fault": "nan", "fault_rank": 1}, None),
        "no_checkpoint": ({}, broken),
        "odd_batch": ({"batch_size": 7}, None),
    }
    for name, (settings, resume_from) in cases.items():
        try:
            toy.fit(out / name, toy.make_config(**settings), collective=collective, resume_from=resume_from)
            found[name] = ""
        except SciMLError as error:
            found[name] = f"{type(error).__name__}: {error}"
        collective.barrier()
    try:
        collectives.make("single")
    except SciMLError as error:
        found["single"] = f"{type(error).__name__}: {error}"
    return found


def main() -> None:
    device.quiet()
    registry.entry_points = toy.entry_points  # type: ignore[assignment]
    name, out = sys.argv[1], Path(sys.argv[2])
    collective = collectives.make(name)
    result: dict[str, Any] = {"size": collective.size}
    for scenario in (
        equal_to_one_rank,
        batch_norm_statistics_are_equal,
        dropout_differs,
        interrupted_and_resumed,
        refused_on_all_ranks,
    ):
        result[scenario.__name__] = scenario(out, collective)
    (out / f"rank-{collective.rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
