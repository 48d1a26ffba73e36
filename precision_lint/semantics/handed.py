"""What a function is given of layers' outputs, looking back through its callers."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from precision_lint.semantics import given, models
from precision_lint.semantics.provenance import Provenance

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context
    from precision_lint.semantics.entries import Passed
    from precision_lint.semantics.values import Value


def is_activation(value: Value, at: Context) -> bool:
    """Whether every part of a value is handed down from a layer, whose output autocast lowers.

    Of a parameter it is enough that one call does so.
    """
    names = value.dtype[1:].split("+") if value.variable else []
    parameters = {p.arg for p in at.function.parameters()}
    return bool(names) and all(
        name in parameters
        and any(_computed(one, at) for one in given.passed(at.module, at.function, f"~{name}"))
        for name in names
    )


def _computed(one: Passed, at: Context) -> bool:
    while one.behind is not None:
        one = one.behind
    value = one.value
    if value.dtype in (*models.HALF, "low") or "amp" in value.tags:
        return True
    if not value.variable or value.dtype == "~cast" or not value.maybe_tensor:
        return False
    there = at.of(one.module, one.caller)
    behind = Provenance.of(one.node, there)
    return any(_is_model(node, there) or Provenance.is_layer(node, there) for node in behind)


def _is_model(node: ast.expr, at: Context) -> bool:
    """Whether a call runs the ``forward`` of a module of the project."""
    if not isinstance(node, ast.Call):
        return False
    cls = at.function.cls
    if isinstance(node.func, ast.Name) and node.func.id == "self":
        return cls is not None and cls.is_module
    found = at.module.callee(node.func, at.function)
    return found is not None and found[0].name == "forward"
