from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import cast

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Finding,
    Fix,
    HandNorm,
    Mean,
    Outgrown,
    Power,
    Rule,
    Severity,
    Upcast,
    calls,
    operators,
)

CASTS = frozenset({"float", "double", "to", "type"})
ROOTS = frozenset({"sqrt", "rsqrt"})
NORMS = frozenset({"norm", "vector_norm"})
GRADIENTS = re.compile(r"(?<![a-z])(\w*_)?grads?(?![a-z])|gradients?", re.I)
NUMBERS = {2: "the square of 256", 3: "the cube of 41", 4: "the fourth power of 16"}


class SquareInHalf(Rule):
    """Square or higher power of a float16 value that nothing bounds.

    ## What it flags
    `x * x`, `x ** 2`, `x.pow(2)`, `x.square()` and third and fourth powers of float16 values: after
    a cast, of what a region has left in half, and `x * x` of a layer's output inside a region.

    It stays silent for bounded values (a layer norm's output, sigmoid, tanh, softmax, a clamp, a
    normalised vector, noise), for bfloat16, for `x ** 2` and `pow` in CUDA autocast, which runs
    them in float32, and where another rule says more: MP604 for norm layers, MP605 for variances,
    MP304 for a square that is upcast right behind, MP306 for a root with an epsilon. It is only
    `possible` for the square of a difference of two tensors, which are close as a rule, and where
    the project alone suggests half, or nothing does. So is the norm of gradients, of other norms,
    or next to another norm as a factor, unless it has `dtype=torch.float32`.

    ## Why it breaks
    float16 ends at 65504: the square of 256 is inf, the cube of 41, the fourth power of 16. Logits,
    residual streams, distances and pixel coordinates get there. A mean over squares does not help:
    one inf makes it inf, and the gradient nan.

    ## Example
    ```python
    error = prediction.half() - 300
    loss = (error * error).mean()
    ```
    Use instead:
    ```python
    error = prediction.half() - 300
    loss = (error.float() * error.float()).mean()
    ```

    ## Fix safety
    Safe where the square ends in a mean, a sum or a loss: `.float()` on float32 does nothing.
    Elsewhere unsafe: the square stays in float32, and a layer in half would not take it.

    ## How to silence
    `# precision-lint: ignore[MP601] reason` or `# noqa: MP601` on the line; or clamp the value.

    ## Sources
    PyTorch, `torch.finfo`; Automatic Mixed Precision: CUDA op-specific behavior (`pow` runs in
    float32, `mul` is not listed).
    """

    code, name = "MP601", "square-in-half"
    severity, applicability = Severity.WARNING, Applicability.SAFE
    triggers = operators(ast.Mult, ast.Pow, pattern=r"\*") | calls(
        "Tensor.square", "torch.square", "Tensor.pow", "torch.pow", "Tensor.mul", "torch.mul",
        "torch.norm", "Tensor.norm",
        "torch.linalg.norm", "torch.linalg.vector_norm",
    )  # fmt: skip

    def check(self, node: ast.expr, at: Context) -> Iterator[Finding]:
        norm = at.operation(node)
        if norm is not None and norm[0] in NORMS:
            yield from self._norm(cast(ast.Call, node), norm[1], at)
            return
        power = Power.of(node, at)
        if power is None or not at.is_tensor(power.base):
            return
        value = at.value(node)
        half = at.float16(value, at.region(node))
        if half is None:
            return
        confidence = Outgrown.reaching(half, power.base, at)
        in_sight = power.exponent > 2 or at.plausible or _reduced(node, at)
        if confidence is Confidence.POSSIBLE and not in_sight:
            return
        if Outgrown.bounded(power.base, at, power.limit) or _elsewhere(node, at):
            return
        if power.exponent == 2 and _residual(power.base, at):
            confidence = Confidence.POSSIBLE
        subject = at.text(power.base) if isinstance(power.base, ast.Name) else "the operand"
        yield at.finding(
            node,
            f"{NUMBERS[power.exponent]} is inf in float16, and nothing bounds {subject}",
            confidence,
            evidence=half.evidence,
            fix=Upcast.of(list(power.operands), node, at, fits=False),
        )

    def _norm(self, node: ast.Call, operand: ast.expr, at: Context) -> Iterator[Finding]:
        """The norm of gradients, of other norms, or beside another norm."""
        if any(k.arg in ("dtype", None) for k in node.keywords):
            return
        half = at.float16(at.value(node), at.region(node))
        known = half is not None or not at.value(node).wide
        if not known or not (_of_gradients(operand, at) or _times_norm(node, at)):
            return
        inner = at.float16(at.value(operand), at.region(node)) if half is None else half
        if inner is None or not (at.value(operand).is_tensor or at.value(node).is_tensor):
            return
        confidence = Confidence.POSSIBLE
        if inner.confidence is not Confidence.POSSIBLE and at.half_models is not None:
            confidence = Outgrown.confidence(inner, operand, at, pure=True)
        statement = at.statement(node)
        torch, imports = at.torch()
        edits = fix = None
        if statement is not None:
            edits = at.edit.add_keyword(statement, node, "dtype", f"{torch}.float32")
        if edits is not None:
            why = "the norm is float32 then, and promotes what it meets"
            fix = Fix("take the norm in float32", Applicability.UNSAFE, (*imports, *edits), why)
        yield at.finding(
            node,
            "norm in float16 is inf above 65504, and so is a product of two above 256",
            confidence,
            evidence=inner.evidence,
            fix=fix,
        )


