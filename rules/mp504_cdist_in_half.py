from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Finding,
    Fix,
    Rule,
    Severity,
    calls,
)


class CdistInHalf(Rule):
    """Distance matrix of half tensors outside autocast: it raises, or is silently wrong.

    ## What it flags
    `torch.cdist`, `torch.pdist` and `F.pdist` whose operands are half outside of any autocast
    region: after `.half()`, `.bfloat16()`, `.to(torch.float16)`, a half model in this project.

    Where nothing says what runs in half precision, it is possible.

    It stays silent inside autocast, which runs the operation in float32 (MP214 shows those), and
    where the operands are upcast or the branch has tested their dtype.

    ## Why it breaks
    With `p=1`, or with at most 25 rows on either side, there is no half kernel and the call raises
    `"cdist" not implemented for 'Half'` (`"cdist_cuda"` on CUDA). With `p=2` and more than 25 rows
    it runs, through a half matrix product: the result is off by 3.9 % for coordinates in [0, 1]
    and inf for pixel coordinates.

    ## Example
    ```python
    distance = torch.cdist(a.half(), b.half())
    ```
    Use instead:
    ```python
    distance = torch.cdist(a.half().float(), b.half().float())
    ```

    ## Fix safety
    Safe: `.float()` on a float32 operand does nothing (a float64 one comes down to float32).
    The result stays in float32, because distances above 65504 would be inf in half.

    ## How to silence
    `# precision-lint: ignore[MP504] reason` or `# noqa: MP504` on the line.

    ## Sources
    PyTorch, `torch.cdist` (`compute_mode`: a matrix product above 25 rows).
    """

    code = "MP504"
    name = "cdist-in-half"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = calls("torch.cdist", "torch.pdist", "torch.nn.functional.pdist")

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        region = at.region(node)
        if region.on:
            return
        name = node.func.attr if isinstance(node.func, ast.Attribute) else "cdist"
        operands = node.args[: 2 if name == "cdist" else 1]
        halves = [at.half(at.value(operand), region) for operand in operands]
        found = [half for half in halves if half is not None]
        if not found:
            return
        outside = [item for item in found if item.outside]
        half = max(outside or found, key=lambda item: item.confidence.rank)
        confidence = half.confidence
        if not outside:
            if at.project.autocast is not None:
                return  # autocast would cover it: MP214 says so
            highest = Confidence.LIKELY if at.half_models is not None else Confidence.POSSIBLE
            confidence = min(confidence, highest, key=lambda c: c.rank)
        upcast = {o: ".float()" for o, h in zip(operands, halves, strict=True) if h}
        statement = at.statement(node)
        edits = at.edit.append(statement, upcast) if statement is not None else None
        fix = None
        if edits is not None:
            fix = Fix(f"upcast the operands of {name}", Applicability.SAFE, edits)
        yield at.finding(
            node,
            f"{name} of {half.dtype} tensors raises with p=1 or up to 25 rows, and is off by 3.9 % "
            "or inf beyond",
            confidence,
            evidence=half.evidence,
            fix=fix,
        )
