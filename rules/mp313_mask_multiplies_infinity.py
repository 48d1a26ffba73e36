from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Context,
    Doubt,
    Finding,
    Fix,
    Guard,
    Rule,
    Severity,
    calls,
    operators,
)

SINGULAR = frozenset({"log", "log2", "log10", "rsqrt", "reciprocal"})
STEEP = SINGULAR | {"sqrt"}
"""Functions whose gradient at 0 is infinite."""
MASK = re.compile(r"mask|(^|_)pad(ding)?(_|$)|keep|valid|weight", re.I)


class MaskMultipliesInfinity(Rule):
    """Mask that is applied behind a logarithm or a quotient, where 0 times infinity is nan.

    ## What it flags
    `torch.where(mask, x.log(), 0)`, and the same with `log2`, `log10`, `sqrt`, `rsqrt`,
    `reciprocal` or a division by `x`, also as a term or a factor (`x * x.log()`); and
    `mask * x.log()`, where nothing guards `x` and `x` may be float16.

    It stays silent where `x` is guarded by an epsilon or a clamp or bounded away from 0, where the
    argument is chosen by `torch.where` as well, where no gradient passes (for `where`), and for
    the logarithm of a sigmoid or softmax, which MP301 and MP303 report.

    ## Why it breaks
    `where` keeps the infinity out of the forward pass only. Its backward pass multiplies the
    gradient 0 of the entries that were masked by 1/x, which is inf at 0, and 0 * inf is nan: one
    masked entry makes all gradients of the step nan. A mask that multiplies does that in the
    forward pass. float32 has the same rule and meets it less often: products and sigmoids below
    2.98e-8 are 0 in float16.

    ## Example
    ```python
    p = torch.sigmoid(a.half()) * torch.sigmoid(b.half())
    loss = torch.where(keep, p.log(), 0.0).mean()
    ```
    Use instead:
    ```python
    p = torch.sigmoid(a.half()) * torch.sigmoid(b.half())
    loss = torch.where(keep, torch.where(keep, p, 1.0).log(), 0.0).mean()
    ```

    ## Fix safety
    Unsafe: the argument becomes 1 where the mask drops the result, so values stay the same and
    gradients that were nan are 0; where `x` is 0 and kept, nothing changes. There is no fix for a
    mask that multiplies, because a mask of weights is no condition.

    ## How to silence
    `# precision-lint: ignore[MP313] reason` or `# noqa: MP313` on the line.

    ## Sources
    PyTorch, autograd mechanics; PyTorch issue 10729 (nan gradients of `torch.where`).
    """

    code, name = "MP313", "mask-multiplies-infinity"
    severity, applicability = Severity.INFO, Applicability.UNSAFE
    triggers = calls("torch.where") | operators(ast.Mult, pattern=r"\blog(2|10)?\(")

    def check(self, node: ast.expr, at: Context) -> Iterator[Finding]:
        if isinstance(node, ast.BinOp):
            yield from self._multiplied(node, at)
        elif isinstance(node, ast.Call) and len(node.args) == 3:
            yield from self._chosen(node, at)

    def _chosen(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        condition, *branches = node.args
        if at.function.name == "backward":
            return  # of an autograd.Function: it has no gradient itself
        for branch in branches:
            found = _singular(branch, STEEP, at)
            if found is None:
                continue
            name, operand = found
            value = at.value(operand)
            half = at.float16(value, at.region(branch))
            if half is None or not _open(operand, branch, at):
                continue
            if Guard(operand, 0.0, operand).without_gradient(node, at):
                continue
            yield at.finding(
                node,
                f"where behind {name}: the entries that it drops have the gradient 0 * inf, "
                "which is nan",
                Doubt.strict(half, value, operand, at),
                evidence=half.evidence,
                fix=_fix(condition, branch is branches[0], operand, at),
            )

    def _multiplied(self, node: ast.BinOp, at: Context) -> Iterator[Finding]:
        for side, mask in ((node.left, node.right), (node.right, node.left)):
            found = _singular(side, SINGULAR, at)
            if found is None or not _is_mask(mask, at):
                continue
            name, operand = found
            value = at.value(operand)
            half = at.float16(value, at.region(side))
            if half is None or not _open(operand, side, at):
                continue
            yield at.finding(
                node,
                f"mask times {name}, which is infinite at 0: 0 * inf is nan",
                Doubt.strict(half, value, operand, at),
                evidence=half.evidence,
            )


def _singular(node: ast.expr, names: frozenset[str], at: Context) -> tuple[str, ast.expr] | None:
    """A function that is infinite, or infinitely steep, at 0; and what it is taken of."""
    while isinstance(node, ast.UnaryOp):
        node = node.operand
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Add, ast.Sub)):
        sides = [s for s in (node.left, node.right) if not _divides(s)]
        inner = (_singular(side, names - {"sqrt"}, at) for side in sides)
        return next((found for found in inner if found is not None), None)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        tensor = at.value(node.right)
        return (
            ("a division", node.right) if tensor.maybe_tensor and at.is_tensor(node.right) else None
        )
    operation = at.operation(node)
    return operation if operation is not None and operation[0] in names else None


def _divides(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)


def _open(operand: ast.expr, use: ast.expr, at: Context) -> bool:
    """Whether nothing keeps an argument off 0, and no other rule reports it."""
    if at.least(at.value(operand)) > Guard.OVERFLOWS:
        return False
    inner: ast.expr | None = operand
    while isinstance(inner, ast.Name):
        source = at.definition(inner.id, inner)
        if source is None:
            break
        inner = source
    operation = at.operation(inner) if inner is not None else None
    if operation is not None and operation[0] in ("where", "masked_fill", "sum", "norm"):
        return False
    return Guard.of(operand, use, at) is None


def _is_mask(node: ast.expr, at: Context) -> bool:
    value = at.value(node)
    if value.dtype == "bool":
        return True
    name = getattr(node, "id", getattr(node, "attr", ""))
    return value.maybe_tensor and MASK.search(name) is not None


def _fix(condition: ast.expr, kept: bool, operand: ast.expr, at: Context) -> Fix | None:
    statement = at.statement(operand)
    if statement is None or "#" in at.text(operand) + at.text(condition):
        return None
    spelling, imports = at.torch()
    parts = [at.text(operand), "1.0"] if kept else ["1.0", at.text(operand)]
    text = f"{spelling}.where({at.text(condition)}, {', '.join(parts)})"
    edits = at.edit.replace(statement, {operand: text})
    if edits is None:
        return None
    why = "gradients of the entries that the mask drops become 0, where they may be nan"
    title = "choose the argument by the mask as well"
    return Fix(title, Applicability.UNSAFE, (*imports, *edits), why)
