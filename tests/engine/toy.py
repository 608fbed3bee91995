"""Linear regression as a recipe: the smallest thing that fulfils `contracts.Task`. No batch norm, no dropout.

y = x W + b + noise; `x`: (sample, 5), float32; `y`: (sample, 2), float32. Gradient descent on it has a closed form.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Iterable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sciml_kernel import config as configs
from sciml_kernel import registry
from sciml_kernel.contracts import Metric, MetricEvent, RecipeSpec, ShardPlan
from sciml_kernel.engine.interrupt import StopFlag

if TYPE_CHECKING:
    from sciml_kernel.engine.loop import Outcome

FSYNC = os.fsync
SLOW_S = 0.03
N_TRAIN, N_VALIDATION, N_FEATURES, N_TARGETS = 48, 13, 5, 2


@dataclasses.dataclass(frozen=True)
class ToyConfig:
    """dropout: of the input. normalise: with batch normalisation. fault: what goes wrong, see `ToyTask`."""

    dropout: float = configs.param(0.0, "share of the input that is dropped", ge=0, lt=1)
    normalise: bool = configs.param(False, "batch normalisation of the input")
    fault: str = configs.param("", "what goes wrong")
    fault_rank: int = configs.param(0, "where it goes wrong", ge=0)


def data() -> tuple[np.ndarray, np.ndarray]:
    """All samples, training ones first: x (61, 5), y (61, 2), float32."""
    random = np.random.default_rng(7)
    x = random.normal(size=(N_TRAIN + N_VALIDATION, N_FEATURES))
    y = x @ random.normal(size=(N_FEATURES, N_TARGETS)) + 0.5 + 0.1 * random.normal(size=(len(x), N_TARGETS))
    return x.astype(np.float32), y.astype(np.float32)


class ToyTask:
    """fault: what goes wrong, on `fault_rank` only: "nan" (in training sample 24), "raise" (before the third batch),
    "sigint" (before the ninth batch the process gets a SIGINT), "other_data" (fewer samples), "few_batches" (a batch
    less than planned), "slow" (30 ms to read a batch), "slow_disk" (1.5 s to write the second checkpoint), "sum_shape",
    "sum_dtype" (a sum of another shape or dtype than on the other ranks), "order" (another collective than on the other
    ranks), "late" (does not come to the second step); on all: "shape" (a target of another shape), "slow_compile",
    "slow_validation" (1 s), "slow_prepare" (for ever, in Python), "prepare_waits" (the same on `fault_rank`, for which
    all others wait in a collective).

    Whoever waits is told by files in the data's folder: `<fault>-<rank>` appears when the slow part begins.
    """

    def __init__(self, config: configs.RunConfig, collective: Any) -> None:
        import keras
        import tensorflow as tf

        model: ToyConfig = config.model
        self.x, self.y = data()
        self.n_train, self.n_validation = N_TRAIN, N_VALIDATION
        self._collective, self._folder, rank = collective, Path(config.data.path), collective.rank
        here = rank == model.fault_rank
        self._fault, self._fault_of_all = model.fault if here else "", model.fault
        if self._fault == "slow_disk":
            os.fsync = self._slow_fsync
        elif getattr(os.fsync, "__func__", None) is ToyTask._slow_fsync:  # of an earlier training in this process
            os.fsync = FSYNC
        if model.fault == "slow_prepare" or self._fault == "prepare_waits":
            self._say()
            while True:
                time.sleep(0.01)
        if model.fault == "prepare_waits":
            self._say()
            collective.sum_arrays({"x": np.ones(3)})
        if model.fault == "nan" and here:
            self.x[N_TRAIN // 2] = np.nan
        if model.fault == "shape":
            self.y = self.y[:, :1]
        if model.fault == "other_data" and here:
            self.n_train -= 8
        layers: list[Any] = [keras.Input((N_FEATURES,))]
        if model.normalise:
            layers.append(keras.layers.BatchNormalization())
        if model.dropout:
            layers.append(keras.layers.Dropout(model.dropout))
        self.model = keras.Sequential([*layers, keras.layers.Dense(N_TARGETS)])
        self.input_spec = (tf.TensorSpec((None, N_FEATURES)), tf.TensorSpec((None, N_TARGETS)))
        self.seen: list[np.ndarray] = []

    def _say(self, text: str = "") -> None:
        if self._folder != Path(__file__).parent:
            (self._folder / f"{self._fault_of_all}-{self._collective.rank}").write_text(text)

    def _slow_fsync(self, fd: int) -> None:
        if "step-00000012" in os.readlink(f"/proc/self/fd/{fd}"):
            self._say()
            end = time.monotonic() + 1.5
            while time.monotonic() < end:  # in Python, where a signal's handler runs
                time.sleep(0.01)
        FSYNC(fd)

    def train_batches(self, plan: ShardPlan) -> Iterator[tuple[Any, Any]]:
        for i_batch, indices in enumerate(plan.indices):
            if self._fault == "late" and i_batch == 1:
                self._say()
                time.sleep(60)
            if self._fault == "slow":
                time.sleep(SLOW_S)
            if self._fault == "raise" and i_batch == 2:
                self._say(repr(time.time()))
                raise OSError("the disk is gone")
            if self._fault == "sigint" and len(self.seen) == 8:
                os.kill(os.getpid(), signal.SIGINT)
            if self._fault == "few_batches" and i_batch == len(plan.indices) - 1:
                return
            self.seen.append(indices)
            yield self.x[indices], self.y[indices]

    def validation_batches(self, plan: ShardPlan) -> Iterator[tuple[Any, Any, Any]]:
        for indices, weight in zip(plan.indices + N_TRAIN, plan.weights, strict=True):
            if self._fault_of_all == "slow_validation":
                self._say()
                time.sleep(1.0)
            yield self.x[indices], self.y[indices], weight

    def loss(self, target: Any, prediction: Any) -> Any:
        import tensorflow as tf

        loss = tf.reduce_mean(tf.square(prediction - target))
        if self._fault_of_all == "slow_compile":
            self._say()
            time.sleep(1.0)  # in the tracing, once
        if self._fault_of_all in ("sum_shape", "sum_dtype", "order"):
            # A factor of one: the gradients wait for it, so that each rank is in one collective at a time.
            loss *= 1.0 + tf.minimum(tf.abs(self._unlike_the_others()), 0.0)
        return loss

    def _unlike_the_others(self) -> Any:
        import tensorflow as tf

        if self._fault == "order":
            return self._collective.average_gradients([tf.ones(3)])[0][0]
        ones = tf.ones(4 if self._fault == "sum_shape" else 3, tf.float64 if self._fault == "sum_dtype" else tf.float32)
        return tf.cast(self._collective.sum_in_graph(ones)[0], tf.float32)

    def validation_sums(self, target: Any, prediction: Any, weight: Any) -> dict[str, Any]:
        import tensorflow as tf

        error = tf.reduce_mean(tf.square(prediction - target), axis=1)
        return {"loss": tf.reduce_sum(error * weight), "count": tf.reduce_sum(weight)}

    def validation_metrics(self, sums: Any) -> list[Metric]:
        return [Metric("val/loss", float(sums["loss"] / sums["count"])), Metric("val/count", float(sums["count"]))]

    def baselines(self) -> list[Metric]:
        truth = self.y[N_TRAIN:]
        return [Metric("baseline/mean/y", float(np.mean((truth - self.y[:N_TRAIN].mean(0)) ** 2)))]

    def prediction_table(self, indices: np.ndarray, prediction: np.ndarray) -> dict[str, list[Any]]:
        return {
            "sample": list(indices),
            "true_0": list(self.y[indices + N_TRAIN, 0]),
            "predicted_0": list(prediction[:, 0]),
        }


class ToyRecipe:
    last: ToyTask | None = None

    def prepare(self, config: configs.RunConfig, *, collective: Any) -> ToyTask:
        ToyRecipe.last = ToyTask(config, collective)
        return ToyRecipe.last


RECIPE = ToyRecipe()
SPEC = RecipeSpec(name="toy", title="linear regression", model_type=ToyConfig, recipe="toy:RECIPE")


def entry_points(group: str) -> list[EntryPoint]:
    """In place of `registry.entry_points`: the toy is the only recipe that is installed."""
    return [EntryPoint("toy", "toy:SPEC", group)] if group == registry.RECIPES else []


def install(folder: Path) -> Path:
    """Make the toy an installed recipe for whoever has the folder and this one on its path."""
    about = folder / "toy_recipe-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy_recipe\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[{registry.RECIPES}]\ntoy = toy:SPEC\n")
    return folder


@dataclasses.dataclass
class Fitted:
    """What a training left: outcome, task, metric events, lines said, and the weights."""

    outcome: Outcome
    task: ToyTask
    events: list[MetricEvent]
    said: list[str]

    @property
    def weights(self) -> list[np.ndarray]:
        return [np.array(v.numpy()) for v in self.task.model.weights]

    def values(self, name: str) -> list[float]:
        return [event.value for event in self.events if event.name == name]


class ListSink:
    def __init__(self) -> None:
        self.events: list[MetricEvent] = []

    def publish(self, events: Iterable[MetricEvent]) -> None:
        self.events += events

    def close(self) -> None:
        pass


def fit(
    directory: Path,
    config: configs.RunConfig,
    *,
    collective: Any = None,
    stop: StopFlag | None = None,
    resume_from: Path | None = None,
) -> Fitted:
    """The loop on the toy, with files in `directory`; on every rank."""
    from sciml_kernel import optim
    from sciml_kernel.engine import collective as collectives
    from sciml_kernel.engine import device
    from sciml_kernel.engine.checkpoint import Checkpoints
    from sciml_kernel.engine.loop import Loop
    from sciml_kernel.engine.plans import data_order
    from sciml_kernel.engine.report import Reporter

    directory.mkdir(parents=True, exist_ok=True)
    collective = collective or collectives.make("single")
    device.seed_all(config.train.seed)
    task = RECIPE.prepare(config, collective=collective)
    sink, said = ListSink(), []
    outcome = Loop(
        task=task,
        optimizer=optim.build(
            config.optim, steps_per_epoch=N_TRAIN // config.data.batch_size, epochs=config.train.epochs
        ),
        config=config,
        collective=collective,
        reporter=Reporter(
            "toy",
            rank=collective.rank,
            sinks=[sink],
            every_s=config.train.report_every_s,
            n_per_step=config.data.batch_size,
            say=said.append,
        ),
        checkpoints=Checkpoints(
            directory / "checkpoints",
            digest=configs.digest(configs.to_json(config)),
            order=data_order(task, config),
            rank=collective.rank,
        ),
        directory=directory,
        stop=stop or StopFlag(),
        resume_from=resume_from,
    ).fit()
    return Fitted(outcome, task, sink.events, said)


def make_config(**settings: Any) -> configs.RunConfig:
    """Plain gradient descent at a constant rate, batch 8: six steps an epoch."""
    values = {
        "path": str(Path(__file__).parent),
        "collective": "single",
        "optimizer": "sgd",
        "momentum": 0.0,
        "learning_rate": 0.05,
        "schedule": "constant",
        "report_every_s": 0.0,
        "epochs": 2,
    }
    return configs.resolve("toy", ToyConfig, [configs.Layer("test", values | settings)]).config
