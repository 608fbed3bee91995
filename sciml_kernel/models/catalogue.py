"""Every network by name, at its paper's size by default."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sciml_kernel.errors import NotFoundError, UsageError, did_you_mean
from sciml_kernel.models.cosmoflow import paper
from sciml_kernel.models.cosmoflow_mlperf import mlperf
from sciml_kernel.models.flops import ModelCost, count

__all__ = ["describe", "names"]

_CUBES: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "cosmoflow": (paper, (128, 128, 128, 1)),
    "cosmoflow_mlperf": (mlperf, (128, 128, 128, 4)),
}


def names() -> list[str]:
    """Names of the networks, sorted."""
    return sorted(_CUBES)


def describe(name: str, input_shape: Sequence[int] | None = None) -> ModelCost:
    """Build the network on this machine's CPU and count it.

    input_shape: (z, y, x, channel); default: the paper's. Raises NotFoundError (name), UsageError (shape that is no
    cube), ConfigError (a grid that the network can't take).
    """
    if name not in _CUBES:
        raise NotFoundError(f"unknown network {name!r}; {did_you_mean(name, _CUBES)}")
    build, shape = _CUBES[name]
    if input_shape is not None:
        shape = tuple(input_shape)
        if len(shape) != 4 or len(set(shape[:3])) != 1 or min(shape) < 1:
            raise UsageError(f"{name} takes cubes (z, y, x, channel) such as 128,128,128,1; got {shape}")
    return count(build(shape[0], shape[3]), name=name)
