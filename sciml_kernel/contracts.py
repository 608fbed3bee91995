"""What the layers say to each other: frozen records, and Protocols that a plug-in fulfils.

Records are plain data that survive JSON: `from_json(to_json(x)) == x`. Protocols are structural: nothing needs to
inherit from them. Arrays are written `name: (dims), dtype, unit`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr

__all__ = [
    "ERROR_VARIABLE",
    "PARENT_VARIABLE",
    "RESUME_VARIABLE",
    "STAGES_VARIABLE",
    "Collective",
    "Metric",
    "MetricEvent",
    "Pool",
    "RankExit",
    "RankReport",
    "Reader",
    "Recipe",
    "RecipeSpec",
    "ShardPlan",
    "Sink",
    "Task",
]

PARENT_VARIABLE = "SCIML_PARENT_RUN"
"""Set by a batch run in its kernel: path of the batch's record."""

RESUME_VARIABLE = "SCIML_RESUME_RUN"
"""Set by a batch run in its kernel: path of the record that it goes on from."""

STAGES_VARIABLE = "SCIML_BATCH_STAGES"
"""Set by a batch run in its kernel: JSON file, sha256 of a cell's source -> the stage that its tag says it is."""

ERROR_VARIABLE = "SCIML_BATCH_ERROR"
"""Set by a batch run in its kernel: file that takes the error entry of a cell that raised."""


class _Json:
    """JSON in and out for the flat records below."""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)  # type: ignore[call-overload]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(**data)


@dataclass(frozen=True, slots=True)
class MetricEvent(_Json):
    """One number that a run reported: one line of `metrics.jsonl`.

    run: id of the run (its directory's name). rank: who reported; 0 for values already reduced over ranks.
    step: optimizer steps done. epoch: epochs begun, from 0. unit: "" for a pure number. wall_time_s: seconds since the
    Unix epoch.
    """

    run: str
    rank: int
    step: int
    epoch: int
    name: str
    value: float
    unit: str
    wall_time_s: float


@dataclass(frozen=True, slots=True)
class Metric:
    """A named number before it is known to which step it belongs."""

    name: str
    value: float
    unit: str = ""


@dataclass(frozen=True, slots=True)
class RankReport(_Json):
    """What one rank says of itself. `rank` is the MPI rank, which is the engine id as well."""

    rank: int
    world_size: int
    host: str
    pid: int
    cores: int
    memory_gib: float
    gpu: str
    versions: dict[str, str] = field(default_factory=dict)
    mpi_library: str = ""
    last_seen_utc: str = ""


@dataclass(frozen=True, slots=True)
class RankExit(_Json):
    """How a rank's process ended, as its wrapper's waitpid saw it. `signal` is a name such as "SIGKILL", else None.

    memory_ran_out: whether the kernel killed it for that; None where it does not say.
    """

    rank: int
    host: str
    pid: int
    exit_code: int | None
    signal: str | None
    ended_utc: str
    memory_ran_out: bool | None = None


@dataclass(frozen=True)
class ShardPlan:
    """One rank's share of one epoch.

    indices: (n_batches, batch), int64: global sample numbers in reading order. Over all ranks of an epoch the shares
    are disjoint, and every rank has the same number of batches. weights: the same shape, float32: 1 for a sample that
    counts, 0 for padding (only where `padded`). n_dropped: samples that no rank reads in this epoch.
    """

    epoch: int
    rank: int
    size: int
    indices: np.ndarray
    weights: np.ndarray
    n_dropped: int


@dataclass(frozen=True)
class RecipeSpec:
    """What the notebook may know of a recipe without importing TensorFlow; the target of a `sciml_kernel.recipes`
    entry point.

    model_type: frozen dataclass of the recipe's own parameters. recipe: "module:attribute" of the `Recipe`, imported
    on the ranks only. defaults: dotted config keys that differ from the general defaults. check_data: called in the
    notebook before anything starts; raises DataError. describe_data: path -> data manifest for the record.
    """

    name: str
    title: str
    model_type: type
    recipe: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    check_data: Callable[[Any], None] | None = None
    describe_data: Callable[[str | Path], Mapping[str, Any]] | None = None


