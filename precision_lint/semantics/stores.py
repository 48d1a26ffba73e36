"""What a class stores in its objects, by its text alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from precision_lint.semantics.index import Class, Function
from precision_lint.semantics.names import dotted


def of_class(cls: Class) -> dict[str, tuple[ast.expr, Function | None]]:
    """First value stored to each ``self.x`` in ``__init__`` or the class body."""
    found: dict[str, tuple[ast.expr, Function | None]] = {}
    for statement in cls.node.body:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    found[target.id] = (statement.value, None)
    init = cls.methods.get("__init__")
    for node in ast.walk(init.node) if init else ():
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target, value in _assigned(targets, node.value):
                if isinstance(target, ast.Attribute) and dotted(target.value) == "self":
                    found.setdefault(target.attr, (value, init))
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("register_buffer", "register_parameter")
            and len(node.args) > 1
            and isinstance(node.args[0], ast.Constant)
            and isinstance(node.args[0].value, str)
        ):
            found.setdefault(node.args[0].value, (node, init))
    return found


def _assigned(targets: Sequence[ast.expr], value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Targets of an assignment with their values, also those of ``a, b = 1, 2``."""
    for target in targets:
        if isinstance(target, (ast.Tuple, ast.List)):
            parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
            if len(parts) == len(target.elts):
                yield from zip(target.elts, parts, strict=True)
        else:
            yield target, value
