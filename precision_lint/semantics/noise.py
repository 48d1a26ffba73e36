"""Uniform noise: the call that draws it, and the dtype it is drawn in."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context

MAKERS = frozenset({"empty", "zeros", "ones", "empty_like", "zeros_like", "ones_like", "new_empty",
                    "new_zeros", "new_ones"})  # fmt: skip
SAMPLES = frozenset({"rand", "rand_like"})
LIKE = frozenset({"rand_like", "empty_like", "zeros_like", "ones_like"})


@dataclass(frozen=True)
class Noise:
    """``call`` makes the tensor that is, or will be, uniform; ``dtype`` is what its dtype is."""

    call: ast.Call
    dtype: str | None

    @classmethod
    def of(cls, node: ast.expr, at: Context) -> Noise | None:
        """The noise that a value is, by local names, clamps and reshapes; None: it is none."""
        return _noise(node, at)

    @classmethod
    def behind(cls, node: ast.expr, at: Context) -> Noise | None:
        """The noise of which a value is the logarithm, up to its sign and an added number."""
        match node:
            case ast.UnaryOp(operand=inner):
                return cls.behind(inner, at)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return cls.behind(left, at) if at.value(right).kind == "number" else None
            case ast.Call():
                operation = at.operation(node)
                if operation is not None and operation[0] == "log":
                    return cls.behind(operation[1], at)
        return cls.of(node, at)


def _noise(node: ast.expr, at: Context, depth: int = 4) -> Noise | None:
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        source = at.definition(node.id, node) if depth else None
        return _noise(source, at, depth - 1) if source is not None else None
    operation = at.operation(node)
    if operation is None or not isinstance(node, ast.Call):
        return None
    name, operand = operation
    if name in SAMPLES and at.qualify(node.func) == f"torch.{name}":
        return Noise(node, _dtype(node, at))
    if name == "uniform_" and isinstance(operand, ast.Call):
        low = at.value(node.args[0]).const if node.args else 0
        made = at.operation(operand)
        if made is None or made[0] not in MAKERS or low != 0:
            return None
        return Noise(operand, _dtype(operand, at))
    if name in ("clamp", "clamp_min", "view", "reshape", "unsqueeze", "to", "add_"):
        inner = _noise(operand, at, depth)
        return inner if name != "to" or inner is None or at.value(node).may_be_half else None
    return None


def _dtype(call: ast.Call, at: Context) -> str | None:
    """Source of the dtype that a creation has."""
    given = next((k.value for k in call.keywords if k.arg == "dtype"), None)
    if given is not None:
        return at.text(given)
    operation = at.operation(call)
    if operation is None or not (operation[0] in LIKE or operation[0].startswith("new_")):
        return None
    source = operation[1]
    return f"{at.text(source)}.dtype" if isinstance(source, (ast.Name, ast.Attribute)) else None
