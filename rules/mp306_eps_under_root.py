from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Rule, Severity


class EpsUnderRoot(Rule):
    """Epsilon under a square root that rounds to zero in float16.

    ## What it flags
    `torch.sqrt(x + eps)`, `torch.rsqrt(x + eps)`, `(x + eps) ** 0.5`, `(x + eps).pow(-0.5)` and
    the same with `x.clamp(min=eps)`, where `x` may be float16 and `eps` is at most 2.98e-8: hand
    written norms, Charbonnier losses, distances.

    Also `sqrt(1 - c ** 2)` and `sqrt(2 - 2 * c + eps)` of cosines that are half (a matrix product,
    a similarity), where nothing bounds the cosine or the difference: a cosine of half unit vectors
    comes out as 1.001 at times, and an epsilon below 1e-3 does not cover that.

    It stays silent where `x` is float32 for certain (upcast; a sum, `pow` or exp inside a CUDA
    autocast region), where it is bounded away from 0, for `torch.finfo(x.dtype)`, for bfloat16,
    and for a plain root whose result has no gradient.

    It is only `possible` for an epsilon from 2.98e-8 to 1.53e-5, where the root holds and its
    gradient may not, for a value that an argument or an attribute brings, and in a project that
    trains under autocast for what autocast makes float32.

    ## Why it breaks
    float16's smallest subnormal is `2**-24`, about 6e-8, so 1e-8 rounds to 0. `rsqrt(0)` is inf.
    `sqrt(0)` is 0, which a division turns into inf or nan, and its gradient is 1/0: the square of
    a difference that is 0 (two equal pixels) gets the gradient inf * 0, which is nan. autocast
    does not help: `sqrt` is not on its lists, and for `rsqrt`, which is, the sum is made in half
    before. An epsilon of 1e-6 survives; the gradient of `rsqrt` at 0, 0.5 * eps ** -1.5, is 5e8.

    ## Example
    ```python
    diff = (output - target).half()
    error = torch.sqrt(diff * diff + 1e-8).mean()
    ```
    Use instead:
    ```python
    diff = (output - target).half()
    error = torch.sqrt(diff.float() * diff.float() + 1e-8).mean()
    ```

    ## Fix safety
    Safe: only `.float()` is inserted, in front of the squares where the analysis finds them, so float32
    results are the same to the bit (float64 comes down to float32). A root that goes on as an
    activation returns to its dtype; where it may exceed half's range (`rsqrt` of less than
    2.3e-10) it cannot, and the fix is unsafe.

    ## How to silence
    `# precision-lint: ignore[MP306] reason` or `# noqa: MP306` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision: CUDA op-specific behavior (`rsqrt` and `pow` run in
    float32, `sqrt`, `var`, `add` and `mul` are not listed).
    """

    code = "MP306"
    name = "eps-under-root"
    severity = Severity.WARNING
    applicability = Applicability.SAFE
    listens = ("weak-root",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        if facts["fate"] == "negative":
            what = "one minus the square of a cosine can be negative in half, and its root nan"
        else:
            root = (
                "its inverse root is inf" if facts["inverse"] else "the gradient of its root is inf"
            )
            what = f"epsilon {facts['epsilon']:g} under a root rounds to 0 in float16, so {root}"
        yield Finding(
            what, fix=at.fix("upcast the value under the root", at.upcast(at.at_origin(event)))
        )
