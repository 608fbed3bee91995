"""`%pool`, `%%ranks`, `%runs`. They parse and hand on; `%px` and `%ipcluster` stay ipyparallel's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class

from sciml_kernel.errors import NotFoundError, UsageError
from sciml_kernel.jupyter import arguments
from sciml_kernel.jupyter.arguments import HelpShown, parse
from sciml_kernel.jupyter.rank_output import RankPrinter

if TYPE_CHECKING:
    from argparse import Namespace

    from sciml_kernel.pool import Pool

__all__ = ["SciMLMagics"]


@magics_class
class SciMLMagics(Magics):
    """The pool in use is the one that `%pool start` or `%pool attach` named last, else the newest live one."""

    _pool: Pool | None = None

    @line_magic
    def pool(self, line: str) -> Any:
        """%pool start -n 4 | status | watch | list | attach [NAME] | restart | stop | logs RANK"""
        try:
            options = parse(arguments.POOL, line)
        except HelpShown:
            return None
        return getattr(self, f"_{options.command}")(options)

    @cell_magic
    def ranks(self, line: str, cell: str) -> None:
        """%%ranks [-t 0,2] [--timeout S] [--quiet] [--set-up[=NAME]]: run the cell on the ranks; one that fails, fails
        the cell."""
        try:
            options = parse(arguments.RANKS, line)
        except HelpShown:
            return
        if options.set_up is not None and options.targets is not None:
            raise UsageError("%%ranks: a set-up cell runs on all ranks, new ones too; leave out -t or --set-up")
        pool = self._find(options.pool)
        with RankPrinter(len(options.targets or ()) or pool.n) as printer:
            text, display = (None, None) if options.quiet else (printer.text, printer.display)
            if options.set_up is None:
                pool.execute(cell, options.targets, options.timeout, text, display)
            else:
                name = options.set_up or None
                pool.set_up(cell, name=name, timeout=options.timeout, on_output=text, on_display=display)

    @line_magic
    def runs(self, line: str) -> Any:
        """%runs [RUN]: every run, newest first; or one as text."""
        from sciml_kernel import records

        try:
            options = parse(arguments.RUNS, line)
        except HelpShown:
            return None
        if options.run is None:
            return records.list_runs()
        return print(records.show(records.find(options.run)))

    def _find(self, name: str | None) -> Pool:
        from sciml_kernel.pool import Pool

        if name is not None:
            return Pool.attach(name)
        if self._pool is None or self._pool.state == "stopped":
            self._pool = Pool.attach()
        return self._pool

    def _look(self, name: str | None) -> Pool:
        """The pool of that name, or the one in use, to look at only."""
        from sciml_kernel.pool import Pool

        if name is not None or self._pool is None or self._pool.state == "stopped":
            return Pool.find(name)
        return self._pool

    def _start(self, options: Namespace) -> Pool:
        from sciml_kernel.pool import Pool

        self._pool = Pool.start(
            options.n,
            options.launcher,
            options.name,
            options.keep,
            options.ttl or None,
            options.oversubscribe,
        )
        return self._pool

    def _attach(self, options: Namespace) -> Pool:
        from sciml_kernel.pool import Pool

        self._pool = Pool.attach(options.name)
        return self._pool

    def _status(self, options: Namespace) -> Any:
        from sciml_kernel.pool.card import Card

        pool = self._look(options.name)
        return Card(pool.name, pool.health())

    def _watch(self, options: Namespace) -> Any:
        from sciml_kernel.views import watch

        return watch(self._look(options.name))

    def _list(self, options: Namespace) -> Any:
        from sciml_kernel.pool import Pool

        return Pool.list()

    def _restart(self, options: Namespace) -> Pool:
        return self._find(options.name).restart(n=options.n)

    def _stop(self, options: Namespace) -> None:
        try:
            pool = self._find(options.name)
        except NotFoundError:
            if options.name is None:
                return print("there is no live pool")
            raise
        pool.stop()
        self._pool = None
        return print(f"pool {pool.name!r} is stopped")

    def _logs(self, options: Namespace) -> None:
        if options.lines is not None and options.lines < 1:
            raise UsageError(f"%pool logs: --lines must be at least 1, got {options.lines}")
        rank = int(options.rank) if options.rank.isdigit() else options.rank
        print(self._find(options.name).logs(rank, lines=options.lines))
