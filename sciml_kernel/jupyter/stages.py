"""Finds stages in a cell: `with sk.stage(...)` at its top, or the whole cell where its tag says so.

Python can't leave out the body of a `with`. So IPython's syntax tree of the cell is changed before it is run: the body
gets an `if` that asks the stage, and the stage is told which variables the body reads and sets. `batch.stages` does the
rest. Tags do not reach a kernel: a batch run says by a file which source is which stage.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from sciml_kernel.contracts import STAGES_VARIABLE

__all__ = ["Scope", "Stages", "add", "reads_and_writes"]

_HIDDEN = "_sciml_stage"
_MAGIC = "it uses a magic, and what that leaves behind is not known"


def add(shell: Any) -> None:
    """Let an IPython shell find stages. Twice is no harm."""
    if not any(isinstance(found, Stages) for found in shell.ast_transformers):
        stages = Stages(shell)
        shell.ast_transformers.append(stages)
        shell.events.register("pre_run_cell", stages.look_at)


class Stages(ast.NodeTransformer):
    """IPython calls `visit` with the tree of each cell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._tagged = _tagged()
        self._name, self._silent = "", False

    def look_at(self, info: Any) -> None:
        """Which stage the cell is that comes next, if it is one; called by IPython."""
        source = info.raw_cell or ""
        self._name = self._tagged.get(hashlib.sha256(source.encode()).hexdigest(), "")
        self._silent = source.rstrip().endswith(";")

    def visit_Module(self, node: ast.Module) -> ast.Module:
        name, self._name = self._name, ""
        if name and node.body:
            call = ast.parse(f"__import__('sciml_kernel').stage({name!r})", mode="eval").body
            assert isinstance(call, ast.Call)
            item = ast.withitem(context_expr=call, optional_vars=None)
            node.body = [self._guarded(ast.With(items=[item], body=self._shown(node.body)), whole=True)]
            return ast.fix_missing_locations(node)
        whole = len(node.body) == 1
        node.body = [self._found(statement, whole=whole) for statement in node.body]
        return ast.fix_missing_locations(node)

    def _found(self, statement: ast.stmt, *, whole: bool) -> ast.stmt:
        """The statement with its stages guarded; also inside `for`, `if` and `try`, not inside of functions."""
        if isinstance(statement, ast.With) and _is_stage(statement):
            return self._guarded(statement, whole=whole)
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for name in ("body", "orelse", "finalbody"):
                inner = getattr(statement, name, None)
                if isinstance(inner, list):
                    setattr(statement, name, [self._found(one, whole=False) for one in inner])
        return statement

    def _guarded(self, statement: ast.With, *, whole: bool) -> ast.With:
        (item,) = statement.items
        reads, writes = reads_and_writes(statement.body)
        source = "\n".join(map(ast.unparse, statement.body))
        obstacle = _MAGIC if "get_ipython" in reads else ""
        trace = (
            f"__import__('sciml_kernel.jupyter.stages', fromlist=['x']).enter(None, globals(), {tuple(reads)!r}, "
            f"{tuple(writes)!r}, {source!r}, {obstacle!r}, {whole!r})"
        )
        call = ast.parse(trace, mode="eval").body
        assert isinstance(call, ast.Call)
        call.args[0] = item.context_expr
        item.context_expr = call
        chosen = item.optional_vars
        asked = chosen.id if isinstance(chosen, ast.Name) else _HIDDEN
        if not isinstance(chosen, ast.Name):
            item.optional_vars = ast.Name(_HIDDEN, ast.Store())
        test = ast.parse(f"getattr({asked}, 'needed', True)", mode="eval").body
        statement.body = [ast.If(test=test, body=statement.body, orelse=[])]
        ast.copy_location(statement.body[0], statement)
        return statement

    def _shown(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """A cell shows the value of its last expression; inside of a `with` it would not."""
        last = body[-1]
        if self._silent or not isinstance(last, ast.Expr):
            return body
        shown = ast.parse("__import__('sciml_kernel.jupyter.stages', fromlist=['x']).show(None)").body[0]
        assert isinstance(shown, ast.Expr)
        assert isinstance(shown.value, ast.Call)
        shown.value.args[0] = last.value
        return [*body[:-1], ast.copy_location(shown, last)]


def enter(
    stage: Any,
    namespace: dict[str, Any],
    reads: tuple[str, ...],
    writes: tuple[str, ...],
    source: str,
    obstacle: str,
    whole: bool,
) -> Any:
    """Called by the changed cell: tell the stage what its body is. Something else of that name is left alone."""
    from sciml_kernel.batch.stages import Stage, Trace

    if not isinstance(stage, Stage):
        return stage
    return _Speaking(stage.traced(Trace(namespace, reads, writes, source, obstacle, whole)))


def show(value: Any) -> None:
    """Display the value of the last expression of a cell."""
    if value is not None:
        from IPython.display import display

        display(value)


class _Speaking:
    """A stage that says in its cell whether it is run, and why."""

    def __init__(self, stage: Any) -> None:
        self._stage = stage

    def __enter__(self) -> Any:
        stage = self._stage.__enter__()
        if stage.said:
            from IPython.display import display

            note = {"stage": stage.name, "kept": not stage.needed, "whole": stage.whole}
            display({"text/plain": stage.said}, raw=True, metadata={"sciml": note})
        return stage

    def __exit__(self, *error: Any) -> Any:
        return self._stage.__exit__(*error)


class Scope(ast.NodeVisitor):
    """Names that code at the top of a notebook loads and sets, functions inside of it included for what they load."""

    def __init__(self) -> None:
        self.loads: list[str] = []
        self.stores: list[str] = []
        self._depth = 0

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.loads.append(node.id)
        elif self._depth == 0:
            self.stores.append(node.id)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.loads.append(node.target.id)
        self.generic_visit(node)

    def visit_alias(self, node: ast.alias) -> None:
        if self._depth == 0:
            self.stores.append((node.asname or node.name).partition(".")[0])

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        if self._depth == 0:
            self.stores.append(node.name)
        self._inner(node)

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _definition

    def _inner(self, node: ast.AST) -> None:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1

    visit_Lambda = visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _inner


def reads_and_writes(body: list[ast.stmt]) -> tuple[list[str], list[str]]:
    """(names that the statements may use from before them, names that they set), in order.

    A name counts as read unless a statement before has set it for certain: not one inside of `if`, `for` or `try`.
    """
    reads: dict[str, None] = {}
    writes: dict[str, None] = {}
    certain: set[str] = set()
    for statement in body:
        scope = Scope()
        scope.visit(statement)
        reads |= dict.fromkeys(name for name in scope.loads if name not in certain)
        writes |= dict.fromkeys(scope.stores)
        if not isinstance(statement, ast.If | ast.For | ast.While | ast.Try | ast.Match):
            certain |= set(scope.stores)
    return list(reads), list(writes)


def _is_stage(statement: ast.With) -> bool:
    """`with sk.stage("name"):` or `with stage("name") as s:`."""
    if len(statement.items) != 1 or not isinstance(call := statement.items[0].context_expr, ast.Call):
        return False
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name == "stage" and isinstance(statement.items[0].optional_vars, ast.Name | None)


def _tagged() -> dict[str, str]:
    """sha256 of a cell's source -> the stage that its tag says it is."""
    try:
        found: dict[str, str] = json.loads(Path(os.environ.get(STAGES_VARIABLE, os.devnull)).read_text())
    except (OSError, ValueError):
        return {}
    return found
