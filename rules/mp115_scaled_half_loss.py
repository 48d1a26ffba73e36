from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Link, Rule, Severity


class ScaledHalfLoss(Rule):
    """Loss in float16 that is multiplied by the loss scale.

    ## What it flags
    `scaler.scale(loss)` of a loss that is float16 for certain: computed from half tensors in a
    float16 region, or cast to half. A loss with dimensions (`reduction="none"`) overflows itself:
    it is reported as well where it is computed from a model's output in a float16 region. A 0-d
    loss is promoted to float32 by the scale; it is reported, as a warning, because its gradient is
    not.

    A scaled loss that is read as if it was the loss: `item()`, `float()`, added to a total,
    printed. What is returned, or only asked for inf and nan, is `possible`. Silent where the
    function divides by the scale.

    It stays silent for losses that autocast computes in float32 (`cross_entropy`, `mse_loss` and
    the others of its float32 list), for bfloat16, and where the dtype is not known, as for a
    criterion that the code is handed. Of a loss that a function is given it is `possible`.

    ## Why it breaks
    65536 is inf in float16. A loss with dimensions of 2.0 is 131072 after scaling: inf, wherever it
    is logged, summed or checked, and a loop that passes over bad batches passes over all of them.
    The gradient that enters a 0-d half loss is the scale itself: steps are skipped until the scale
    is 32768, and each time that it grows beyond.

    ## Example
    ```python
    loss = (student - teacher).abs().mean()
    scaler.scale(loss).backward()
    ```
    Use instead:
    ```python
    loss = (student - teacher).abs().float().mean()
    scaler.scale(loss).backward()
    ```

    ## Fix safety
    Safe: a float32 loss stays what it is. A loss with dimensions is cast where it is scaled; a mean
    is taken in float32. For other 0-d losses a cast does not help, because the gradient goes back
    through it: there is no automatic fix.

    ## How to silence
    `# precision-lint: ignore[MP115] reason` or `# noqa: MP115` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision package: autocast op reference; the numbers are measured.
    """

    code = "MP115"
    name = "scaled-half-loss"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    listens = ("half-scaled-loss", "scaled-loss-read")

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        if event.kind == "scaled-loss-read":
            yield Finding(
                "this loss is already scaled: the value that is read is 65536 times too large",
                related=() if facts["scaled"] is None else (Link("scaled here", facts["scaled"]),),
                severity=Severity.WARNING,
            )
            return
        what = (
            "its gradient, 65536, is inf in float16"
            if facts["whole"]
            else "multiplied by 65536, it is inf (or its gradient is, if it is 0-d)"
        )
        yield Finding(
            f"the scaled loss is float16: {what}",
            fix=at.fix("upcast the loss", at.upcast(facts["upcast"])),
            severity=Severity.WARNING if facts["whole"] else Severity.ERROR,
        )
