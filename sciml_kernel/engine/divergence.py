"""Which ranks brought what, after Horovod refused a tensor or gave up waiting: its own words name no rank.

Horovod tells every rank that a tensor was refused, or that it has been shut down. Each rank knows what it sent itself;
the ranks then tell each other over a communicator of their own, in a bounded time: one that is elsewhere is named too.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sciml_kernel.errors import CollectiveError

__all__ = ["SHUTDOWN_VARIABLE", "Account", "Sent", "as_error", "exchange"]

SHUTDOWN_VARIABLE = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
EXCHANGE_S = 1.0  # for the ranks to tell each other; the whole must end within 2 s
_TO_FIRST, _TO_ALL = 71, 72  # message tags
_OVER = "Horovod has been shut down"
# The last lines of a TensorFlow error: "<words>\n\t [[{{node <tensor>}}]] [Op:__inference_<function>_<number>]"
_FAILED_NODE = re.compile(
    r"(?P<words>[^\n]+)\n\s*\[\[\{\{node (?P<node>[^}]+)\}\}\]\](?:\s*\[Op:__(?:inference|forward)_(?P<in>.+?)_\d+\])?"
)
_REFUSED = ("Mismatched ", "Requested to ", "Process-set rank zero tried to ")


@dataclass(frozen=True)
class Account:
    """What one rank says. tensor: Horovod's name of it. sent: dtype and shape of each tensor under that name here.
    words: Horovod's reason. over: Horovod is dead in this process."""

    tensor: str
    sent: list[str]
    words: str
    over: bool


@dataclass
class Sent:
    """What this rank's graphs send, by the tensor's name; noted while they are traced."""

    _by_name: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def note(self, name: str, tensors: Sequence[Any]) -> None:
        """Call right before the operation of that name is made. tensors: symbolic, all under that name."""
        graph = tensors[0].graph
        # within one graph TensorFlow counts equal names up: sum_in_graph, sum_in_graph_1
        name = graph.unique_name(name, mark_as_used=False).rpartition("/")[2]
        texts = [f"{tensor.dtype.name} {_shape(tensor.shape)}" for tensor in tensors]
        self._by_name[graph.name, name] = self._by_name["", name] = texts

    def account(self, error: BaseException) -> Account | None:
        """What an exception says of a collective; None if it is about something else."""
        found = _FAILED_NODE.search(str(error))
        if found is None or not (_OVER in found["words"] or found["words"].startswith(_REFUSED)):
            return None
        node = found["node"].rpartition("/")[2]
        sent = next((self._by_name[f, node] for f in (found["in"], "") if (f, node) in self._by_name), [])
        return Account(node, sent, found["words"].strip(), _OVER in found["words"])


def exchange(comm: Any, mine: Account | None) -> dict[int, Account | None]:
    """The accounts of all ranks that come here within a second, by rank; just this one's where rank 0 does not.

    comm: a communicator that nothing else uses, at thread level "multiple": Horovod's own thread may still run.
    """
    until, me = time.monotonic() + EXCHANGE_S, comm.rank
    if me != 0:
        comm.isend(mine, dest=0, tag=_TO_FIRST)
        while time.monotonic() < until + 0.3:
            if comm.iprobe(source=0, tag=_TO_ALL):
                return dict(comm.recv(source=0, tag=_TO_ALL))
            time.sleep(0.005)
        return {me: mine}
    found = {0: mine}
    while len(found) < comm.size and time.monotonic() < until:
        rank = next((r for r in range(1, comm.size) if r not in found and comm.iprobe(source=r, tag=_TO_FIRST)), None)
        if rank is None:
            time.sleep(0.005)
        else:
            found[rank] = comm.recv(source=rank, tag=_TO_FIRST)
    waiting = [comm.isend(found, dest=rank, tag=_TO_ALL) for rank in found if rank != 0]
    while waiting and time.monotonic() < until + 0.3:
        waiting = [request for request in waiting if not request.Test()]
    return found


def as_error(mine: Account, everyone: Mapping[int, Account | None], size: int) -> CollectiveError:
    """The error that each rank raises. mine: this rank's account. everyone: those of the ranks that gave one."""
    missing = [rank for rank in range(size) if rank not in everyone]
    accounts = {rank: account for rank, account in sorted(everyone.items()) if account is not None}
    if mine.over:
        text = _waited(accounts, missing)
    else:
        text = f"{_differs(mine, accounts)}\nHorovod: {mine.words}"
        if missing:
            text += f"\nno word from {_ranks(missing)}"
    return CollectiveError(text, engine_spent=mine.over or bool(missing))


def _differs(mine: Account, accounts: Mapping[int, Account]) -> str:
    of_it = {rank: account for rank, account in accounts.items() if account.tensor == mine.tensor}
    counts: dict[str, list[int]] = {}
    for rank, account in of_it.items():
        counts.setdefault(f"{len(account.sent)} tensors", []).append(rank)
    if len(counts) > 1:
        return f"tensor {mine.tensor!r} differs between the ranks: {_grouped(counts)}; all ranks must send the same"
    for place in range(len(mine.sent)):
        seen: dict[str, list[int]] = {}
        for rank, account in of_it.items():
            seen.setdefault(account.sent[place], []).append(rank)
        if len(seen) > 1:
            which = f"tensor {mine.tensor!r}" + (f", {place + 1} of {len(mine.sent)}," if len(mine.sent) > 1 else "")
            return f"{which} differs between the ranks: {_grouped(seen)}; all ranks must send the same"
    return f"tensor {mine.tensor!r} differs between the ranks; all ranks must send the same, with the same operation"


def _waited(accounts: Mapping[int, Account], missing: Sequence[int]) -> str:
    places: dict[str, list[int]] = {}
    for rank, account in accounts.items():
        places.setdefault(f"in {account.tensor!r}", []).append(rank)
    if missing:
        places["in no collective"] = list(missing)
    limit = os.environ.get(SHUTDOWN_VARIABLE, "")
    if len(places) == 1:
        return f"{_OVER} in these processes, by an earlier stall or by code that ended it; seen {_grouped(places)}"
    return (
        f"the ranks waited for each other in different collectives: {_grouped(places)}\n"
        f"Horovod gave up after {limit} s ({SHUTDOWN_VARIABLE}); all ranks must come to the same ones in the same order"
    )


def _grouped(ranks_by_text: Mapping[str, Sequence[int]]) -> str:
    return "; ".join(f"{text} on {_ranks(ranks)}" for text, ranks in ranks_by_text.items())


def _ranks(ranks: Sequence[int]) -> str:
    """ "rank 0", "rank 0, 3, 5-9": neighbours are drawn together."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return "rank " + ", ".join(str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}-{b}" for a, b in runs)


def _shape(shape: Any) -> str:
    if shape.rank is None:
        return "(unknown)"
    sizes = ["?" if n is None else str(n) for n in shape]
    return f"({', '.join(sizes)}{',' * (len(sizes) == 1)})"