def _of_gradients(operand: ast.expr, at: Context) -> bool:
    """Whether a norm is taken of gradients, or of the norms of several."""
    if GRADIENTS.search(at.text(operand)):
        return True
    return any(
        isinstance(part, ast.Call) and (at.operation(part) or ("",))[0] in NORMS
        for part in ast.walk(operand)
    )


def _times_norm(node: ast.expr, at: Context) -> bool:
    """Whether a norm is multiplied by another one."""
    parent = at.parents.get(id(node))
    if not isinstance(parent, ast.BinOp) or not isinstance(parent.op, ast.Mult):
        return False
    other = parent.left if parent.right is node else parent.right
    if isinstance(other, ast.BinOp) and isinstance(other.op, ast.Mult):
        other = other.right
    found = at.operation(other)
    return found is not None and found[0] in NORMS


def _reduced(node: ast.expr, at: Context) -> bool:
    """Whether a square is summed up or averaged in its own statement."""
    for around in at.ancestors(node):
        operation = at.operation(around) if isinstance(around, ast.Call) else None
        if operation is not None and operation[0] in ("sum", "mean", "nanmean", "nansum"):
            return True
        if isinstance(around, ast.stmt):
            break
    return False


def _residual(node: ast.expr, at: Context) -> bool:
    """Whether a value is the difference of two tensors, which are close as a rule."""
    source = at.definition(node.id, node) if isinstance(node, ast.Name) else node
    return (
        isinstance(source, ast.BinOp)
        and isinstance(source.op, ast.Sub)
        and all(at.value(side).kind != "number" for side in (source.left, source.right))
    )


def _elsewhere(node: ast.expr, at: Context) -> bool:
    """Whether another rule speaks of this square: of its late upcast, its root, its norm."""
    inner: ast.AST = node
    for parent in at.ancestors(node):
        match parent:
            case ast.Attribute(attr=attr) if inner is node and attr in CASTS:
                return True  # MP304
            case ast.BinOp(op=ast.Pow(), right=ast.Constant(value=value)) if value != 2:
                return True
            case ast.BinOp(op=ast.Sub(), left=left, right=right):
                squares = Mean.of(left, at)
                if squares is None and (outer := Power.of(right, at)) is not None:
                    squares = (Mean.windows(left, outer.base, at) or (None,))[0]
                pair = squares is not None and Power.of(squares.inner, at) is not None
                if pair and (left is inner or Power.of(right, at) is not None):
                    return True  # MP605
            case ast.Call():
                operation = at.operation(parent)
                if operation is not None and operation[0] in ROOTS:
                    return "+" in at.text(parent)  # MP306
            case ast.stmt():
                break
        inner = parent
    return "mean" in at.source.text and _feeds_moment(node, at)


def _feeds_moment(node: ast.expr, at: Context) -> bool:
    """Whether the mean of a square goes into a norm by hand, or into a variance."""
    if HandNorm.made_with(node, at):
        return True
    statement = at.statement(node)
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return False
    if "mean(" not in at.text(statement.value):
        return False
    for use in at.uses(statement.targets[0].id):
        around = at.parents.get(id(use))
        if isinstance(around, ast.BinOp) and isinstance(around.op, ast.Sub) and around.left is use:
            return Power.of(around.right, at) is not None
    return False
