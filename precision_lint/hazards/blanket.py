"""Helpers that cast whatever tensor a batch holds to half: integers and masks as well as floats."""

from __future__ import annotations

import ast

from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.tensors import Applied, hazard
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.values import Tensor
from precision_lint.syntax.program import Function

ASKS = frozenset({
    "dtype", "is_floating_point", "is_complex", "floating_point", "long", "type", "floating",
})  # fmt: skip
"""Names of what tells floats from other tensors."""


@hazard("cast")
def blanket_cast(it: Interpreter, applied: Applied) -> None:
    """A function that goes down into mappings casts each tensor that it finds there."""
    value, function, vector = applied.tensor(), it.function, applied.result.dtypes
    named = vector == dtypes.V_FLOAT16 and applied.result.data == "explicit"
    given = all(one > dtypes.ANY for one in vector) and vector == dtypes.everywhere(vector[0])
    if value is None or function is None or not (named or given) or not _is_parameter(value):
        return
    known = function.facts.get("blanket")
    if known is None:
        known = function.facts["blanket"] = _goes_down(function)
    if known:
        modes = dtypes.ALL_MODES if named else dtypes.ALL_MODES & ~(1 << dtypes.CODE)
        it.emit("blanket-cast", applied.node, modes, assume.BRANCH)


def _is_parameter(value: Tensor) -> bool:
    """Whether a tensor is an argument as it came, of which nothing shows that it holds floats."""
    symbol = value.symbol
    if value.op != "input" or symbol is None:
        return False
    return symbol.owner is None and not symbol.uses & (symbol.FLOAT | symbol.REAL)


def _goes_down(function: Function) -> bool:
    """Whether a function calls itself on the values of mappings and asks no tensor what it holds."""
    nodes = list(ast.walk(function.node))
    asked = {one.attr for one in nodes if isinstance(one, ast.Attribute)}
    if not asked.isdisjoint(ASKS) or asked.isdisjoint({"items", "values"}):
        return False
    return any(_called(one) == function.name for one in nodes)


def _called(node: ast.AST) -> str:
    """The name of what is called."""
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))
