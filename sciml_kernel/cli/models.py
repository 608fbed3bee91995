"""`sciml models`: parameters and flops."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from sciml_kernel.cli.shared import echo_json, json_option
from sciml_kernel.errors import UsageError

if TYPE_CHECKING:
    from sciml_kernel.models.flops import ModelCost


@click.command()
@click.argument("name", required=False)
@click.option("--shape", metavar="Z,Y,X,CHANNEL", help="Shape of one sample; the paper's by default.")
@json_option
def models(name: str | None, shape: str | None, as_json: bool) -> None:
    """Parameters and flops of the networks for one sample; by layer for a NAMEd one."""
    size = _shape(shape)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # counting must not claim a GPU
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from sciml_kernel.models import catalogue

    costs = [catalogue.describe(found, size) for found in ([name] if name else catalogue.names())]
    if as_json:
        echo_json([cost.to_json() for cost in costs])
        return
    for cost in costs:
        if name:
            _show_layers(cost)
        click.echo(
            f"{cost.name} {'x'.join(map(str, cost.input_shape))}: {cost.parameters:,} parameters; "
            f"{cost.flops_forward:,} flops forward, {cost.flops_training:,} training"
        )


def _shape(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.replace("x", ",").split(","))
    except ValueError:
        raise UsageError(f"--shape {text!r} is no shape; write for example 128,128,128,1") from None


def _show_layers(cost: ModelCost) -> None:
    click.echo(f"{'layer':<28}{'output':<24}{'parameters':>14}{'forward':>20}{'training':>20}")
    for layer in cost.layers:
        output = "x".join(map(str, layer.output))
        click.echo(
            f"{layer.name:<28}{output:<24}{layer.parameters:>14,}{layer.flops_forward:>20,}{layer.flops_training:>20,}"
        )
