"""`sciml kernel install`, `sciml lab`."""

from __future__ import annotations

import click

from sciml_kernel.cli.shared import Group


@click.group(cls=Group)
def kernel() -> None:
    """The Jupyter kernel."""


@kernel.command()
@click.option("--sys-prefix", "place", flag_value="sys-prefix", default="sys-prefix", help="Into this environment.")
@click.option("--user", "place", flag_value="user", help="Into your own Jupyter folder.")
@click.option("--name", default="sciml", show_default=True, help="Name of the kernel.")
def install(place: str, name: str) -> None:
    """Write the kernelspec, so that Jupyter finds the kernel."""
    from sciml_kernel.jupyter import kernelspec

    click.echo(kernelspec.install(user=place == "user", name=name))


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def lab(arguments: tuple[str, ...]) -> None:
    """JupyterLab of this environment, on loopback. Arguments go to JupyterLab."""
    from sciml_kernel.jupyter import lab as jupyterlab

    jupyterlab.run(arguments)
