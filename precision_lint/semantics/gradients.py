"""Which expressions read the values of gradients."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_lint.semantics.names import dotted

CLIP = re.compile(r"^_?(dispatch_)?clip_(grad|all_grad|master_grad)|^_?grad(ient)?_clip")
READS_GRADIENT = re.compile(
    r"^_?(check|get|compute|calc\w*|log|monitor|total|global|has|any|detect|validate|verify)\w*"
    r"_?grad(s|ient|ients)?(_|$)(?!clip|fn|scaler|accum|checkpoint|enabled|sync)"
    r"|^_?grad(s|ient|ients)?_(norm|stats|statistics|is_finite|are_finite|has_nan|check|hist)\w*$"
)
NOT_READ = re.compile(r"zero_grad|no_grad|grad_enabled|requires_grad|enable_grad|clip")
SELF_UNSCALING = ("accelerator", "fabric", "engine", "strategy", "deepspeed")
"""Receivers whose clip method takes care of the scaler itself."""

READ_METHODS = frozenset({
    "norm", "isnan", "isinf", "isfinite", "max", "min", "amax", "amin", "mean", "std", "var", "sum",
    "item", "any", "all", "pow", "square", "numpy", "tolist", "median", "histc", "abs", "gt", "lt",
    "quantile", "nonzero", "count_nonzero",
})  # fmt: skip
THROUGH = frozenset({
    "detach", "clone", "float", "double", "cpu", "flatten", "view", "reshape", "data", "to",
    "contiguous", "ravel", "coalesce", "_values", "values",
})  # fmt: skip
JOINS = frozenset({"cat", "concat", "stack", "list", "parameters_to_vector"})
READ_CALLS = READ_METHODS | frozenset({
    "vector_norm", "get_total_norm", "print", "add_histogram", "add_scalar", "histogram", "hist",
    "debug", "info", "warning", "error", "Histogram", "str", "len", "log10", "log", "allclose",
    "_foreach_norm", "write", "append",
}) - {"len", "append"}  # fmt: skip


def gradient_of(node: ast.expr, aliases: set[str]) -> ast.expr | None:
    """The ``.grad`` (or an alias of one) that an expression passes on unchanged, or None."""
    while True:
        if isinstance(node, ast.Name):
            return node if node.id in aliases else None
        if isinstance(node, ast.Attribute):
            if node.attr == "grad" and not isinstance(node.ctx, ast.Store):
                return node
            if node.attr not in THROUGH:
                return None
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr not in THROUGH:
                return None
            node = node.func.value
        elif isinstance(node, ast.Subscript):
            node = node.value
        else:
            return None


def carries(node: ast.expr, aliases: set[str]) -> bool:
    """Whether an expression holds gradients: one, a list of them, or a tensor made of them."""
    if gradient_of(node, aliases) is not None:
        return True
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        return carries(node.elt, aliases)
    if isinstance(node, (ast.List, ast.Tuple)):
        return any(carries(item, aliases) for item in node.elts)
    if isinstance(node, ast.Call) and (dotted(node.func) or "").rpartition(".")[2] in JOINS:
        return any(carries(argument, aliases) for argument in node.args)
    return False


def reads(node: ast.expr, aliases: set[str]) -> Iterator[ast.expr]:
    """Outermost expressions inside ``node`` that read the values of a gradient."""
    stack: list[ast.AST] = [node]
    while stack:
        part = stack.pop()
        if isinstance(part, ast.Call):
            callee = part.func
            if isinstance(callee, ast.Attribute) and callee.attr in READ_METHODS:
                if gradient_of(callee.value, aliases) is not None:
                    yield part
                    continue
            last = callee.attr if isinstance(callee, ast.Attribute) else getattr(callee, "id", "")
            if last in READ_CALLS and any(carries(a, aliases) for a in part.args):
                yield part
                continue
        elif isinstance(part, ast.Compare):
            if not all(isinstance(o, (ast.Is, ast.IsNot)) for o in part.ops) and any(
                gradient_of(e, aliases) is not None for e in (part.left, *part.comparators)
            ):
                yield part
                continue
        elif isinstance(part, ast.FormattedValue) and gradient_of(part.value, aliases) is not None:
            yield part.value
            continue
        elif isinstance(part, (ast.Lambda,)):
            continue
        stack.extend(reversed(list(ast.iter_child_nodes(part))))
