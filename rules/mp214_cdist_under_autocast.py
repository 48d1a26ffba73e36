from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Finding,
    Fix,
    Provenance,
    Rule,
    Severity,
    calls,
)

DATA = re.compile(
    r"(?i)coord|(?<!com)pos(?:e|es|ition|itions)?(?![a-z])|xyz|atom|point|cent(?:er|re)"
)
"""Names of positions, which are data, or get them added in float32."""


class CdistUnderAutocast(Rule):
    """Distance matrix that runs only because autocast upcasts it, and raises outside the region.

    ## What it flags
    `torch.cdist`, `torch.pdist` and `F.pdist` in an autocast region, or in a function that runs
    under one, on operands that may be half. Shown as info: it does not fail a run.

    It stays silent where both operands are float32 for certain (`.float()`, or a branch on the
    dtype), and where they are proven half outside autocast: that is MP504. Where only the project
    says autocast and the operands are positions that no layer in sight gave, it is `possible`, and
    so it is where nothing in the project is made half, so that no half tensor is outside.

    ## Why it breaks
    Autocast runs `cdist` in float32, and the operation has no half kernel. So the same line that
    trains well raises `"cdist_cuda" not implemented for 'Half'` as soon as it is reached with half
    tensors outside of the region: an evaluation loop without autocast on a `.half()` copy of the
    model, or a matcher called after the region has ended. With `p=2` and more than 25 rows it goes
    through a matrix product in half instead and is 3.9 % off on [0, 1].

    ## Example
    ```python
    cost = torch.cdist(pred_boxes, target_boxes, p=1)
    ```
    Use instead:
    ```python
    cost = torch.cdist(pred_boxes.float(), target_boxes.float(), p=1)
    ```
    Leave the result in float32: `.to(pred_boxes.dtype)` turns distances above 65504 into inf.

    ## Fix safety
    Safe: `.float()` on a float32 operand does nothing (a float64 one comes down to float32),
    and autocast runs the operation in float32 anyway.

    ## How to silence
    `# precision-lint: ignore[MP214] reason` or `# noqa: MP214` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision: CUDA and CPU op reference.
    """

    code = "MP214"
    name = "cdist-under-autocast"
    severity = Severity.INFO
    applicability = Applicability.SAFE
    triggers = calls("torch.cdist", "torch.pdist", "torch.nn.functional.pdist")

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        region = at.region(node)
        if region.state == "off":
            return
        operands = node.args[: 2 if node.args and _name(node) == "cdist" else 1]
        halves = [at.half(at.value(operand), region) for operand in operands]
        found = [half for half in halves if half is not None]
        if not found:
            return
        if region.state == "inherited":
            if at.project.autocast is None:
                return
            if any(half.outside for half in found):
                return  # half outside of any region: MP504
        weakest = max(found, key=lambda half: half.confidence.rank)
        if not region.on and at.mentions(r"\.dtype\b|is_autocast_enabled"):
            weakest = replace(weakest, confidence=Confidence.POSSIBLE)  # it looks before it calls
        if not region.known and all(_is_data(operand, at) for operand in operands):
            weakest = replace(weakest, confidence=Confidence.POSSIBLE)
        if at.project.half is None or not at.believes(at.project.half):
            weakest = replace(weakest, confidence=Confidence.POSSIBLE)  # nothing half is outside
        upcast = {o: ".float()" for o, half in zip(operands, halves, strict=True) if half}
        statement = at.statement(node)
        edits = at.edit.append(statement, upcast) if statement is not None else None
        fix = None
        if edits is not None:
            fix = Fix(f"upcast the operands of {_name(node)}", Applicability.SAFE, edits)
        yield at.finding(
            node,
            f"autocast runs {_name(node)} in float32, the same call on half tensors outside of the "
            f"region {'raises' if _is_manhattan(node) else 'raises or loses most digits'}",
            weakest.confidence,
            evidence=weakest.evidence,
            fix=fix,
        )


def _is_data(operand: ast.expr, at: Context) -> bool:
    """Whether an operand is positions by its name, and no layer of this function gave it."""
    if at.value(operand).dtype in ("float16", "bfloat16", "low"):
        return False
    return DATA.search(at.text(operand)) is not None and Provenance.computed(operand, at) is None


def _is_manhattan(node: ast.Call) -> bool:
    """``p=1``, for which half has no kernel at any size."""
    given = [k.value for k in node.keywords if k.arg == "p"] or node.args[2:3]
    return any(isinstance(p, ast.Constant) and p.value == 1 for p in given)


def _name(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else "cdist"
