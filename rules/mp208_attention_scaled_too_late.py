from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Edit,
    Evidence,
    Finding,
    Fix,
    LateScale,
    Leaving,
    Lowered,
    Rule,
    Severity,
    calls,
    operators,
)


class AttentionScaledTooLate(Rule):
    """Attention scores scaled after the product in float16, when they may be inf already.

    ## What it flags
    A product of queries and keys (`@`, `matmul`, `bmm`, `einsum`) that runs in float16, is then
    divided by `sqrt(d)` or multiplied by a scale, at once or in a later statement, and goes through
    a softmax.

    It stays silent where an operand was scaled or normalised before (`q * scale`, a query norm),
    for bfloat16, which has the range of float32, for `scaled_dot_product_attention`, which scales
    in float32, and for factors that may be above 1 (`logit_scale`, a temperature). A function that
    no float16 region is known to reach is only `possible`.

    ## Why it breaks
    The sum of `d` products is rounded to float16 before it is scaled. With `d = 128` and entries
    around 60 it passes 65504 and is inf; inf divided by 11.3 is inf, the softmax of a row with inf
    is nan, and so are its gradients: 2,944 of them in the measured case, where scaling the queries
    first left none.

    ## Example
    ```python
    scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(width)
    weights = scores.softmax(dim=-1)
    ```
    Use instead:
    ```python
    scores = torch.matmul(query / math.sqrt(width), key.transpose(-1, -2))
    weights = scores.softmax(dim=-1)
    ```
    `F.scaled_dot_product_attention(query, key, value)` does that, and is faster.

    ## Fix safety
    Unsafe: float32 results change in the last digit, unless the scale is a power of two. Scores
    beyond 65504 times `sqrt(d)` overflow even so. No fix where something was added between the
    product and its scale, or where the scale is in another statement.

    ## How to silence
    `# precision-lint: ignore[MP208] reason` or `# noqa: MP208` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision: CUDA ops that autocast to float16. PyTorch,
    `torch.nn.functional.scaled_dot_product_attention`.
    """

    code = "MP208"
    name = "attention-scaled-too-late"
    severity = Severity.ERROR
    applicability = Applicability.UNSAFE
    triggers = calls(
        "torch.matmul",
        "torch.bmm",
        "torch.mm",
        "torch.einsum",
        "einops.einsum",
        "Tensor.matmul",
        "Tensor.bmm",
        "Tensor.mm",
    ) | operators(ast.MatMult, pattern=r"[\w\])][ \t]*@[ \t]*(?:[\w(\\#]|$)|^[ \t]*@[ \t]")

    def check(self, node: ast.Call | ast.BinOp, at: Context) -> Iterator[Finding]:
        state = _state(node, at)
        if state is None:
            return
        found = LateScale.of(node, at)
        if found is None or Leaving.missed(node, at):
            return
        if all(Lowered.upcast(operand, at) for operand in found.product.operands):
            return  # MP202: they were meant to be float32
        confidence, evidence = state
        if found.scaled is not at.parents.get(id(node)):
            evidence = (*evidence, at.note(found.scaled, "scaled only here"))
        edits = _edits(found, at)
        fix = None
        if edits is not None:
            why = "float32 results change in the last digit"
            fix = Fix("scale the queries before the product", Applicability.UNSAFE, edits, why)
        yield at.finding(
            node,
            f"scores are scaled behind {found.product.name}: in float16 a sum above 65504 is inf "
            "before it is scaled, and the softmax nan",
            confidence,
            evidence=evidence,
            fix=fix,
        )


def _state(
    node: ast.Call | ast.BinOp, at: Context
) -> tuple[Confidence, tuple[Evidence, ...]] | None:
    """How sure it is that the product runs in float16, and why; None: it does not."""
    region = at.region(node)
    if region.state == "on":
        dtypes = frozenset({region.dtype}) if region.dtype != "low" else at.project.dtypes
        if not region.on or (dtypes and "float16" not in dtypes):
            return None
        return Confidence.LIKELY, at.why(region)
    product = Lowered.of(node, at)
    halves = [at.half(at.value(o), region) for o in product.operands] if product else []
    known = [half for half in halves if half is not None and "float16" in half.dtypes]
    if not known or len(known) < len(halves):
        return None
    proven = all(at.value(o).dtype == "float16" for o in (product.operands if product else ()))
    led = region.state == "inherited" and region.known and region.dtype == "float16"
    best = max(known, key=lambda half: half.confidence.rank)
    confidence = Confidence.LIKELY if proven or led else Confidence.POSSIBLE
    return confidence, at.why(region) if led else best.evidence


def _edits(found: LateScale, at: Context) -> tuple[Edit, ...] | None:
    """The product with its first operand scaled, in the place of the scaled product."""
    product, scaled = found.product, found.scaled
    if not found.direct or not isinstance(scaled, ast.BinOp):
        return None
    holder = scaled.left if found.factor is scaled.right else scaled.right
    if holder is not product.node:
        return None
    first = product.operands[0]
    sign = "/" if isinstance(scaled.op, ast.Div) else "*"
    text, factor = at.text(first), at.text(found.factor)
    if isinstance(found.factor, ast.BinOp) and not isinstance(found.factor.op, ast.Pow):
        factor = f"({factor})"
    if isinstance(first, (ast.BinOp, ast.IfExp, ast.Lambda)):
        text = f"({text})"
    operand = f"{text} {sign} {factor}"
    tight = isinstance(product.node, ast.BinOp) or (
        isinstance(product.node.func, ast.Attribute) and product.node.func.value is first
    )
    if tight:
        operand = f"({operand})"
    start, end = at.edit.offset(product.node), at.edit.end(product.node)
    here, behind = at.edit.offset(first), at.edit.end(first)
    source = at.source.text
    return at.edit.put(scaled, source[start:here] + operand + source[behind:end])
