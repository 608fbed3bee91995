"""Sums and averages over the ranks of one MPI world. The only door to Horovod and mpi4py.

Three implementations of `contracts.Collective`, one conformance suite (`testing.collective_suite`):

- `HorovodCollective`  the one for training; fuses, overlaps and, on GPUs, uses NCCL
- `MpiCollective`      plain MPI calls from inside the graph: no build needed, slower; a second opinion
- `SingleCollective`   one rank, no MPI

Horovod runs MPI calls on a thread of its own. `HorovodCollective` therefore sends everything through Horovod and
never calls mpi4py beside it while it works, so no more than Horovod's own thread level is needed. Horovod matches
tensors by name, and in eager mode different tensors are summed silently: everything here runs inside `tf.function`
under a fixed name, which also makes it independent of layer names (they count up differently where a person has built
layers on one rank).

Where ranks bring different tensors Horovod refuses them on all ranks; where they come to different collectives its
stall inspector ends the wait. Two variables say when; they are read once a process, and `Pool.start(env={...})` sets
them for a pool:

- `HOROVOD_STALL_CHECK_TIME_SECONDS`, by default 60: a rank that waits longer is named in the output of rank 0.
- `HOROVOD_STALL_SHUTDOWN_TIME_SECONDS`, by default 600: then Horovod is shut down on all ranks, which ends the call
  and costs the engine set. It must be longer than what one rank may do while the others wait: rank 0 writing a
  checkpoint or the baselines, a rank reading its data or compiling. Validation is no such stretch: it has a collective
  each batch. 0: never.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sciml_kernel.engine import divergence
from sciml_kernel.errors import DataError, EnvironmentNotFitError, NotFoundError, UsageError, did_you_mean

__all__ = ["EngineCollective", "HorovodCollective", "MpiCollective", "SingleCollective", "launch_rank", "make"]

_WORLD_SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE")
_RANK_VARIABLES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
_SUMMABLE = ("float64", "float32", "int64", "int32")
_CHECK_VARIABLE, _CHECK_S, _SHUTDOWN_S = "HOROVOD_STALL_CHECK_TIME_SECONDS", 60, 600


class EngineCollective:
    """What the three have in common: JSON and named arrays, out of `_gather_bytes` and `_sum_vector`.

    local_rank, local_size: place among the ranks of this node, and their number.
    """

    name: str
    rank: int
    size: int
    local_rank: int
    local_size: int

    def average_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """Mean over ranks of each tensor, same shapes and dtypes. Inside `tf.function`."""
        raise NotImplementedError

    def sum_in_graph(self, tensor: Any) -> Any:
        """Sum over ranks of one tensor. Inside `tf.function`."""
        raise NotImplementedError

    def broadcast_variables(self, variables: Sequence[Any]) -> None:
        """Give every rank the values of rank 0, in place. Keras 3 or TensorFlow variables."""
        raise NotImplementedError

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Raise a failed collective of the block as a CollectiveError that names tensor and ranks. On all ranks."""
        yield

    def _gather_bytes(self, data: bytes) -> list[bytes]:
        raise NotImplementedError

    def _sum_vector(self, vector: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def gather_json(self, value: Any) -> list[Any]:
        """The JSON value of every rank, by rank, on every rank. NaN and infinity survive. Raises TypeError."""
        return [json.loads(data) for data in self._gather_bytes(json.dumps(value).encode())]

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        self._gather_bytes(b"")

    def sum_arrays(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Sum over ranks of each array: float64, float32, int64 or int32.

        The ranks first compare keys, shapes and dtypes: a difference would hang or sum what does not belong together.
        Raises DataError, on every rank, naming the array and the ranks that differ.
        """
        plain = {key: np.asarray(arrays[key]) for key in sorted(arrays)}
        signatures = self.gather_json({key: [list(a.shape), a.dtype.name] for key, a in plain.items()})
        _check_same(signatures)
        summed: dict[str, np.ndarray] = {}
        for dtype in sorted({a.dtype.name for a in plain.values()}):
            if dtype not in _SUMMABLE:
                key = next(key for key, a in plain.items() if a.dtype.name == dtype)
                raise DataError(f"array {key!r} is {dtype}; sums over ranks need one of {', '.join(_SUMMABLE)}")
            keys = [key for key, a in plain.items() if a.dtype.name == dtype]
            total = self._sum_vector(np.concatenate([plain[key].reshape(-1) for key in keys]))
            ends = np.cumsum([plain[key].size for key in keys])
            for key, part in zip(keys, np.split(total, ends[:-1]), strict=True):
                summed[key] = part.reshape(plain[key].shape)
        return summed


def _check_same(signatures: Sequence[Mapping[str, Any]]) -> None:
    for key in sorted(set().union(*signatures)):
        seen: dict[str, list[int]] = {}
        for rank, signature in enumerate(signatures):
            found = signature.get(key)
            text = "absent" if found is None else f"{found[1]} {tuple(found[0])}"
            seen.setdefault(text, []).append(rank)
        if len(seen) > 1:
            words = "; ".join(f"{text} on rank {', '.join(map(str, ranks))}" for text, ranks in seen.items())
            raise DataError(f"array {key!r} differs between the ranks: {words}; all ranks must bring the same")


class SingleCollective(EngineCollective):
    """One rank. Raises EnvironmentNotFitError in a world of several: each would train its own model."""

    name = "single"

    def __init__(self) -> None:
        size = _world_size()
        if size > 1:
            raise EnvironmentNotFitError(
                f"collective 'single' on {size} ranks would train {size} separate models; write collective='horovod' "
                "(or 'mpi4py'), or start a pool of one rank"
            )
        self.rank, self.size, self.local_rank, self.local_size = 0, 1, 0, 1

    def average_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        import tensorflow as tf

        return [tf.convert_to_tensor(gradient) for gradient in gradients]

    def sum_in_graph(self, tensor: Any) -> Any:
        return tensor

    def broadcast_variables(self, variables: Sequence[Any]) -> None:
        return None

    def _gather_bytes(self, data: bytes) -> list[bytes]:
        return [data]

    def _sum_vector(self, vector: np.ndarray) -> np.ndarray:
        return vector.copy()


class HorovodCollective(EngineCollective):
    """Horovod on MPI. Initialised once a process: many trainings follow each other in it.

    Raises EnvironmentNotFitError if Horovod is missing, doesn't load, or was built for another MPI than the one that
    started the ranks.
    """

    name = "horovod"

    def __init__(self) -> None:
        import tensorflow as tf

        self._tf, self._hvd = tf, _horovod()
        self.rank, self.size = self._hvd.rank(), self._hvd.size()
        self.local_rank, self.local_size = self._hvd.local_rank(), self._hvd.local_size()
        self._check_world()
        self._sent = divergence.Sent()
        self._post_mortem = _post_mortem_comm()
        hvd, any_length = self._hvd, [None]

        def summing(dtype: str) -> Callable[[Any], Any]:
            @tf.function(autograph=False, input_signature=[tf.TensorSpec(any_length, dtype)])
            def summed(vector: Any) -> Any:
                return hvd.allreduce(vector, op=hvd.Sum, name=f"sum_arrays.{dtype}")

            return summed

        @tf.function(autograph=False, input_signature=[tf.TensorSpec(any_length, tf.uint8)])
        def gathered(data: Any) -> Any:
            return hvd.allgather(data, name="gather_json")

        self._gathered, self._summed = gathered, {dtype: summing(dtype) for dtype in _SUMMABLE}

    def _check_world(self) -> None:
        expected, source = _world_size(), "the launcher and mpi4py have"
        if self.size != expected:
            raise EnvironmentNotFitError(
                f"Horovod sees a world of {self.size} rank(s), {source} {expected}: Horovod was built for another MPI "
                "than the mpiexec that started the ranks; run env/setup again, and start ranks with its mpiexec"
            )

    def _only_in_graphs(self, method: str) -> None:
        if self._tf.executing_eagerly():
            raise UsageError(
                f"{method} outside tf.function would sum whatever tensors the ranks bring, different ones too; "
                "call it inside a tf.function"
            )

    def average_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        if gradients:
            self._only_in_graphs("average_gradients")
        # a group is of one dtype
        dense = [self._tf.convert_to_tensor(gradient) for gradient in gradients]  # an IndexedSlices becomes dense
        averaged: list[Any] = [None] * len(dense)
        for dtype, places in _by_dtype(dense).items():
            group = [dense[i] for i in places]
            self._sent.note(f"gradients.{dtype}", group)
            found = self._hvd.grouped_allreduce(group, op=self._hvd.Average, name=f"gradients.{dtype}")
            for i, tensor in zip(places, found, strict=True):
                averaged[i] = tensor
        return averaged

    def sum_in_graph(self, tensor: Any) -> Any:
        self._only_in_graphs("sum_in_graph")
        tensor = self._tf.convert_to_tensor(tensor)
        self._sent.note("sum_in_graph", [tensor])
        return self._hvd.allreduce(tensor, op=self._hvd.Sum, name="sum_in_graph")

    def broadcast_variables(self, variables: Sequence[Any]) -> None:
        tf, hvd, raw = self._tf, self._hvd, [_raw(self._tf, variable) for variable in variables]

        # Not hvd.broadcast_variables: it names tensors by variable, and keeps a graph for every list that it ever saw.
        @tf.function(autograph=False)
        def broadcast() -> None:
            for i, variable in enumerate(raw):
                value = variable.read_value()
                self._sent.note(f"broadcast.{i}", [value])
                variable.assign(hvd.broadcast(value, 0, name=f"broadcast.{i}"))

        if raw:
            broadcast()

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            mine = self._sent.account(error)
            if mine is None:
                raise
            everyone = divergence.exchange(self._post_mortem, mine) if self._post_mortem else {self.rank: mine}
            # Horovod's sentence is in it; the rest of TensorFlow's text is a graph's history
            told = divergence.as_error(mine, everyone, self.size)
            raise told.with_traceback(error.__traceback__) from None

    def _gather_bytes(self, data: bytes) -> list[bytes]:
        # one collective: json.dumps writes no raw newline, so it can end each rank's part
        gathered = self._gathered(np.frombuffer(data + b"\n", dtype=np.uint8)).numpy().tobytes()
        return gathered.split(b"\n")[: self.size]

    def _sum_vector(self, vector: np.ndarray) -> np.ndarray:
        if vector.size == 0:
            return vector.copy()
        return np.asarray(self._summed[vector.dtype.name](vector).numpy())


class MpiCollective(EngineCollective):
    """mpi4py, on a communicator of its own. In the graph it runs through `tf.numpy_function`, on the CPU.

    Raises EnvironmentNotFitError if mpi4py is missing or the MPI allows no calls from TensorFlow's threads.
    """

    name = "mpi4py"

    def __init__(self) -> None:
        import tensorflow as tf

        mpi = _mpi4py()
        if mpi is None:
            raise EnvironmentNotFitError("mpi4py is missing or finds no MPI library; run env/setup (or `sciml doctor`)")
        if mpi.Query_thread() < mpi.THREAD_SERIALIZED:
            raise EnvironmentNotFitError(
                "this MPI was initialised for calls from one thread only, and TensorFlow calls from its own; "
                "initialise it with MPI_THREAD_MULTIPLE (mpi4py's default), or write collective='horovod'"
            )
        self._tf, self._mpi = tf, mpi
        comm = self._comm = _own_comm(mpi, "mpi4py")
        self.rank, self.size = comm.rank, comm.size
        host = comm.Split_type(mpi.COMM_TYPE_SHARED)
        self.local_rank, self.local_size = host.rank, host.size
        host.Free()

    def average_gradients(self, gradients: Sequence[Any]) -> list[Any]:
        """One all-reduce a dtype: the gradients are laid end to end."""
        tf = self._tf
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        averaged: list[Any] = [None] * len(dense)
        for places in _by_dtype(dense).values():
            flat = tf.concat([tf.reshape(dense[i], [-1]) for i in places], axis=0)
            total = self.sum_in_graph(flat) / tf.cast(self.size, flat.dtype)
            parts = tf.split(total, [tf.size(dense[i]) for i in places])
            for i, part in zip(places, parts, strict=True):
                averaged[i] = tf.reshape(part, tf.shape(dense[i]))
                averaged[i].set_shape(dense[i].shape)
        return averaged

    def sum_in_graph(self, tensor: Any) -> Any:
        # stateful, so that tf.function keeps the calls in the order in which they are written
        tf = self._tf
        tensor = tf.convert_to_tensor(tensor)
        wire = tf.cast(tensor, tf.float32) if tensor.dtype in (tf.bfloat16, tf.float16) else tensor
        summed = tf.numpy_function(self._sum_vector, [wire], wire.dtype, stateful=True)
        summed.set_shape(tensor.shape)
        return tf.cast(summed, tensor.dtype)

    def broadcast_variables(self, variables: Sequence[Any]) -> None:
        for variable in variables:
            array = np.array(_raw(self._tf, variable).numpy())  # a copy: TensorFlow's own memory is not to be written
            self._comm.Bcast(array.reshape(-1).view(np.uint8), root=0)
            variable.assign(array)

    def barrier(self) -> None:
        self._comm.Barrier()

    def _gather_bytes(self, data: bytes) -> list[bytes]:
        return list(self._comm.allgather(data))

    def _sum_vector(self, vector: np.ndarray) -> np.ndarray:
        total = np.empty_like(vector)
        self._comm.Allreduce(np.ascontiguousarray(vector), total, op=self._mpi.SUM)
        return total


_KINDS: dict[str, Callable[[], EngineCollective]] = {
    "horovod": HorovodCollective,
    "mpi4py": MpiCollective,
    "single": SingleCollective,
}


def make(name: str) -> EngineCollective:
    """The collective of that name, ready for use. Every rank makes the same one.

    Raises NotFoundError for an unknown name, EnvironmentNotFitError where it can't work here.
    """
    if name not in _KINDS:
        raise NotFoundError(f"unknown collective {name!r}; {did_you_mean(name, _KINDS)}")
    return _KINDS[name]()


def launch_rank() -> int | None:
    """The rank as MPI or its launcher says, before any collective is made; None outside a launch. For messages."""
    if "mpi4py.MPI" in sys.modules:
        return int(sys.modules["mpi4py.MPI"].COMM_WORLD.rank)
    return next((int(os.environ[name]) for name in _RANK_VARIABLES if os.environ.get(name, "").isdigit()), None)


def _world_size() -> int:
    """How many ranks were started together: MPI says so if it runs here, else the launcher's variables, else one."""
    if "mpi4py.MPI" in sys.modules:
        return int(sys.modules["mpi4py.MPI"].COMM_WORLD.size)
    return next((int(os.environ[name]) for name in _WORLD_SIZE_VARIABLES if os.environ.get(name, "").isdigit()), 1)


def _mpi4py() -> Any:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):  # RuntimeError: the module is there, no MPI library is
        return None
    return MPI


_comms: dict[str, Any] = {}  # one duplicate a process and purpose: communicators are few


def _own_comm(mpi: Any, purpose: str) -> Any:
    """A duplicate of the world. The first call in a process is a collective one."""
    if purpose not in _comms:
        _comms[purpose] = mpi.COMM_WORLD.Dup()
    return _comms[purpose]


def _post_mortem_comm() -> Any:
    """Where the ranks talk when Horovod can't; None where MPI allows no call beside Horovod's own thread."""
    mpi = _mpi4py()
    return _own_comm(mpi, "post mortem") if mpi is not None and mpi.Query_thread() == mpi.THREAD_MULTIPLE else None


def _set_stall_limits() -> None:
    """Before hvd.init, which reads them. What the environment says goes first; a check later than the shutdown would
    switch that off."""
    shutdown = os.environ.setdefault(divergence.SHUTDOWN_VARIABLE, str(_SHUTDOWN_S))
    limit = int(shutdown) if shutdown.isdigit() else 0
    os.environ.setdefault(_CHECK_VARIABLE, str(min(_CHECK_S, max(1, limit // 2)) if limit else _CHECK_S))


def _horovod() -> Any:
    """Horovod for TensorFlow, initialised. A second call finds it so."""
    _set_stall_limits()
    try:
        import horovod.tensorflow as hvd

        # mpi4py first where it is: it asks for MPI_THREAD_MULTIPLE, and Horovod then shares its MPI
        _mpi4py()
        hvd.init()
    except Exception as error:  # ImportError, OSError, NotFoundError of TensorFlow, ... : all mean the same here
        raise EnvironmentNotFitError(
            f"Horovod can't be used: {type(error).__name__}: {error}; run env/setup to build it for this "
            "TensorFlow and MPI, or write collective='mpi4py'"
        ) from error
    return hvd


def _by_dtype(tensors: Sequence[Any]) -> dict[str, list[int]]:
    """Name of each dtype -> places of its tensors; sorted, so that all ranks go through them alike."""
    names = [tensor.dtype.name for tensor in tensors]
    return {name: [i for i, other in enumerate(names) if other == name] for name in sorted(set(names))}


def _raw(tf: Any, variable: Any) -> Any:
    """The tf.Variable in a Keras 3 variable."""
    return variable if isinstance(variable, tf.Variable) else variable.value
