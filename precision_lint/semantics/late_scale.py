"""Attention scores that are scaled after the product: where the scale is, and what it is."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precision_lint.semantics import ops
from precision_lint.semantics.lowered import Lowered

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context

_SCALE = re.compile(
    r"(^|[^a-z])(scale|scaling|softmax_scale|scale_factor|norm_factor|norm_fact)([^a-z]|$)|"
    r"sqrt|\*\*|d_?k\b|head_dim|dim_head|head_size|width|inv_scale"
)
"""Names of factors that make scores smaller."""
_GROWS = re.compile(r"logit|temp|tau|gamma|gain|alpha|lora|lr")
"""Names of factors that may as well make them larger."""
_NORMALISED = re.compile(r"norm|unit|l2|cosine")
_STEPS = 6


@dataclass(frozen=True)
class LateScale:
    """A product of an attention that is scaled behind it and then goes through a softmax.

    ``scaled`` is the expression or statement with the scale; ``direct``: the scale stands at the
    product itself, where nothing was added in between.
    """

    product: Lowered
    scaled: ast.BinOp | ast.AugAssign
    direct: bool

    @property
    def factor(self) -> ast.expr:
        """The scale."""
        node = self.scaled
        if isinstance(node, ast.AugAssign):
            return node.value
        return node.left if self.product.node in list(ast.walk(node.right)) else node.right

    @classmethod
    def of(cls, node: ast.Call | ast.BinOp, at: Context) -> LateScale | None:
        """The late scale of a product; None: it has none, or no softmax follows."""
        product = Lowered.of(node, at)
        if product is None or product.layer or len(product.operands) != 2:
            return None
        if any(_bounded(operand, at) for operand in product.operands):
            return None
        return _follow(node, product, None, True, at, _STEPS)


def _bounded(operand: ast.expr, at: Context, depth: int = 4) -> bool:
    """Whether an operand was normalised or scaled already, behind names and views."""
    value = at.value(operand)
    if "unit" in value.tags or (value.lo >= -1 and value.hi <= 1):
        return True
    match operand:
        case ast.Name(id=name) if depth:
            source = at.definition(name, operand)
            return source is not None and _bounded(source, at, depth - 1)
        case ast.Tuple(elts=items):
            return all(_bounded(item, at, depth) for item in items)
        case ast.BinOp(left=left, right=right, op=ast.Mult() | ast.Div()):
            return _is_scale(right, operand.op, at) or (
                isinstance(operand.op, ast.Mult) and _is_scale(left, operand.op, at)
            )
        case ast.Call(func=func):
            called = getattr(func, "attr", getattr(func, "id", "")).lower()
            if _NORMALISED.search(called) or called.endswith("softmax"):
                return True
            inner = at.operation(operand)
            moved = inner is not None and inner[0] in ops.SHAPES | {"to", "float", "contiguous"}
            return moved and inner is not None and _bounded(inner[1], at, depth)
        case ast.Subscript(value=inner_value):
            return _bounded(inner_value, at, depth)
    return False


def _is_scale(node: ast.expr, op: ast.operator, at: Context) -> bool:
    """Whether a factor or divisor is a number that makes scores smaller."""
    value = at.value(node)
    if value.kind == "number" and isinstance(value.const, (int, float)):
        return value.const > 1 if isinstance(op, ast.Div) else 0 < value.const < 1
    text = at.text(node).lower()
    if _GROWS.search(text) or not _SCALE.search(text):
        return False
    return value.kind in ("number", "unknown") or value.ndim == 0


def _follow(
    node: ast.expr,
    product: Lowered,
    scaled: ast.BinOp | ast.AugAssign | None,
    direct: bool,
    at: Context,
    steps: int,
) -> LateScale | None:
    """What becomes of an expression on its way to a softmax."""
    inner: ast.AST = node
    for parent in at.ancestors(node):
        match parent:
            case ast.BinOp(left=left, right=right, op=ast.Mult() | ast.Div() as op):
                other = right if left is inner else left
                if isinstance(op, ast.Div) and left is not inner:
                    return None
                if scaled is None and _is_scale(other, op, at):
                    scaled = parent
                elif at.value(other).kind != "number":
                    return None
            case ast.BinOp(op=ast.Add() | ast.Sub()):
                direct = direct and scaled is not None
            case ast.Attribute(attr=attr):
                if attr not in ops.SHAPES | {"masked_fill", "softmax", "float", "to", "add"}:
                    return None
            case ast.Call(func=func):
                name = str(at.qualify(func) or getattr(func, "attr", "")).rpartition(".")[2]
                if name == "softmax":
                    return LateScale(product, scaled, direct) if scaled is not None else None
                if name not in ops.SHAPES | {"masked_fill", "where", "float", "to", "add"}:
                    softmax = "softmax" in (at.text(func).lower())
                    return LateScale(product, scaled, direct) if softmax and scaled else None
            case ast.Subscript(value=value):
                if value is not inner:
                    return None
            case ast.Assign(targets=[ast.Name(id=name)], value=source) if steps:
                return _named(name, source, product, scaled, direct, at, steps - 1)
            case ast.AugAssign(target=ast.Name(id=name), value=source) if steps:
                return _named(name, source, product, scaled, direct, at, steps - 1)
            case _:
                return None
        inner = parent
    return None


def _named(
    name: str,
    source: ast.expr,
    product: Lowered,
    scaled: ast.BinOp | ast.AugAssign | None,
    direct: bool,
    at: Context,
    steps: int,
) -> LateScale | None:
    """What becomes of a local name."""
    for use in at.uses(name):
        parent = at.parents.get(id(use))
        behind = (use.lineno, use.col_offset) > (source.lineno, source.col_offset)
        if isinstance(parent, ast.AugAssign) and parent.target is use and behind:
            if scaled is None and _is_scale(parent.value, parent.op, at):
                if isinstance(parent.op, (ast.Mult, ast.Div)):
                    scaled = parent
            continue
        if not isinstance(use.ctx, ast.Load) or not behind:
            continue
        if at.definition(name, use) is not source and scaled is None:
            continue
        found = _follow(use, product, scaled, direct and scaled is not None, at, steps)
        if found is not None:
            return found
    return None
