from __future__ import annotations

import itertools

import numpy as np
import pytest

from sciml_kernel.data.sharding import batches_per_epoch, epoch_order, plan_epoch
from sciml_kernel.errors import ConfigError, DataError

# (n, global batch, ranks): equal, with a rest, one rank, fewer samples than ranks, exact multiples
CASES = [(24, 8, 4), (27, 8, 4), (27, 8, 8), (9, 4, 2), (5, 5, 1), (64, 64, 16), (100, 12, 3)]
PADDED = [*CASES, (3, 8, 8), (1, 4, 4), (0, 4, 2), (7, 4, 4)]


def plans(n: int, batch: int, size: int, *, seed: int = 1, epoch: int = 0, padded: bool = False, shuffle: bool = True):
    return [
        plan_epoch(n, batch_size=batch, rank=rank, size=size, seed=seed, epoch=epoch, padded=padded, shuffle=shuffle)
        for rank in range(size)
    ]


@pytest.mark.parametrize(("n", "batch", "size"), CASES)
def test_training_shards_are_disjoint_and_complete_up_to_the_last_batch(n: int, batch: int, size: int) -> None:
    shards = plans(n, batch, size)
    seen = np.concatenate([shard.indices.ravel() for shard in shards])
    assert len(set(seen)) == len(seen) == n // batch * batch
    assert set(seen) <= set(range(n))
    assert {shard.n_dropped for shard in shards} == {n % batch}
    assert {shard.indices.shape for shard in shards} == {(n // batch, batch // size)}
    assert all((shard.weights == 1).all() for shard in shards)


@pytest.mark.parametrize(("n", "batch", "size"), PADDED)
def test_padded_shards_count_each_sample_once_and_no_rank_waits(n: int, batch: int, size: int) -> None:
    shards = plans(n, batch, size, padded=True, shuffle=False)
    counted = sorted(i for shard in shards for i in shard.indices[shard.weights == 1])
    assert counted == list(range(n))
    assert len({shard.indices.shape for shard in shards}) == 1
    for shard in shards:
        assert set(np.unique(shard.weights)) <= {0.0, 1.0}
        assert shard.weights.dtype == np.float32
        assert shard.indices.dtype == np.int64
        assert shard.n_dropped == 0
        assert ((shard.indices >= 0) & (shard.indices < max(n, 1))).all()  # padding is readable too


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("n", "batch"), [(96, 24), (97, 24), (50, 24)])
def test_every_step_reads_the_same_samples_for_any_number_of_ranks(n: int, batch: int, padded: bool) -> None:
    # the equality rule: N ranks x B = 1 rank x N*B, sample by sample and in order
    alone = plans(n, batch, 1, padded=padded)[0]
    for size in (2, 3, 4, 8, 12, 24):
        shards = plans(n, batch, size, padded=padded)
        for i_step in range(len(alone.indices)):
            together = np.concatenate([shard.indices[i_step] for shard in shards])
            np.testing.assert_array_equal(together, alone.indices[i_step])
            weights = np.concatenate([shard.weights[i_step] for shard in shards])
            np.testing.assert_array_equal(weights, alone.weights[i_step])


def test_the_order_is_a_permutation_that_changes_with_seed_and_epoch() -> None:
    orders = [epoch_order(50, seed=seed, epoch=epoch) for seed, epoch in itertools.product((0, 1, 2), (0, 1, 2))]
    for order in orders:
        assert sorted(order) == list(range(50))
    # (seed 1, epoch 2) and (seed 2, epoch 1) must differ as well: seed + epoch would confuse them
    assert len({tuple(order) for order in orders}) == len(orders)


def test_a_resumed_run_goes_on_with_the_same_order() -> None:
    first = plan_epoch(40, batch_size=8, rank=1, size=2, seed=7, epoch=3)
    again = plan_epoch(40, batch_size=8, rank=1, size=2, seed=7, epoch=3)
    np.testing.assert_array_equal(first.indices[2:], again.indices[2:])
    # and with another number of ranks after the resume: what is left is the same set
    rest = np.concatenate([plan.indices[2:].ravel() for plan in plans(40, 8, 4, seed=7, epoch=3)])
    before = np.concatenate([plan.indices[:2].ravel() for plan in plans(40, 8, 2, seed=7, epoch=3)])
    assert sorted([*rest, *before]) == list(range(40))


def test_the_order_of_a_seed_is_pinned() -> None:
    # Philox4x64-10 by its definition (Salmon et al. 2011, the constants of their Random123), in plain Python: the order
    # must not depend on the numpy version. SeedSequence gives the key; its algorithm is fixed by numpy's policy.
    key = [int(word) for word in np.random.SeedSequence([3, 5]).generate_state(2, np.uint64)]
    mask = (1 << 64) - 1

    def block(counter: int) -> list[int]:
        c, k = [counter, 0, 0, 0], list(key)
        for _ in range(10):
            a, b = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
            c = [(b >> 64) ^ c[1] ^ k[0], b & mask, (a >> 64) ^ c[3] ^ k[1], a & mask]
            k = [(k[0] + 0x9E3779B97F4A7C15) & mask, (k[1] + 0xBB67AE8584CAA73B) & mask]
        return c

    words = [word for counter in (1, 2, 3) for word in block(counter)][:10]  # numpy counts up before the first block
    assert epoch_order(10, seed=3, epoch=5).tolist() == sorted(range(10), key=words.__getitem__)


def test_every_place_is_equally_likely() -> None:
    # where sample 0 lands among 4 places over 2000 epochs: mean 500, standard deviation sqrt(2000*3/16) = 19.4
    counts = np.bincount([int(np.flatnonzero(epoch_order(4, seed=0, epoch=e) == 0)[0]) for e in range(2000)])
    assert np.abs(counts - 500).max() < 5 * 19.4


def test_without_shuffle_the_order_is_that_of_the_data() -> None:
    assert epoch_order(5, seed=9, epoch=4, shuffle=False).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("batch", "size", "use"),
    [(10, 4, "batch 10 not divisible by 4 ranks; use 8 or 12"), (3, 4, "batch 3 not divisible by 4 ranks; use 4")],
)
def test_a_batch_that_does_not_divide_names_those_that_do(batch: int, size: int, use: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_epoch(100, batch_size=batch, rank=0, size=size, seed=0, epoch=0)
    assert str(caught.value) == use


@pytest.mark.parametrize(
    ("n", "use"), [(7, "use a batch of 4"), (3, "use at most 3 ranks"), (1, "1 rank with"), (0, "no training samples")]
)
def test_too_little_data_for_one_batch_says_what_to_write(n: int, use: str) -> None:
    with pytest.raises(DataError, match=use):
        plan_epoch(n, batch_size=8, rank=0, size=4, seed=0, epoch=0)


@pytest.mark.parametrize("wrong", [{"rank": 4}, {"rank": -1}, {"size": 0}, {"seed": -1}, {"epoch": -1}])
def test_impossible_numbers_are_refused(wrong: dict[str, int]) -> None:
    good = {"batch_size": 8, "rank": 0, "size": 4, "seed": 0, "epoch": 0}
    with pytest.raises(ConfigError):
        plan_epoch(100, **{**good, **wrong})


def test_batches_per_epoch_agrees_with_the_plan() -> None:
    for n, batch, size in PADDED:
        assert batches_per_epoch(n, batch_size=batch, padded=True) == len(plans(n, batch, size, padded=True)[0].indices)
    for n, batch, size in CASES:
        assert batches_per_epoch(n, batch_size=batch) == len(plans(n, batch, size)[0].indices)
