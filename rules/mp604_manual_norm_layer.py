from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Evidence,
    Finding,
    Fix,
    Guard,
    HandNorm,
    Outgrown,
    Rule,
    Severity,
    Upcast,
    calls,
)


class ManualNormLayer(Rule):
    """Norm layer by hand whose mean square or variance overflows in float16.

    ## What it flags
    `x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)` and `(x - mean) / torch.sqrt(var +
    eps)`, in these and other spellings (`x * x`, `/ sqrt`, local names), where the square or the
    variance is taken in float16.

    It stays silent for an upcast before the square, for `F.layer_norm` and `F.rms_norm`, for
    bfloat16, and under CUDA autocast for `pow` and `square`, which run in float32 there (`x * x`
    and `var` do not). An epsilon that is 0 in float16 is MP306's. A variance by itself, as of the
    statistics of a style, is `possible`.

    ## Why it breaks
    float16 ends at 65504, so the square of 256 is inf. Measured: the reciprocal root of inf is 0,
    and every row with one activation above 255 becomes zeros, without an error or a nan: the
    relative error is 1. Transformers in float16 have such activations in the residual stream.
    `F.layer_norm` and `F.rms_norm` compute in float32 inside and are right.

    ## Example
    ```python
    x = hidden.half()
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    ```
    Use instead:
    ```python
    x = hidden.half()
    y = (x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
    ```
    or `F.rms_norm(x, x.shape[-1:], eps=1e-6)`.

    ## Fix safety
    Safe: the square is taken in float32 and the result returns to its dtype, so float32 results
    are the same to the bit (float64 comes down to float32).

    ## How to silence
    `# precision-lint: ignore[MP604] reason` or `# noqa: MP604` on the line.

    ## Sources
    Zhang, Sennrich: Root Mean Square Layer Normalization, 2019. PyTorch, `torch.nn.RMSNorm`;
    Automatic Mixed Precision: CUDA op-specific behavior (`pow` and `rsqrt` are listed).
    """

    code, name = "MP604", "manual-norm-layer"
    severity, applicability = Severity.ERROR, Applicability.SAFE
    triggers = calls("torch.sqrt", "torch.rsqrt", "Tensor.sqrt", "Tensor.rsqrt", "torch.var",
                     "Tensor.var", "torch.var_mean")  # fmt: skip

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        operation = at.operation(node)
        if operation is not None and operation[0] in ("var", "var_mean"):
            yield from self._variance(node, operation[1], at)
            return
        norm = HandNorm.of(node, at)
        operation = at.operation(node)
        if norm is None or operation is None:
            return
        guard = Guard.of(operation[1], node, at)
        if guard is not None and 0 < guard.epsilon <= Guard.VANISHES:
            return  # MP306
        half = at.float16(at.value(norm.spread), at.region(norm.spread))
        if half is None:
            return
        if Outgrown.bounded(norm.places[0], at, 255.0):
            return
        made = at.operation(norm.spread)
        what = "variance" if made is not None and made[0] == "var" else "mean square"
        fix, touched = _fix(norm, at)
        yield at.finding(
            norm.quotient,
            f"{what} is taken in float16, where the square of 256 is inf: the row becomes zeros",
            Outgrown.confidence(half, norm.places[0], at, pure=True),
            evidence=[*half.evidence, *touched],
            fix=fix,
        )

    def _variance(self, node: ast.Call, operand: ast.expr, at: Context) -> Iterator[Finding]:
        """A variance by itself, as of the statistics of a style."""
        half = at.float16(at.value(operand), at.region(node))
        if half is None or HandNorm.made_with(node, at):
            return
        tensor = at.value(operand)
        if not (tensor.is_tensor or at.is_tensor(operand)) or Outgrown.bounded(operand, at, 255.0):
            return
        yield at.finding(
            node,
            "variance in float16 is inf from a deviation of 256 on, and 0 below one of 1.7e-4",
            Confidence.POSSIBLE,
            evidence=half.evidence,
        )


def _fix(norm: HandNorm, at: Context) -> tuple[Fix | None, list[Evidence]]:
    suffixes = dict.fromkeys(norm.places, ".float()")
    suffixes[norm.quotient] = f".to({norm.subject}.dtype)"
    edits = at.append(suffixes)
    if edits is None:
        return None, []
    touched = []
    if at.statement(norm.spread) is not at.statement(norm.quotient):
        touched.append(at.note(norm.spread, "squared in half here"))
    names = Upcast.named(norm.places, at)
    title = f"square in float32: upcast {names}, and return to its dtype"
    return Fix(title, Applicability.SAFE, edits), touched
