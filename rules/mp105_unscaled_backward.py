from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Finding,
    Fix,
    Remedy,
    Rule,
    Severity,
    Violation,
    events,
)


class UnscaledBackward(Rule):
    """Backward of a loss that was not scaled, before a step that divides by the scale.

    ## What it flags
    `loss.backward()` on a path to `scaler.step(optimizer)` or `scaler.unscale_(optimizer)`: alone,
    or as one of several losses of which another is scaled (a gradient penalty, an auxiliary loss).

    It stays silent where the optimizer of that loss steps by itself, where the gradients are set to
    zero before the step, where a framework runs the backward, for a scaler that is off, and where
    the loss may have been scaled somewhere else. Where another path scales the loss and both share
    the step (`if use_amp:` around the backward alone), the finding is `possible`.

    ## Why it breaks
    `scaler.step` divides gradients by the scale. Nothing was multiplied, so they become 65536 times
    too small and training stands still. If no loss was ever scaled, the scaler has no scale yet and
    raises an `AssertionError` at the first step.

    ## Example
    ```python
    loss.backward()
    scaler.step(optimizer)
    scaler.update()
    ```
    Use instead:
    ```python
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    ```

    ## Fix safety
    Safe: a disabled scaler's `scale` returns the loss itself.

    ## How to silence
    `# precision-lint: ignore[MP105] reason` or `# noqa: MP105` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision examples: working with multiple models, losses, and
    optimizers; gradient penalty.
    """

    code = "MP105"
    name = "unscaled-backward"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = events("backward-unscaled", pattern=r"(?i:scaler)|\.unscale_\(")

    def check(self, violation: Violation, at: Context) -> Iterator[Finding]:
        remedy = Remedy(violation, at)
        mixed = violation.how == "mixed"
        evidence = list(violation.traced(at.note, "the backward runs here"))
        if violation.later is not None and violation.later is not violation.node:
            evidence.append(at.note(violation.later, "its gradients are divided by the scale here"))
        confidence = violation.confidence
        if confidence is Confidence.CERTAIN and (mixed or not remedy.confirmed):
            confidence = Confidence.LIKELY  # another optimizer's loss, or a scaler that is off
        fix = None
        edits = remedy.scale_loss()
        if edits is not None:
            fix = Fix(f"scale the loss with {violation.scaler}", Applicability.SAFE, edits)
        beside = ", while another loss of the same step is" if mixed else ""
        yield at.finding(
            violation.node,
            f"the loss is not scaled{beside}: {violation.optimizer} divides these gradients by the "
            "loss scale (65536 at first)",
            confidence,
            evidence=evidence,
            fix=fix,
        )
