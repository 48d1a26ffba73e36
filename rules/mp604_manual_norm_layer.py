from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Fix, Link, Rule, Severity


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

    code = "MP604"
    name = "manual-norm-layer"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    listens = ("norm-by-hand",)
    supersedes = ("MP601", "MP306")

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        related: tuple[Link, ...] = ()
        if facts["squares"] is not None:
            related = (Link("these squares are inf from 256 on", facts["squares"]),)
        yield Finding(
            "a norm by hand in float16 gives 0 where values exceed 256, because their squares are inf",
            fix=_fix(event, at),
            related=related,
        )


def _fix(event: Event, at: Context) -> Fix | None:
    """Squares and quotient in float32."""
    places = [*event.facts["upcast"]]
    if not places:
        return None
    return at.fix("compute the norm in float32", at.upcast(places))
