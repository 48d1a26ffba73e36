from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Rule, Severity


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
    listens = ("float16:cumprod",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        """Report a running product of values that may be float16."""
        yield Finding(
            "running product in float16: factors of 0.5 are 0 after 24 samples",
            fix=at.fix("multiply in float32", at.upcast(event.facts["upcast"])),
        )
