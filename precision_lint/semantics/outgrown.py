"""Values that an operation takes out of the range of half: which are half, which are bounded."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from precision_lint.api import Confidence
from precision_lint.semantics.care import Care
from precision_lint.semantics.doubts import Doubt
from precision_lint.semantics.ops import SHAPES
from precision_lint.semantics.quotients import ends_in_term

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context
    from precision_lint.semantics.half import Half

NORMS = frozenset({
    "layer_norm", "group_norm", "rms_norm", "batch_norm", "instance_norm", "normalize", "softmax",
    "sigmoid", "tanh", "hardsigmoid", "relu6", "hardtanh", "log_softmax", "logsigmoid",
    "cosine_similarity", "sin", "cos", "softsign", "one_hot", "bernoulli", "randn", "randn_like",
    "rand", "rand_like", "normal_", "uniform_", "standardize", "erf", "sign", "xavier_uniform_",
})  # fmt: skip
"""Operations whose results are of the size of 1."""
KEEPS = SHAPES | {
    "relu", "gelu", "silu", "leaky_relu", "elu", "mish", "dropout", "mean", "amax", "amin", "max",
    "min", "abs", "neg", "float", "half", "to", "type_as", "cat", "stack", "masked_fill", "clone",
    "avg_pool2d", "adaptive_avg_pool2d", "adaptive_avg_pool1d", "interpolate", "median", "sqrt",
    "chunk", "split", "where", "type", "bfloat16", "roll", "pad", "identity", "square", "pow",
}  # fmt: skip
"""Operations behind which what is of the size of 1 still is."""
SMALL = re.compile(
    r"(^|_)(p|probs?|probabilit\w+|attn|attention|weights?|masks?|alphas?|gates?|cos|sin|iou|giou"
    r"|noise|norm(ed|alized)?|unit|directions?|dirs?|rgb|colou?rs?|imgs?|images?|pixels?|sigmas?"
    r"|confidence|similarity|sim|bias|gamma|beta|lr|temperature|eps|std|quat\w*|rot\w*)\d*$"
)
"""Names of values that are of the size of 1 by what they are."""
NORM_LAYER = re.compile(
    r"(^|_)(norm|ln|bn|gn|layer_?norm|rms_?norm|batch_?norm)\w*$|norm\d*$", re.I
)


class Outgrown:
    """What stands between a half value and the end of float16's range."""

    @staticmethod
    def confidence(half: Half, operand: ast.expr, at: Context, *, pure: bool = False) -> Confidence:
        """``likely`` only for what is half for certain: by a region in sight, or by a cast.

        ``pure``: also what a project that runs models in half, and never autocast, makes half.
        """
        if half.confidence is not Confidence.LIKELY:
            return half.confidence
        value = at.value(operand)
        if half.outside or (at.region(operand).known and value.dtype in ("float16", "low")):
            return half.confidence
        if pure and at.half_models is not None and at.project.autocast is None:
            return Doubt.lowered(half, value, operand, at)
        return Confidence.POSSIBLE

    @staticmethod
    def reaching(half: Half, operand: ast.expr, at: Context) -> Confidence:
        """The same where the harm takes a magnitude, which no dtype proves; tests choose theirs."""
        if Care.in_test(at):
            return Confidence.POSSIBLE
        confidence = Outgrown.confidence(half, operand, at)
        return min(confidence, Confidence.LIKELY, key=lambda c: c.rank)

    @staticmethod
    def ends(node: ast.expr, at: Context) -> bool:
        """Whether a value ends in a loss or a metric, which may be float32."""
        return ends_in_term(node, at)

    @staticmethod
    def bounded(node: ast.expr, at: Context, limit: float, depth: int = 6) -> bool:
        """Whether something keeps the magnitude of every element below ``limit``, or near 1."""
        value = at.value(node)
        if max(-value.lo, value.hi) < limit or {"unit", "normalized"} & value.tags:
            return True
        match node:
            case ast.Constant():
                return False  # beyond the limit by itself
            case ast.Name(id=name):
                source = at.definition(name, node) if depth else None
                return SMALL.search(name.lower()) is not None or (
                    source is not None and Outgrown.bounded(source, at, limit, depth - 1)
                )
            case ast.Attribute(attr=name):
                return SMALL.search(name.lower()) is not None
            case ast.Subscript(value=inner) | ast.UnaryOp(operand=inner):
                return Outgrown.bounded(inner, at, limit, depth)
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult(), right=right):
                return all(_small(side, at, limit, depth) for side in (left, right))
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return _standardised(right, at) or Outgrown.bounded(left, at, limit, depth)
            case ast.Call():
                return _call(node, at, limit, depth)
        return False


def _small(node: ast.expr, at: Context, limit: float, depth: int) -> bool:
    value = at.value(node)
    if value.kind == "number":
        return max(-value.lo, value.hi) < limit
    return Outgrown.bounded(node, at, limit, depth)


def _standardised(divisor: ast.expr, at: Context) -> bool:
    """Whether a value is divided by its own size: a norm, a deviation, a maximum."""
    text = at.text(divisor)
    return re.search(r"std|norm|var\b|max|sigma|scale|temp|len", text) is not None


def _call(node: ast.Call, at: Context, limit: float, depth: int) -> bool:
    operation = at.operation(node)
    if operation is not None and operation[0] in NORMS:
        return True
    if (
        operation is not None
        and operation[0] in KEEPS
        and (at.value(operation[1]).maybe_tensor or operation[0] in ("cat", "stack", "where"))
    ):
        inner = operation[1]
        if isinstance(inner, (ast.List, ast.Tuple)):
            return all(Outgrown.bounded(item, at, limit, depth) for item in inner.elts)
        return Outgrown.bounded(inner, at, limit, depth)
    func, cls = node.func, at.function.cls
    if not isinstance(func, ast.Attribute) or cls is None or at.text(func.value) != "self":
        return False
    made = at.module.attribute(cls, func.attr)
    if isinstance(made.const, str) and "instance" in made.tags:
        last = made.const.rpartition(".")[2]
        if re.search(r"Norm|Sigmoid|Tanh|ReLU6|Softmax", last):
            return True
        keeps = re.search(r"Dropout|ReLU|GELU|SiLU|Pool|Identity|Flatten", last)
        return bool(keeps and node.args) and Outgrown.bounded(node.args[0], at, limit, depth)
    return NORM_LAYER.search(func.attr) is not None
