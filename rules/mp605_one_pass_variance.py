from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Context,
    Finding,
    Fix,
    Mean,
    Outgrown,
    Power,
    Rule,
    Severity,
    operators,
)

ROUNDING = "float32 results change: by rounding, and by what the difference had lost in float32"


class OnePassVariance(Rule):
    """Variance as a difference of two means, which cancels in half precision.

    ## What it flags
    `(x * x).mean(d) - x.mean(d) ** 2` and its spellings (`x.pow(2)`, `torch.square`, local names
    for either mean), and the same with averages over windows (`pool(x * x) - pool(x) ** 2`, a blur,
    a convolution with a window, as SSIM has it), where the values are float16 or bfloat16: after a
    cast, in a half model, and in an autocast region, which runs neither `mul` nor `mean` in
    float32.

    It stays silent for `x.var()`, for `x.float()`, and where autocast runs the square in float32
    (`x.pow(2)` on CUDA).

    ## Why it breaks
    Both means agree in the digits that half has as soon as they are large against the deviation.
    Measured in float16 with a deviation of 1: off by 17 % at a mean of 20, two of three variances
    are 0 or negative at 100 (and their roots nan), and at 1000 the squares are inf and the
    difference is nan. In bfloat16 half of them are 0 or negative at a mean of 20. `var` subtracts
    the mean first and accumulates in float32: its error is 5e-4.

    ## Example
    ```python
    x = (samples + 100).half()
    variance = (x * x).mean(-1) - x.mean(-1) ** 2
    ```
    Use instead:
    ```python
    x = (samples + 100).half()
    variance = x.var(-1, unbiased=False)
    ```
    or upcast first: `x = x.float()`.

    ## Fix safety
    Unsafe: float32 results change. The difference of means cancels there as well, at means from
    1000 deviations on, and rounds elsewhere.

    ## How to silence
    `# precision-lint: ignore[MP605] reason` or `# noqa: MP605` on the line.

    ## Sources
    Chan, Golub, LeVeque: Algorithms for Computing the Sample Variance, 1983. PyTorch, `torch.var`.
    """

    code, name = "MP605", "one-pass-variance"
    severity, applicability = Severity.ERROR, Applicability.UNSAFE
    triggers = operators(ast.Sub, pattern=Mean.WORDS)

    def check(self, node: ast.BinOp, at: Context) -> Iterator[Finding]:
        outer = Power.of(_resolved(node.right, at), at)
        if outer is None:
            return
        squares, mean = Mean.of(node.left, at), Mean.of(outer.base, at)
        if squares is None:
            squares, mean = Mean.windows(node.left, outer.base, at) or (None, None)
        inner = Power.of(squares.inner, at) if squares is not None else None
        if squares is None or inner is None or mean is None:
            return
        if inner.exponent != 2 or outer.exponent != 2:
            return
        base = at.text(inner.base)
        if base != at.text(mean.inner) or not at.same_at(base, mean.call, node):
            return
        half = at.half(at.value(inner.node), at.region(inner.node))
        if half is None:
            return
        unused = _only_here(node.left, at)
        touched = [at.note(unused, "the mean of the squares")] if unused is not None else []
        from_mean = 20 if half.dtype == "bfloat16" else 100
        yield at.finding(
            node,
            f"variance as a difference of means cancels in {half.dtype}: with a mean of "
            f"{from_mean} and a deviation of 1 most are 0 or negative",
            Outgrown.confidence(half, inner.base, at, pure=True),
            evidence=[*half.evidence, *touched],
            fix=_fix(node, squares, inner.base, at),
        )


def _resolved(node: ast.expr, at: Context) -> ast.expr:
    """What a local name stands for."""
    source = at.definition(node.id, node) if isinstance(node, ast.Name) else None
    return source if source is not None else node


def _fix(node: ast.BinOp, mean: Mean, base: ast.expr, at: Context) -> Fix | None:
    statement = at.statement(node)
    if mean.windowed:
        return None
    simple = isinstance(base, (ast.Name, ast.Attribute, ast.Subscript, ast.Call))
    if statement is None or not simple:
        return None
    given = [at.text(a) for a in mean.arguments if isinstance(a, ast.expr)]
    given += [f"{a.arg}={at.text(a.value)}" for a in mean.arguments if isinstance(a, ast.keyword)]
    if len([a for a in mean.arguments if isinstance(a, ast.expr)]) > 1:
        return None  # the second is keepdim here, and the deviation's correction there
    text = f"{at.text(base)}.var({', '.join([*given, 'unbiased=False'])})"
    edits = at.edit.replace(statement, {node: text})
    unused = _only_here(node.left, at)
    if edits is not None and unused is not None:
        removed = at.edit.remove(unused, _siblings(unused, at))
        edits = (*edits, *removed) if removed is not None else None
    return Fix("take the variance", Applicability.UNSAFE, edits, ROUNDING) if edits else None


def _only_here(node: ast.expr, at: Context) -> ast.stmt | None:
    """The statement that binds a name which is used here and nowhere else."""
    if not isinstance(node, ast.Name):
        return None
    uses = at.uses(node.id)
    source = at.definition(node.id, node)
    statement = at.statement(source) if source is not None else None
    if len(uses) != 2 or not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    return statement if isinstance(statement.targets[0], ast.Name) else None


def _siblings(statement: ast.stmt, at: Context) -> list[ast.stmt]:
    block = at.parents.get(id(statement))
    for name in ("body", "orelse", "finalbody"):
        found: list[ast.stmt] = getattr(block, name, None) or []
        if statement in found:
            return found
    return [statement]
