"""The protocol of apex's amp: what ``amp.initialize`` returns, and who scales and unscales."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from precision_lint.semantics.names import dotted
from precision_lint.semantics.transitions import COUNTS

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context

Loop = ast.For | ast.AsyncFor | ast.While
INITIALIZE = "apex.amp.initialize"


class Apex:
    """What rules ask of code that uses apex's amp."""

    initialize = INITIALIZE

    @staticmethod
    def initialized(at: Context) -> list[ast.Call]:
        """Calls of ``amp.initialize`` in this file."""
        calls = at.module.index.calls.get("initialize", [])
        return [call for call, _ in calls if (dotted(call.func) or "").endswith("amp.initialize")]

    @staticmethod
    def level(call: ast.Call) -> str:
        """The literal ``opt_level``; ``""``: it is chosen at run time."""
        given = next((k.value for k in call.keywords if k.arg == "opt_level"), None)
        if given is None:
            return "O1"
        return str(given.value) if isinstance(given, ast.Constant) else ""

    @staticmethod
    def scales(call: ast.Call) -> bool:
        """Whether losses have to be scaled after an ``amp.initialize``."""
        fixed = next((k.value for k in call.keywords if k.arg == "loss_scale"), None)
        one = isinstance(fixed, ast.Constant) and fixed.value in (1, 1.0, "1.0", "1")
        return not one and Apex.level(call) not in ("O0", "O4", "O5")

    @staticmethod
    def lost(call: ast.Call, at: Context) -> str | None:
        """The name under which the optimizer that ``amp.initialize`` returns is never used."""
        statement = at.statement(call)
        if not isinstance(statement, ast.Assign) or statement.value is not call:
            return None
        target = statement.targets[0]
        if not isinstance(target, ast.Tuple) or len(target.elts) != 2 or len(call.args) < 2:
            return None
        name, given = target.elts[1], dotted(call.args[1])
        if not isinstance(name, ast.Name) or given is None or given == name.id:
            return None
        loads = [use for use in at.uses(name.id) if isinstance(use.ctx, ast.Load)]
        return None if any(use.lineno > call.lineno for use in loads) else name.id

    @staticmethod
    def plain_backwards(call: ast.Call, at: Context) -> Iterator[ast.Call]:
        """Backward passes behind ``amp.initialize`` in a function that scales no loss."""
        if not Apex.scales(call) or at.mentions(r"scale_loss|loss_scale|scaler"):
            return
        steps = at.mentions(r"opt\w*\.step\(")
        for node in at.function.nodes if steps else ():
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "backward"
                and not node.args
                and node.lineno > call.lineno
            ):
                yield node

    @staticmethod
    def micro_steps(at: Context) -> Iterator[tuple[ast.Call, ast.Call | None]]:
        """Regions of ``amp.scale_loss`` that unscale in each micro-step of gradient accumulation,
        each with the step that is taken in some of them; None: the step is in another function."""
        for node in at.function.nodes:
            if not isinstance(node, (ast.With, ast.AsyncWith)):
                continue
            call = node.items[0].context_expr
            name = dotted(call.func) or "" if isinstance(call, ast.Call) else ""
            if not isinstance(call, ast.Call) or not name.endswith("scale_loss"):
                continue
            if any(k.arg in ("delay_unscale", None) for k in call.keywords):
                continue
            loop = next((p for p in at.ancestors(node) if isinstance(p, Loop)), None)
            if loop is None:
                if _in_inner_loop(at) and not at.mentions(r"opt\w*\.step\("):
                    yield call, None
                continue
            for part in ast.walk(loop):
                if not isinstance(part, ast.If) or not COUNTS.search(ast.unparse(part.test)):
                    continue
                if Apex.apart(node, part, at):
                    continue
                step = next((s for s in ast.walk(part) if _steps(s)), None)
                if isinstance(step, ast.Call) and "%" in ast.unparse(part.test):
                    yield call, step
                    break

    @staticmethod
    def apart(a: ast.AST, b: ast.AST, at: Context) -> bool:
        """Whether two nodes are in different arms of one ``if``, or of two that ask the same."""
        first, second = (
            {
                ast.unparse(around.test): any(inner is statement for statement in around.body)
                for inner, around in itertools.pairwise((node, *at.ancestors(node)))
                if isinstance(around, ast.If)
            }
            for node in (a, b)
        )
        return any(first[test] != second[test] for test in first.keys() & second.keys())


def _steps(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return node.func.attr == "step" and "opt" in (dotted(node.func.value) or "").lower()


def _in_inner_loop(at: Context) -> bool:
    """Whether a caller of this file runs the function in a loop that itself is in one."""
    for call, caller in at.module.call_sites(at.function):
        loops = 0
        parent = caller.parents.get(id(call))
        while parent is not None:
            loops += isinstance(parent, Loop)
            parent = caller.parents.get(id(parent))
        if loops > 1:
            return True
    return False
