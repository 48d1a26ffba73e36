from __future__ import annotations

from collections.abc import Iterator

from precision_lint import remedies
from precision_lint.api import Applicability, Context, Event, Finding, Rule, Severity


class ScalerUpdateProtocol(Rule):
    """`scaler.update()` that is missing, or runs before all steps of its backward are done.

    ## What it flags
    A second `scaler.step(optimizer)` without an `update` between; an `update` between two steps
    that share one backward; an `update` in every micro-step of gradient accumulation while the step
    is in a branch.

    `possible` only: a learning rate scheduler that steps in the same iteration as the scaler, or in
    a hook after it, whether or not the scaler skipped the step (torch warns that the scheduler came
    before the optimizer).

    It stays silent for one `update` for each phase of a GAN (each has its own backward), for an
    `update` after a skipped step whose gradients were unscaled, for an `update` with a new scale,
    and where a function nobody has seen may step or update. Where the same code updates under
    another condition than it steps under, the finding is `possible`.

    ## Why it breaks
    Without an update the second iteration raises `RuntimeError: step() has already been called
    since the last update()`. An update that nothing was checked for raises `AssertionError: No inf
    checks were recorded prior to update`. An update between two steps changes the scale: gradients
    of the second optimizer are divided by another scale than they were multiplied with, so its
    update is half or twice as large as it should be, and nothing raises.

    ## Example
    ```python
    scaler.scale(loss_g + loss_d).backward()
    scaler.step(optimizer_g)
    scaler.update()
    scaler.step(optimizer_d)
    scaler.update()
    ```
    Use instead:
    ```python
    scaler.scale(loss_g + loss_d).backward()
    scaler.step(optimizer_g)
    scaler.step(optimizer_d)
    scaler.update()
    ```

    ## Fix safety
    Safe: a disabled scaler's `update` does nothing. It is added behind the last step of the block, in
    branches behind the last of each, moved there, or deleted where one follows already.

    ## How to silence
    `# precision-lint: ignore[MP106] reason` or `# noqa: MP106` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision examples: gradient accumulation; working with multiple
    models, losses, and optimizers.
    """

    code = "MP106"
    name = "scaler-update-protocol"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    listens = ("update-order",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        message = {
            "second-step": "the optimizer is stepped again without an update since its last step: this "
            "raises RuntimeError",
            "between": "update() between two steps of one backward changes the scale: the second step "
            "divides its gradients by the new scale, but they were multiplied by the old one",
            "without-step": "the scale is updated although no optimizer stepped: gradients that are "
            "accumulated across the update have different scales",
            "again": "the scale is updated a second time after one step: this raises",
        }[event.facts["how"]]
        how = event.facts["how"]
        title = {"second-step": "update the scaler after its steps", "again": "update once"}
        if how == "again":
            edits = remedies.removed(event, at, "update")
        else:
            make = remedies.update if how == "second-step" else remedies.move_update
            edits = make(event, at)
        fix = at.fix(title.get(how, "update once, after the last step"), edits)
        yield Finding(message, fix=fix, related=remedies.backward(event))
