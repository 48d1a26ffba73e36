from __future__ import annotations

from collections.abc import Iterator

from precision_lint import remedies
from precision_lint.api import Applicability, Context, Cost, Event, Finding, Link, Rule, Severity


class ZeroGradBeforeStep(Rule):
    """`zero_grad()` between the scaled backward and the step that should use its gradients.

    ## What it flags
    `optimizer.zero_grad()`, or `model.zero_grad()` of the module that the optimizer was made of, on
    a path from `scaler.scale(loss).backward()` to `scaler.step(optimizer)` that has no other
    backward.

    `model.zero_grad()` where nothing says of which model the optimizer was made is `possible`.

    It stays silent for another optimizer's or model's gradients, after the step, and where the
    gradients were unscaled before and only one path clears them, or a branch that skips the step,
    of inf or nan and ends the iteration (a step that is skipped).

    ## Why it breaks
    `zero_grad` sets gradients to None, so there is nothing to check: `AssertionError: No inf checks
    were recorded for this optimizer`. With `set_to_none=False` nothing raises: the optimizer steps
    with zeros, and nothing is trained.

    ## Example
    ```python
    scaler.scale(loss).backward()
    optimizer.zero_grad()
    scaler.step(optimizer)
    scaler.update()
    ```
    Use instead:
    ```python
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    ```

    ## Fix safety
    Unsafe: the call is moved behind the step, so training without a scale, which stood still as
    well, changes too. It goes behind the step of each branch; where one way comes to none, there is
    no fix.

    ## How to silence
    `# precision-lint: ignore[MP109] reason` or `# noqa: MP109` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision examples: typical mixed precision training; documentation of
    Optimizer.zero_grad.
    """

    code = "MP109"
    name = "zero-grad-before-step"
    severity = Severity.ERROR
    cost = Cost.RAISES
    applicability = Applicability.UNSAFE
    listens = ("zeroed-gradients",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        related = (
            *remedies.backward(event),
            Link("the step that should use them is here", event.facts["step"]),
        )
        yield Finding(
            "gradients are set to zero before the optimizer steps with them: nothing is trained, and the "
            "scaler finds nothing to check",
            fix=at.fix(
                "clear the gradients after the step",
                remedies.move_zero(event, at),
                "training without a scale changes too: it stood still",
            ),
            related=related,
        )
