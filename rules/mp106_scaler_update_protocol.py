from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Edit,
    Finding,
    Fix,
    Remedy,
    Rule,
    Severity,
    Violation,
    events,
)

Edits = tuple[Edit, ...]


class ScalerUpdateProtocol(Rule):
    """`scaler.update()` that is missing, or runs before all steps of its backward are done.

    ## What it flags
    A second `scaler.step(optimizer)` without an `update` between; an `update` between two steps
    that share one backward; an `update` in every micro-step of gradient accumulation while the step
    is in a branch.

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
    Safe: a disabled scaler's `update` does nothing. It is added behind the last step of the block,
    moved there, or deleted where one follows already.

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
    triggers = events("update-misplaced", pattern=r"(?i:scaler)|\.scale\([^\n]*\)\.backward\(")

    def check(self, violation: Violation, at: Context) -> Iterator[Finding]:
        remedy = Remedy(violation, at)
        evidence = []
        if violation.backward is not None and violation.how != "again":
            evidence.append(at.note(violation.backward, "the loss is scaled here"))
        evidence += violation.traced(at.note, "it happens here")
        confidence = violation.confidence
        edits: Edits | None
        if violation.how == "never":
            edits, title = remedy.add_update(), "update the scaler after its steps"
            message = (
                f"{violation.scaler} is updated nowhere in this module: the next step of "
                f"{violation.optimizer} raises RuntimeError"
            )
        elif violation.how in ("missing", "skipped"):
            edits = remedy.add_update() if violation.how == "missing" else None
            evidence += [at.note(u, "it is updated only here") for u in remedy.calls("update")]
            title = "update the scaler after its steps"
            message = (
                f"{violation.optimizer} is stepped again without an update since its last step: "
                "this raises RuntimeError"
            )
            if violation.how == "skipped":
                confidence = Confidence.POSSIBLE
        elif violation.how == "early":
            edits, title = remedy.move_update(), "update once, after the last step"
            later = violation.later
            if isinstance(later, ast.Call):
                evidence.append(at.note(later, "a step with the same backward follows here"))
            message = (
                "the scale is updated between two steps that share one backward: "
                f"{violation.optimizer} divides its gradients by another scale than they carry"
            )
        elif violation.how == "again":
            edits, title = remedy.drop(), "update once"
            confidence = Confidence.CERTAIN
            message = "the scale is updated twice in a row: this raises AssertionError"
        else:
            edits, title = remedy.move_update(), "update only where the scaler steps"
            evidence += [at.note(step, "the scaler steps only here") for step in remedy.steps]
            message = (
                "the scale is updated although nothing was unscaled or stepped: this raises "
                "AssertionError (no inf checks were recorded prior to update)"
            )
        fix = Fix(title, Applicability.SAFE, edits) if edits is not None else None
        yield at.finding(violation.node, message, confidence, evidence=evidence, fix=fix)