@runtime_checkable
class Collective(Protocol):
    """Sums and averages over the ranks of one MPI world. Every method is called by all ranks, in the same order.

    `average_gradients` and `sum_in_graph` run inside `tf.function`; the others take and give numpy or JSON. The
    conformance suite is `sciml_kernel.testing.collective_suite`.
    """

    name: str
    rank: int
    size: int
    local_rank: int

    def average_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """Mean over ranks of each tensor, same shapes and dtypes."""

    def sum_in_graph(self, tensor: Any) -> Any:
        """Sum over ranks of one tensor."""

    def broadcast_variables(self, variables: Sequence[Any]) -> None:
        """Give every rank the values of rank 0, in place."""

    def sum_arrays(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Sum over ranks of each array; the same keys and shapes on all ranks."""

    def gather_json(self, value: Any) -> list[Any]:
        """The JSON value of every rank, by rank, on every rank."""

    def barrier(self) -> None:
        """Return when all ranks have called it."""


@runtime_checkable
class Sink(Protocol):
    """Takes metric events. `publish` never raises for a slow or absent reader; `close` flushes."""

    def publish(self, events: Iterable[MetricEvent]) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class Task(Protocol):
    """A recipe made ready on one rank: model, data and metrics. Made by `Recipe.prepare`; used by `engine.loop`.

    Batches are `(x, y)` tuples of tensors; a validation batch is `(x, y, weight)` with weight (batch,), float32, 0 for
    padding.
    """

    model: Any
    n_train: int
    n_validation: int
    input_spec: tuple[Any, Any]

    def train_batches(self, plan: ShardPlan) -> Iterable[tuple[Any, Any]]: ...

    def validation_batches(self, plan: ShardPlan) -> Iterable[tuple[Any, Any, Any]]: ...

    def loss(self, target: Any, prediction: Any) -> Any:
        """Scalar float32 tensor: mean over the samples of the batch."""

    def validation_sums(self, target: Any, prediction: Any, weight: Any) -> dict[str, Any]:
        """Tensors that may be added up over batches and ranks, the loss's among them."""

    def validation_metrics(self, sums: Mapping[str, np.ndarray]) -> list[Metric]:
        """Metrics from the sums of all batches of all ranks; `val/loss` first."""

    def baselines(self) -> list[Metric]:
        """The trivial answers on the same validation samples; called once, on rank 0."""

    def prediction_table(self, indices: np.ndarray, prediction: np.ndarray) -> dict[str, list[Any]]:
        """Columns for `predictions.csv`: one row a validation sample."""


@runtime_checkable
class Recipe(Protocol):
    """Builds a Task on a rank. Called once a run, on every rank, with TensorFlow set up for the rank's device."""

    def prepare(self, config: Any, *, collective: Collective) -> Task: ...


@runtime_checkable
class Reader(Protocol):
    """Opens one file format; the target of a `sciml_kernel.readers` entry point."""

    name: str

    def can_read(self, path: Path) -> bool: ...

    def open(self, path: Path) -> xr.Dataset: ...


@runtime_checkable
class Pool(Protocol):
    """What `session` needs of a pool; fulfilled by `pool.Pool` and `pool.fake.FakePool`."""

    @property
    def name(self) -> str: ...

    @property
    def id(self) -> str:
        """Differs from every other pool's, also from one that had the same name before."""

    @property
    def n(self) -> int: ...

    @property
    def state(self) -> str: ...

    def command(self) -> str: ...

    def run(self, fn_or_name: Any, *args: Any, timeout: float | None = None) -> list[Any]: ...

    def submit(self, name: str, *args: Any) -> Any: ...
