"""The fields of a run. Each has a meaning, a unit and a range; a value outside is refused when the config is made.

Groups are by who changes them: `data` whoever brings the data, `optim` whoever tunes, `train` whoever runs, `model`
the recipe's own (see the recipe's TensorFlow-free config module). Leaf names are unique over the groups, so that
`learning_rate=1e-3` and `optim.learning_rate=1e-3` say the same.

The number of ranks is no part of the config: the same config on one rank and on four is the same experiment, and
`batch_size` is the number of samples of one optimizer step over all ranks.
"""

from __future__ import annotations

import dataclasses
import operator
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from sciml_kernel.errors import ConfigError

__all__ = ["DataConfig", "OptimConfig", "RunConfig", "TrainConfig", "check_fields", "checked", "param"]


def param(
    default: Any,
    doc: str,
    *,
    unit: str = "",
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    choices: tuple[Any, ...] | None = None,
) -> Any:
    """A dataclass field with its documentation. `ge`, `gt`, `le`, `lt` bound a number, or each number of a tuple."""
    metadata = {"doc": doc, "unit": unit, "ge": ge, "gt": gt, "le": le, "lt": lt, "choices": choices}
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


_BOUNDS: tuple[tuple[str, str, Callable[[float, float], bool]], ...] = (
    ("ge", ">=", operator.lt),
    ("gt", ">", operator.le),
    ("le", "<=", operator.gt),
    ("lt", "<", operator.ge),
)


def _check_range(name: str, value: Any, metadata: typing.Mapping[str, Any]) -> None:
    for item in value if isinstance(value, tuple) else (value,):
        if isinstance(item, (int, float)) and not isinstance(item, bool):
            for key, sign, wrong in _BOUNDS:
                bound = metadata.get(key)
                if bound is not None and (item != item or wrong(item, bound)):
                    raise ConfigError(f"{name} must be {sign} {bound}, got {value!r}")
        choices = metadata.get("choices")
        if choices is not None and item not in choices:
            raise ConfigError(f"{name} must be one of {', '.join(map(repr, choices))}, got {item!r}")


def checked(name: str, kind: Any, value: Any, metadata: typing.Mapping[str, Any]) -> Any:
    """Return the value as the declared type, or raise ConfigError naming the field, the type and what was got."""
    if isinstance(value, list):  # JSON and YAML know no tuples
        value = tuple(value)
    try:
        value = TypeAdapter(kind, config=ConfigDict(strict=True)).validate_python(value)
    except ValidationError:
        wanted = getattr(kind, "__name__", None) if not typing.get_args(kind) else str(kind)
        raise ConfigError(f"{name} must be {wanted or kind}, got {value!r} ({type(value).__name__})") from None
    _check_range(name, value, metadata)
    return value


def check_fields(instance: Any, group: str) -> None:
    """Check every field of a frozen dataclass, and store the value in its declared type."""
    kinds = typing.get_type_hints(type(instance))
    for item in dataclasses.fields(instance):
        value = checked(f"{group}.{item.name}", kinds[item.name], getattr(instance, item.name), item.metadata)
        object.__setattr__(instance, item.name, value)


@dataclass(frozen=True)
class DataConfig:
    """Which samples, and in which order."""

    path: str = param(dataclasses.MISSING, "folder or file with the samples")
    batch_size: int = param(8, "samples of one optimizer step, over all ranks", unit="samples", ge=1)
    validation_fraction: float = param(
        0.2, "share of the simulations (or years) that is held out; samples of one simulation never part", gt=0, lt=1
    )
    data_seed: int = param(1, "seed of the held-out choice and of the order of each epoch", ge=0)
    shuffle: bool = param(True, "new global order each epoch; false reads in file order")
    augment: bool = param(False, "random symmetries of the sample, where the recipe knows some")

    def __post_init__(self) -> None:
        check_fields(self, "data")


@dataclass(frozen=True)
class OptimConfig:
    """How weights change."""

    optimizer: str = param("adam", "update rule", choices=("adam", "sgd"))
    learning_rate: float = param(1e-3, "step size after the warm-up", gt=0)
    final_learning_rate: float = param(1e-4, "step size at the end of the schedule", ge=0)
    schedule: str = param("linear", "course between the two", choices=("constant", "linear", "cosine"))
    warmup_epochs: float = param(0.0, "epochs in which the step size grows linearly from zero", unit="epochs", ge=0)
    momentum: float = param(0.9, "momentum of sgd; the first decay of adam", ge=0, lt=1)
    larc: bool = param(False, "scale each layer's gradient by min(larc_eta |w| / |g|, 1) before the update")
    larc_eta: float = param(0.002, "trust coefficient of larc", gt=0)

    def __post_init__(self) -> None:
        check_fields(self, "optim")


@dataclass(frozen=True)
class TrainConfig:
    """How long, on what, how often it reports."""

    epochs: int = param(10, "passes over the training samples", unit="epochs", ge=0)
    max_steps: int = param(0, "stop after so many optimizer steps; 0: no such limit", unit="steps", ge=0)
    seed: int = param(1, "seed of the initial weights, dropout and augmentation", ge=0)
    precision: str = param("float32", "arithmetic of the layers", choices=("float32", "mixed_bfloat16"))
    collective: str = param(
        "horovod", "what adds up over the ranks; single only on one rank", choices=("horovod", "mpi4py", "single")
    )
    report_every_s: float = param(2.0, "longest silence between two reports of the loss", unit="s", ge=0)
    checkpoint_every_epochs: int = param(1, "epochs between checkpoints; the last is always kept", unit="epochs", ge=1)

    def __post_init__(self) -> None:
        check_fields(self, "train")


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides what a run computes. `model` is the recipe's own dataclass."""

    recipe: str
    data: DataConfig
    optim: OptimConfig
    train: TrainConfig
    model: Any
