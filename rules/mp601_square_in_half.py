from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Rule, Severity


class SquareInHalf(Rule):
    """Square or higher power of a float16 value that nothing bounds.

    ## What it flags
    `x * x`, `x ** 2`, `x.pow(2)`, `x.square()` and third and fourth powers of float16 values: after
    a cast, of what a region has left in half, and `x * x` of a layer's output inside a region.

    It stays silent for bounded values (a layer norm's output, sigmoid, tanh, softmax, a clamp, a
    normalised vector, noise), for bfloat16, for `x ** 2` and `pow` in CUDA autocast, which runs
    them in float32, and where another rule says more: MP604 for norm layers, MP605 for variances,
    MP304 for a square that is upcast right behind, MP306 for a root with an epsilon. It is only
    `possible` for the square of a difference of two tensors, which are close as a rule, and where
    the project alone suggests half, or nothing does. So is the norm of gradients, of other norms,
    or next to another norm as a factor, unless it has `dtype=torch.float32`.

    ## Why it breaks
    float16 ends at 65504: the square of 256 is inf, the cube of 41, the fourth power of 16. Logits,
    residual streams, distances and pixel coordinates get there. A mean over squares does not help:
    one inf makes it inf, and the gradient nan.

    ## Example
    ```python
    error = prediction.half() - 300
    loss = (error * error).mean()
    ```
    Use instead:
    ```python
    error = prediction.half() - 300
    loss = (error.float() * error.float()).mean()
    ```

    ## Fix safety
    Safe where the square ends in a mean, a sum or a loss: `.float()` on float32 does nothing.
    Elsewhere unsafe: the square stays in float32, and a layer in half would not take it.

    ## How to silence
    `# precision-lint: ignore[MP601] reason` or `# noqa: MP601` on the line; or clamp the value.

    ## Sources
    PyTorch, `torch.finfo`; Automatic Mixed Precision: CUDA op-specific behavior (`pow` runs in
    float32, `mul` is not listed).
    """

    code = "MP601"
    name = "square-in-half"
    severity = Severity.WARNING
    applicability = Applicability.SAFE
    listens = ("square-overflow",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        what = "a square" if facts["exponent"] == 2 else f"a power of {facts['exponent']:g}"
        yield Finding(
            f"{what} exceeds 65504 in float16 from {facts['limit']:.3g} on",
            fix=at.fix("upcast before the power", at.upcast(facts["upcast"])),
        )
