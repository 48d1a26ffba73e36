"""What the parts of a test speak of: a tensor, its magnitude, its least element, autocast."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.domains.values import Reference

ENABLED: Final = frozenset({"torch.is_autocast_enabled", "torch.is_autocast_cpu_enabled"})
DTYPE: Final = frozenset({
    "torch.get_autocast_dtype", "torch.get_autocast_gpu_dtype", "torch.get_autocast_cpu_dtype",
})  # fmt: skip
OF_CUDA: Final = frozenset({"torch.is_autocast_enabled", "torch.get_autocast_gpu_dtype"})
EXTREMES: Final = {"min": "min", "amin": "min", "max": "max", "amax": "max"}
PASSED: Final = frozenset({"item", "all", "bool", "detach", "cpu"})
"""Methods behind a result that has one element."""
ABSOLUTE: Final = frozenset({"torch.abs", "torch.absolute", "builtins.abs"})


def called(it: Interpreter, node: ast.Call) -> str:
    """The dotted name of a library's function that is called; empty: something else is."""
    function = node.func
    if isinstance(function, (ast.Name, ast.Attribute)):
        value = it.expr(function)
        return value.name if isinstance(value, Reference) else ""
    return ""


def asked_of_autocast(it: Interpreter, node: ast.Call) -> str:
    """Whether a call asks for autocast's state (``enabled``) or ``dtype``; empty: for neither.

    Without an argument it asks for CUDA's, of which a region for the CPU says nothing.
    """
    function = node.func
    last = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if "autocast" not in last:
        return ""
    name = called(it, node)
    if name in OF_CUDA and not node.args and it.region.device == "cpu":
        return ""
    return "enabled" if name in ENABLED else "dtype" if name in DTYPE else ""


def target_of(it: Interpreter, node: ast.expr) -> ast.expr | None:
    """A name, or a dotted one."""
    inner = node
    while isinstance(inner, ast.Attribute):
        inner = inner.value
    return node if isinstance(inner, ast.Name) else None


def _argument(
    it: Interpreter, node: ast.Call, names: frozenset[str], methods: object
) -> ast.expr | None:
    """What ``x.method()`` or ``torch.function(x)`` is applied to."""
    function = node.func
    if isinstance(function, ast.Attribute) and not node.args and function.attr in methods:  # type: ignore[operator]
        return function.value
    if len(node.args) == 1 and not node.keywords and called(it, node) in names:
        return node.args[0]
    return None


def measured(it: Interpreter, node: ast.expr) -> tuple[ast.expr, bool, str] | None:
    """The name that an expression is of, whether its magnitude, and which element: ``min``, ``max`` or all.

    None: it is another expression.
    """
    which = ""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.args or node.keywords or node.func.attr not in PASSED:
            break
        node = node.func.value
    if isinstance(node, ast.Call):
        for name, kind in EXTREMES.items():
            inner = _argument(it, node, frozenset({f"torch.{name}"}), (name,))
            if inner is not None:
                node, which = inner, kind
                break
    absolute = False
    if isinstance(node, ast.Call):
        inner = _argument(it, node, ABSOLUTE, ("abs", "absolute"))
        if inner is None:
            return None
        node, absolute = inner, True
    target = target_of(it, node)
    return (target, absolute, which) if target is not None else None


def elementwise(
    it: Interpreter, node: ast.expr, holds: bool
) -> Iterator[tuple[ast.expr, type, ast.expr]]:
    """The comparisons that hold for all elements where ``(a < b).all()`` holds, or for none."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr != "item" or node.args:
            break
        node = node.func.value
    if not isinstance(node, ast.Call):
        return
    name = "all" if holds else "any"
    inner = _argument(it, node, frozenset({f"torch.{name}"}), (name,))
    if inner is not None:
        yield from _parts(inner, ast.BitAnd if holds else ast.BitOr)


def _parts(node: ast.expr, joint: type) -> Iterator[tuple[ast.expr, type, ast.expr]]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, joint):
        yield from _parts(node.left, joint)
        yield from _parts(node.right, joint)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield node.left, node.ops[0].__class__, node.comparators[0]
