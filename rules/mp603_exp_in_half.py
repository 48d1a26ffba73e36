from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Rule, Severity


class ExpInHalf(Rule):
    """Exponential of a float16 value from which no maximum was subtracted.

    ## What it flags
    `torch.exp(x)` and `torch.expm1(x)` of float16 values: after a cast, of what a region has left
    in half, in CPU autocast; and `torch.exp2`, which CUDA autocast leaves in half as well.

    It stays silent for `x - x.max()` and other arguments that are below 11.09, for bounded ones
    (sigmoid, a layer norm, a clamp), for bfloat16, inside CUDA autocast, which runs `exp` in
    float32, and where another rule says more: MP303 for `log(exp(x).sum())`, MP304 for an
    exponential that is upcast right behind. A learned scale is taken to become four times as large
    as it starts, or as one. Logarithms of scales (`log_var`, `logit_scale`) are
    `possible`, and so is what the project alone suggests to be half, or nothing does.

    ## Why it breaks
    The logarithm of 65504 is 11.09: from there on `exp` is inf in float16, where float32 takes
    88.7 (16 for `exp2`). A softmax by hand divides inf by inf, which is nan.

    ## Example
    ```python
    scores = logits.half()
    weights = torch.exp(scores)
    ```
    Use instead:
    ```python
    scores = logits.half()
    weights = torch.exp(scores.float())
    ```
    or `torch.exp(scores - scores.amax(-1, keepdim=True))`, where weights are normalised afterwards.

    ## Fix safety
    Safe where the exponential ends in a loss or a metric: `.float()` on float32 does nothing.
    Elsewhere unsafe: it stays in float32, and a layer in half would not take it. The gradient is the
    exponential itself. It is finite in half only while loss scale times gradient stays below 65504.

    ## How to silence
    `# precision-lint: ignore[MP603] reason` or `# noqa: MP603` on the line; or clamp the argument.

    ## Sources
    PyTorch, Automatic Mixed Precision: CUDA ops that autocast to float32 (`exp`, `expm1`; `exp2`
    is not listed); `torch.finfo`.
    """

    code = "MP603"
    name = "exp-in-half"
    severity = Severity.WARNING
    applicability = Applicability.SAFE
    listens = ("exponential-overflow",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        yield Finding(
            f"{facts['operation']} exceeds 65504 in float16 from {facts['limit']:g} on",
            fix=at.fix("upcast the exponent", at.upcast(facts["upcast"])),
        )
