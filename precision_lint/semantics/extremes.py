"""Constants that are the least or greatest number of a tensor's dtype."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context


class Extreme:
    """``torch.finfo(x.dtype).min`` and its like."""

    CALLS: ClassVar[str] = r"finfo|(neg|pos|minus)_?inf\w*\(|(^|_)(min|max)_?(value|of|dtype)\("
    """Calls that give the least or greatest number of a dtype."""

    @staticmethod
    def of(node: ast.expr, at: Context, depth: int = 4) -> ast.expr | None:
        """The tensor whose dtype a constant is the extreme of, through local names."""
        match node:
            case ast.UnaryOp(operand=inner):
                return Extreme.of(inner, at, depth)
            case ast.IfExp(body=body, orelse=other):
                return Extreme.of(body, at, depth) or Extreme.of(other, at, depth)
            case ast.Name(id=name) if depth:
                source = at.definition(name, node)
                return None if source is None else Extreme.of(source, at, depth - 1)
            case ast.Attribute(value=ast.Call(args=[dtype]) as call, attr="min" | "max"):
                return _owner(dtype, at) if at.qualify(call.func) == "torch.finfo" else None
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[dtype]):
                return _owner(dtype, at) if re.search(Extreme.CALLS, f"{name}(") else None
        return None


def _owner(dtype: ast.expr, at: Context) -> ast.expr | None:
    """The tensor that a dtype is that of, by a local name too."""
    if isinstance(dtype, ast.Name):
        dtype = at.definition(dtype.id, dtype) or dtype
    return dtype.value if isinstance(dtype, ast.Attribute) and dtype.attr == "dtype" else None
