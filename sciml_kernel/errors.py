"""Exceptions of the package. Each message says what is wrong, what was got and what to write instead.

::

    SciMLError                        exit code 1
    ├── UsageError                    2    the person can mend it by writing something else
    │   ├── ConfigError                    a run or site configuration that can't be used
    │   ├── ParameterError                 a notebook parameter that can't be used
    │   ├── DataError                      missing, truncated, misshapen or unphysical data
    │   └── NotFoundError                  a name that nothing answers to; lists what there is
    ├── EnvironmentNotFitError        3    MPI, Horovod, TensorFlow, kernelspec... don't fit together
    ├── PoolError                     1
    │   ├── PoolStartError                 not all ranks arrived; names who is missing
    │   ├── PoolBusyError                  another call is running on the ranks
    │   ├── PoolTaintedError               a rank failed while others may sit in a collective
    │   └── PoolDeadError                  a rank, the node or the controller is gone
    ├── RemoteError                   1    raised on a rank: "[rank 3 @ host, step 40] ValueError: ..."
    ├── RecordError                   1    a run record that can't be read or written
    └── RunError                      1    a run that ended otherwise than completed
        ├── CollectiveError                the ranks did not bring the same to a collective
        ├── RunInterruptedError       130
        ├── RunTimeoutError           124
        └── RunCancelledError         143

`exit_code` on each class is what the command line ends with. `engine_spent` is true where the process that raised can't
run another collective: the pool then replaces its engine set before the next call.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = [
    "CollectiveError",
    "ConfigError",
    "DataError",
    "EnvironmentNotFitError",
    "NotFoundError",
    "ParameterError",
    "PoolBusyError",
    "PoolDeadError",
    "PoolError",
    "PoolStartError",
    "PoolTaintedError",
    "RecordError",
    "RemoteError",
    "RunCancelledError",
    "RunError",
    "RunInterruptedError",
    "RunTimeoutError",
    "SciMLError",
    "UsageError",
    "did_you_mean",
]


class SciMLError(Exception):
    """Base of every error that this package raises on purpose."""

    exit_code: int = 1
    engine_spent: bool = False


class UsageError(SciMLError):
    """Wrong use or bad input: nothing was started and nothing was written."""

    exit_code = 2


class ConfigError(UsageError):
    """A configuration field is unknown, of the wrong type or out of range."""


class ParameterError(UsageError):
    """A notebook parameter is unknown or can't become the declared type."""


class DataError(UsageError):
    """Data is missing, truncated, of the wrong shape or unphysical. Names file and, where known, offset."""


class NotFoundError(UsageError):
    """A name (recipe, pool, run, reader) that nothing answers to."""


class EnvironmentNotFitError(SciMLError):
    """The installed pieces don't fit together; `sciml doctor` says how to mend it."""

    exit_code = 3


class PoolError(SciMLError):
    """Something about the engine pool itself."""


class PoolStartError(PoolError):
    """Not every rank arrived, or they are not one MPI world."""


class PoolBusyError(PoolError):
    """The ranks are running another call."""


class PoolTaintedError(PoolError):
    """A rank failed while others may sit in a collective: the engine set must be replaced."""


class PoolDeadError(PoolError):
    """A rank, its node or the controller is gone. `exits` holds what the rank wrappers saw, one mapping a rank."""

    def __init__(self, message: str, *, exits: Iterable[Mapping[str, Any]] = ()) -> None:
        super().__init__(message)
        self.exits = [dict(entry) for entry in exits]


class RemoteError(SciMLError):
    """An exception raised on a rank, with the original type name, message and traceback kept.

    `rank`, `host` and `step` are None where they are not known.
    """

    def __init__(
        self,
        *,
        type_name: str,
        message: str,
        rank: int | None,
        host: str | None = None,
        step: int | None = None,
        traceback: str = "",
        exit_code: int = 1,
    ) -> None:
        where = f"rank {rank}" if rank is not None else "unknown rank"
        if host:
            where += f" @ {host}"
        if step is not None:
            where += f", step {step}"
        super().__init__(f"[{where}] {type_name}: {message}")
        self.type_name = type_name
        self.message = message
        self.rank = rank
        self.host = host
        self.step = step
        self.traceback = traceback
        self.exit_code = exit_code


class RecordError(SciMLError):
    """A run record can't be read or written."""


class RunError(SciMLError):
    """A run ended otherwise than completed."""


class CollectiveError(RunError):
    """The ranks brought different tensors to a collective, or waited for each other in different ones. Names both."""

    def __init__(self, message: str, *, engine_spent: bool = False) -> None:
        super().__init__(message)
        self.engine_spent = engine_spent


class RunInterruptedError(RunError):
    """The run or a call was interrupted by a person. Once: the checkpoint is whole. Twice: it is the one before."""

    exit_code = 130


class RunTimeoutError(RunError):
    """The run or a call ran past its time limit."""

    exit_code = 124


class RunCancelledError(RunError):
    """The run was cancelled from outside (SIGTERM, scancel)."""

    exit_code = 143


class CancelRequest(KeyboardInterrupt):
    """SIGTERM in the process that waits: it stops what a Ctrl-C would, and the run says "cancelled"."""

    run_status = "cancelled"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the sentence that closes a failed look-up: the nearest name, else all that there are.

    >>> did_you_mean("epoch", ["epochs", "seed"])
    "did you mean 'epochs'?"
    >>> did_you_mean("zzz", ["epochs", "seed"])
    'there are: epochs, seed'
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    return "there are: " + (", ".join(names) or "none")
