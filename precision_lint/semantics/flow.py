"""Where the value of a local name goes."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context

REDUCED = frozenset({"log", "log2", "log10", "mean", "sum"})
"""Operations behind which a wider dtype is a loss's own business."""
PRODUCTS = frozenset({"matmul", "bmm", "mm", "mv", "baddbmm", "einsum", "linear"})
PRODUCERS = frozenset({"sigmoid", "softmax", "tanh", "relu", "exp", "hardsigmoid", "abs", "square"})
ELEMENTWISE = PRODUCERS | REDUCED | frozenset({
    "amax", "prod", "clamp", "clip", "pow", "sqrt", "mul", "add", "sub", "neg", "item",
    "log1p", "gather", "max", "min", "detach", "argmax", "size", "float", "any", "all", "isnan",
    "maximum", "minimum", "where", "full_like", "zeros_like", "ones_like", "clamp_min", "view",
    "reshape", "squeeze", "unsqueeze", "mul_", "masked_fill", "numel", "flatten", "append",
})  # fmt: skip
"""Operations that accept any floating dtype and pass it on."""


def operation(node: ast.expr, at: Context) -> tuple[str, ast.expr] | None:
    """Name and first operand of a call of a torch function or tensor method."""
    if not isinstance(node, ast.Call):
        return None
    qualified = at.qualify(node.func)
    if qualified is not None:
        if qualified.startswith("torch.") and node.args:
            return qualified.rpartition(".")[2], node.args[0]
        return None
    if isinstance(node.func, ast.Attribute):
        return node.func.attr, node.func.value
    return None


def stays_elementwise(name: str, at: Context, seen: set[str], reduced: bool = False) -> bool:
    """Whether every use of a name allows a wider dtype: none reaches a layer or a product.

    ``reduced``: the name already holds a loss term, which may be returned or passed on.
    """
    seen.add(name)
    for use in ast.walk(at.function.node):
        if not isinstance(use, ast.Name) or use.id != name or isinstance(use.ctx, ast.Store):
            continue
        if not _allows_wider(use, at, seen, reduced):
            return False
    return True


def _allows_wider(use: ast.Name, at: Context, seen: set[str], reduced: bool) -> bool:
    node: ast.AST = use
    for parent in at.ancestors(use):
        match parent:
            case ast.Subscript(value=value) if value is not node:
                return True  # it only selects
            case ast.BinOp(op=ast.MatMult()):
                return False
            case ast.BinOp():
                # next to a logarithm of the same value the term is float32 in any case
                reduced = reduced or _takes_log(parent, use.id, at)
            case ast.UnaryOp() | ast.Subscript() | ast.Tuple() | ast.List():
                pass
            case ast.Compare():
                return True
            case ast.Attribute(attr=attr):
                if attr in ("shape", "device", "dtype", "ndim"):
                    return True
                if attr not in ELEMENTWISE:
                    return False
                reduced = reduced or attr in REDUCED
            case ast.Call(func=func):
                if func is not node:
                    name = at.qualify(func) or getattr(func, "attr", "")
                    last = str(name).rpartition(".")[2]
                    if last not in ELEMENTWISE:
                        return reduced and last not in PRODUCTS
                    reduced = reduced or last in REDUCED
            case ast.keyword():
                pass
            case (
                ast.Assign(targets=[ast.Name(id=other)]) | ast.AugAssign(target=ast.Name(id=other))
            ):
                return other in seen or stays_elementwise(other, at, seen, reduced)
            case ast.Assign() | ast.AugAssign():
                return reduced  # an entry of a dict of losses
            case ast.Return():
                return reduced
            case _:
                return False
        node = parent
    return False


def reaches_product(name: str, at: Context, seen: set[str]) -> bool:
    """Whether a name's value meets a matrix product, as far as local names carry it."""
    seen.add(name)
    for use in ast.walk(at.function.node):
        if not isinstance(use, ast.Name) or use.id != name or isinstance(use.ctx, ast.Store):
            continue
        for parent in at.ancestors(use):
            match parent:
                case ast.BinOp(op=ast.MatMult()):
                    return True
                case ast.Call(func=func):
                    called = str(at.qualify(func) or getattr(func, "attr", ""))
                    if called.rpartition(".")[2] in PRODUCTS:
                        return True
                case ast.Assign(targets=[ast.Name(id=other)]) if other not in seen:
                    if reaches_product(other, at, seen):
                        return True
                case ast.stmt():
                    break
    return False


def _takes_log(node: ast.expr, name: str, at: Context) -> bool:
    """Whether a logarithm of an expression with ``name`` is part of ``node``."""
    for part in ast.walk(node):
        found = operation(part, at) if isinstance(part, ast.Call) else None
        if found is not None and found[0] in ("log", "log2", "log10"):
            if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(found[1])):
                return True
    return False
