"""Who reads what in an epoch: one global order, cut into global batches, cut into equal slices by rank.

The order is a function of (n, seed, epoch) alone, so it is the same for any number of ranks and after a resume. Global
batch b of the epoch is the b-th slice of the order, and rank r takes the r-th equal slice of it: N ranks with B samples
each see in every step the same samples as one rank with N*B.

Nothing waits for a batch that another rank lacks: training drops the last incomplete global batch, validation pads it
with samples of weight 0, so that sums count each sample exactly once.
"""

from __future__ import annotations

import numpy as np

from sciml_kernel.contracts import ShardPlan
from sciml_kernel.errors import ConfigError, DataError

__all__ = ["batches_per_epoch", "epoch_order", "plan_epoch"]


def epoch_order(n: int, *, seed: int, epoch: int, shuffle: bool = True) -> np.ndarray:
    """The order in which the samples of an epoch are read, over all ranks: (n,), int64, a permutation of 0..n-1.

    The keys are raw words of Philox, a counter-based generator, seeded with (seed, epoch), and the order sorts them.
    The raw stream of a numpy bit generator never changes, which `Generator.permutation` does not promise (NEP 19): a
    run can be repeated with another numpy. Raises ConfigError for a negative n, seed or epoch.
    """
    for name, value in (("number of samples", n), ("seed", seed), ("epoch", epoch)):
        if value < 0:
            raise ConfigError(f"{name} is {value}; it must be 0 or more")
    if not shuffle:
        return np.arange(n, dtype=np.int64)
    words = np.random.Philox(np.random.SeedSequence([seed, epoch])).random_raw(n)
    return np.argsort(words, kind="stable").astype(np.int64, copy=False)


def batches_per_epoch(n: int, *, batch_size: int, padded: bool = False) -> int:
    """Global batches (for training: optimizer steps) of an epoch of n samples; batch_size is the global one."""
    if n < 0 or batch_size < 1:
        raise ConfigError(f"{n} samples in batches of {batch_size}: samples must be 0 or more, the batch 1 or more")
    return -(-n // batch_size) if padded else n // batch_size


def plan_epoch(
    n: int,
    *,
    batch_size: int,
    rank: int,
    size: int,
    seed: int,
    epoch: int,
    shuffle: bool = True,
    padded: bool = False,
) -> ShardPlan:
    """One rank's share of an epoch.

    n: samples in the set. batch_size: the global batch, over all ranks. padded: fill the last global batch with
    samples of weight 0 instead of dropping it; then n may be anything from 0, and a rank's share may be all padding.
    A resumed run takes the plan of its epoch and goes on at `indices[batches done]`.

    Raises ConfigError if batch_size is not a multiple of size or rank is not in 0..size-1; DataError if there are fewer
    samples than one global batch and nothing may be padded.
    """
    if size < 1 or not 0 <= rank < size:
        raise ConfigError(f"rank {rank} of {size} ranks; ranks go from 0 to size - 1")
    if batch_size < 1 or batch_size % size:
        below = batch_size // size * size
        use = f"{below} or {below + size}" if below > 0 else f"{size}"
        raise ConfigError(f"batch {batch_size} not divisible by {size} ranks; use {use}")
    order = epoch_order(n, seed=seed, epoch=epoch, shuffle=shuffle)
    n_batches = batches_per_epoch(n, batch_size=batch_size, padded=padded)
    if not padded and n_batches == 0:
        raise DataError(_too_few(n, batch_size, size))
    local = batch_size // size
    n_read = n_batches * batch_size
    weights = np.zeros(n_read, dtype=np.float32)
    weights[:n] = 1.0
    if n_read > n:  # padding repeats the last sample, which its reader has at hand
        order = np.concatenate([order, np.full(n_read - n, order[-1], dtype=np.int64)])
    mine = slice(rank * local, (rank + 1) * local)
    return ShardPlan(
        epoch=epoch,
        rank=rank,
        size=size,
        indices=np.ascontiguousarray(order[:n_read].reshape(n_batches, batch_size)[:, mine]),
        weights=np.ascontiguousarray(weights.reshape(n_batches, batch_size)[:, mine]),
        n_dropped=max(n - n_read, 0),
    )


def _too_few(n: int, batch_size: int, size: int) -> str:
    fitting = n // size * size
    if fitting:
        use = f"use a batch of {fitting}"
    elif n:
        use = f"use at most {n} rank{'s' if n > 1 else ''} with a batch of {n}"
    else:
        return "the data set has no training samples; check the path and the split"
    return f"{n} samples do not fill one batch of {batch_size} over {size} ranks; {use}, or add data"
