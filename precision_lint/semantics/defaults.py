"""Numbers that a configuration may set, by the default that the code gives them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context

GETTERS = frozenset({"get", "pop", "setdefault"})


def defaulted(node: ast.expr, at: Context, depth: int = 3) -> float | None:
    """``1e-8`` of ``config.get("eps", 1e-8)``, ``getattr(args, "eps", 1e-8)`` or ``eps or 1e-8``.

    Also where a local name, or an attribute that the class sets once, holds it; None: no default.
    """
    match node:
        case ast.Call(func=ast.Attribute(attr=attr), args=[_, given]) if attr in GETTERS:
            return _number(given)
        case ast.Call(func=ast.Name(id="getattr"), args=[_, _, given]):
            return _number(given)
        case ast.Call(func=ast.Name(id="float"), args=[given]):
            return defaulted(given, at, depth)
        case ast.BoolOp(op=ast.Or(), values=[_, given]):
            return _number(given)
        case ast.Name(id=name) if depth:
            source = at.definition(name, node)
            return defaulted(source, at, depth - 1) if source is not None else None
        case ast.Attribute(value=ast.Name(id="self"), attr=attr) if depth:
            cls = at.function.cls
            stored = at.module.stores(cls).get(attr) if cls is not None else None
            if stored is None:
                return None
            return defaulted(stored[0], at, 0)
    return None


def _number(node: ast.expr) -> float | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, float) and 0 < node.value < 1:
        return node.value
    return None
