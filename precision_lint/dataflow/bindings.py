"""Assignments in all their spellings: what each target is given, and who looks at that."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Final

from precision_lint.dataflow.containers import assign
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.narrowing import held_test, is_test
from precision_lint.dataflow.protocol import stored
from precision_lint.dataflow.training import wraps
from precision_lint.domains.values import Sequence, Value
from precision_lint.syntax.program import bindings

STORED: Final[list[Callable[[Interpreter, ast.expr, Value, ast.AST], None]]] = []
"""What to look for where a value is stored (``hazards``)."""


def bind(it: Interpreter, node: ast.Assign | ast.AnnAssign | ast.NamedExpr, value: Value) -> Value:
    """Give the targets of an assignment what its value came to, which may become a test that is held."""
    made = node.value
    if made.__class__ is ast.Call:
        wraps(node, value)
    if made is not None and is_test(made):
        value = held_test(it, value, made)
    pairs = bindings(node)
    items = value.items if isinstance(value, Sequence) else None
    if items is None or not isinstance(made, (ast.Tuple, ast.List)):
        items = ()
    parts = {id(one): item for one, item in zip(getattr(made, "elts", ()), items, strict=False)}
    given = [parts.get(id(one), value) for _, one in pairs]
    for (target, _), part in zip(pairs, given, strict=True):
        for look in STORED:
            look(it, target, part, node)
    for (target, _), part in zip(pairs, given, strict=True):
        assign(it, target, part, node)
        stored(it, target, part)
    return value
