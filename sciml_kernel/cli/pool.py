"""`sciml pool start|status|list|stop|restart`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sciml_kernel.cli.shared import Group, echo_json, json_option, rows
from sciml_kernel.errors import UsageError

if TYPE_CHECKING:
    from sciml_kernel.pool import Pool


@click.group(cls=Group)
def pool() -> None:
    """Pools of MPI ranks that live on their own."""


@pool.command()
@click.option("-n", "n", type=int, default=2, show_default=True, help="Ranks.")
@click.option("--name", help="Name of the pool.")
@click.option("--launcher", default="local", show_default=True)
@click.option("--ttl", type=float, default=3600.0, show_default=True, help="Seconds it lives unused; 0: for ever.")
@click.option("--timeout", type=float, default=60.0, show_default=True, help="Seconds for all ranks to arrive.")
@click.option("--oversubscribe", is_flag=True, help="More ranks than cores are meant.")
@click.option("--dry-run", is_flag=True, help="Print what would be started.")
@json_option
def start(
    n: int,
    name: str | None,
    launcher: str,
    ttl: float,
    timeout: float,
    oversubscribe: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Start a pool that stays when this command is over."""
    from sciml_kernel.pool import Pool

    begin = Pool.plan if dry_run else Pool.start
    made = begin(n, launcher, name, True, ttl or None, oversubscribe, timeout)
    if dry_run:
        click.echo(made)
    else:
        _show(made, as_json)


@pool.command()
@click.argument("name", required=False)
@json_option
def status(name: str | None, as_json: bool) -> None:
    """State and ranks of a pool; of the newest live one by default."""
    from sciml_kernel.pool import Pool

    _show(Pool.find(name), as_json)


@pool.command("list")
@json_option
def list_pools(as_json: bool) -> None:
    """All pools of this user, with the state that they have now."""
    from sciml_kernel.pool import Pool

    table = Pool.list()
    if as_json:
        echo_json(rows(table))
    else:
        click.echo(repr(table) if len(table) else "no pools; `sciml pool start -n 2` starts one")


@pool.command()
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="Every pool of this user.")
@json_option
def stop(name: str | None, everything: bool, as_json: bool) -> None:
    """End a pool: no process, socket or file of it remains."""
    from sciml_kernel.pool import Pool

    if everything and name:
        raise UsageError(f"write a name or --all, not both (got {name!r} and --all)")
    names = [str(found) for found in Pool.list()["name"]] if everything else [_find(name).name]
    for found in names:
        Pool.attach(found).stop()
    if as_json:
        echo_json(names)
    else:
        click.echo(f"stopped: {', '.join(names) or 'there was none'}")


@pool.command()
@click.argument("name", required=False)
@click.option("-n", "n", type=int, help="Ranks; as before by default.")
@json_option
def restart(name: str | None, n: int | None, as_json: bool) -> None:
    """A new set of ranks in the same pool."""
    _show(_find(name).restart(n=n), as_json)


def _find(name: str | None) -> Pool:
    from sciml_kernel.pool import Pool

    return Pool.attach(name)


def _show(found: Any, as_json: bool) -> None:
    from sciml_kernel.pool.card import Card
    from sciml_kernel.pool.tables import rank_rows

    health = found.health()
    if as_json:
        fields = {**health.to_json(), "name": found.name, "path": str(found.path), "ranks": rank_rows(health)}
        echo_json(fields)
    else:
        click.echo(Card(found.name, health))
