from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Care,
    Confidence,
    Context,
    Evidence,
    Finding,
    Fix,
    Provenance,
    Rule,
    Severity,
    calls,
)


class Bfloat16ToNumpy(Rule):
    """A bfloat16 tensor that is handed to NumPy, which has no such dtype.

    ## What it flags
    `x.numpy()`, `numpy.asarray(x)` and `numpy.array(x)` of a tensor that is bfloat16: cast to it,
    the output of a model under a bfloat16 autocast region, the result of a layer in a project
    that runs in bfloat16.

    It stays silent on float16, which NumPy has, where the tensor is upcast or made of integers
    (`argmax`, `long`), on results that autocast gives in float32 (`softmax`, losses), and on those
    of a region that is float16, whatever others of the project are. Where only the project says
    bfloat16, and not what made the tensor, the finding is `possible`.

    ## Why it breaks
    `TypeError: Got unsupported ScalarType BFloat16`. It often shows in the first evaluation, after
    the first epoch of training.

    ## Example
    ```python
    with torch.autocast("cuda", dtype=torch.bfloat16):
        scores = model(x)
    found.append(scores.cpu().numpy())
    ```
    Use instead:
    ```python
    with torch.autocast("cuda", dtype=torch.bfloat16):
        scores = model(x)
    found.append(scores.cpu().float().numpy())
    ```

    ## Fix safety
    Safe: `.float()` on a float32 tensor does nothing, and every bfloat16 number is one in float32.

    ## How to silence
    `# precision-lint: ignore[MP506] reason` or `# noqa: MP506` on the line.

    ## Sources
    PyTorch, `Tensor.numpy`; NumPy, scalar types.
    """

    code = "MP506"
    name = "bfloat16-to-numpy"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = calls("Tensor.numpy", "numpy.asarray", "numpy.array")

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        if at.qualify(node.func) is not None:
            operand = node.args[0] if node.args else None
        else:
            operand = node.func.value if isinstance(node.func, ast.Attribute) else None
        if operand is None or isinstance(operand, ast.Starred):
            return
        judged = _bfloat16(operand, node, at)
        if judged is None:
            return
        confidence, evidence = judged
        statement = at.statement(node)
        edits = at.edit.append(statement, {operand: ".float()"}) if statement is not None else None
        fix = None
        if edits is not None:
            fix = Fix("upcast to float32", Applicability.SAFE, edits)
        text = " ".join(at.text(operand).split())
        yield at.finding(
            node,
            f"{text[:50]} may be bfloat16, which NumPy does not have: this raises",
            confidence,
            evidence=evidence,
            fix=fix,
        )


def _bfloat16(
    operand: ast.expr, node: ast.Call, at: Context
) -> tuple[Confidence, tuple[Evidence, ...]] | None:
    """How sure it is that an operand is bfloat16, and why."""
    value = at.value(operand)
    if not value.maybe_tensor or value.dtype in ("", "float16"):
        return None
    half = at.half(value, at.region(node))
    if half is None or "bfloat16" not in half.dtypes:
        return None
    if not value.variable or "amp" in value.tags:
        confidence = half.confidence if half.dtypes == {"bfloat16"} else Confidence.LIKELY
        return confidence, half.evidence
    if value.wide and at.half_models is None:
        return None
    if Care.in_test(at):
        return None
    made = Provenance.computed(operand, at)
    if made is None:  # only a method of that name says that it is a tensor
        if at.qualify(node.func) or "cast" in value.tags or not at.is_tensor(operand):
            return None
        return Confidence.POSSIBLE, half.evidence
    confidence = half.confidence
    if half.dtypes != {"bfloat16"} or not at.plausible:
        confidence = Confidence.POSSIBLE
    return confidence, (*half.evidence, at.note(made, "it comes out of this layer or product"))
