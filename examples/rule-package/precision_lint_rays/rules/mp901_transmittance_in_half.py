from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Finding, Fix, Rule, Severity, calls


class TransmittanceInHalf(Rule):
    """A running product along rays in float16, which is 0 after a few dozen samples.

    ## What it flags
    `torch.cumprod(x, ...)` and `x.cumprod(...)` where `x` may be float16. It stays silent for
    float32, for bfloat16, whose range is that of float32, and inside CUDA autocast regions, which
    run `cumprod` in float32.

    ## Why it breaks
    float16 ends at 6e-8. Light that loses half of its strength at each sample is below that after
    24 of them: what lies behind gets the weight 0 and no gradient.

    ## Example
    ```python
    light = torch.cumprod(1 - opacity.half(), dim=-1)
    ```
    Use instead:
    ```python
    light = torch.cumprod(1 - opacity.float(), dim=-1)
    ```

    ## Fix safety
    Safe: `.float()` on float32 does nothing. The product stays in float32.

    ## How to silence
    `# precision-lint: ignore[MP901] reason` on the line.

    ## Sources
    PyTorch, `torch.finfo`; Automatic Mixed Precision: CUDA ops that autocast to float32.
    """

    code, name = "MP901", "transmittance-in-half"
    severity, applicability = Severity.WARNING, Applicability.SAFE
    triggers = calls("torch.cumprod", "Tensor.cumprod")

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        """Report a running product of values that may be float16."""
        operation = at.operation(node)
        if operation is None:
            return
        _, operand = operation
        half = at.half(at.value(node), at.region(node))
        if half is None or "float16" not in half.dtypes:
            return
        statement = at.statement(node)
        edits = at.edit.append(statement, {operand: ".float()"}) if statement else None
        yield at.finding(
            node,
            "running product in float16: factors of 0.5 are 0 after 24 samples",
            half.confidence,
            evidence=half.evidence,
            fix=Fix("multiply in float32", Applicability.SAFE, edits) if edits else None,
        )
