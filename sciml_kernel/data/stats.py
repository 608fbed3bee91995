"""Mean and variance that can be computed in parts and merged (Chan, Golub & LeVeque 1983)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from sciml_kernel.data.universe import UniverseShards

__all__ = ["Moments", "count_moments"]


@dataclass(frozen=True)
class Moments:
    """count, mean and m2 = sum (x - mean)^2 of some numbers. `Moments()` is of none; `a + b` is of both together."""

    count: int = 0
    mean: float = 0.0
    m2: float = 0.0

    @classmethod
    def of(cls, values: ArrayLike) -> Self:
        array = np.asarray(values, dtype=np.float64)
        if array.size == 0:
            return cls()
        mean = float(array.mean())
        return cls(array.size, mean, float(((array - mean) ** 2).sum()))

    def __add__(self, other: Moments) -> Moments:
        count = self.count + other.count
        if count == 0:
            return Moments()
        delta = other.mean - self.mean
        mean = self.mean + delta * other.count / count
        return Moments(count, mean, self.m2 + other.m2 + delta**2 * self.count * other.count / count)

    @property
    def std(self) -> float:
        """Standard deviation, divided by count; NaN of no numbers."""
        return math.sqrt(self.m2 / self.count) if self.count else math.nan

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(**data)


def count_moments(
    shards: UniverseShards, indices: Iterable[int], *, transform: Callable[[Any], Any] = np.log1p
) -> Moments:
    """Moments of the transformed counts of some samples (the training ones: held-out samples must not leak in)."""
    total = Moments()
    for i_sample in indices:
        total = total + Moments.of(transform(shards.read(int(i_sample))[0].astype(np.float32)))
    return total
