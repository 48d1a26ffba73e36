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


class OptimizerStepBypassesScaler(Rule):
    """Optimizer that steps by itself with gradients of a scaled loss.

    ## What it flags
    `optimizer.step()` after `scaler.scale(loss).backward()`, instead of `scaler.step(optimizer)`;
    also beside it: before it (the update is made with scaled gradients, then again) or behind it
    (the update is made twice). Helpers and wrappers are followed. A step behind
    `scaler.unscale_(optimizer)` has the right gradients, but nothing skips it when they are
    infinite: that is reported as `likely`, unless the code looks at the gradients itself.

    It stays silent on paths whose backward is not scaled (`if use_amp:`), for other optimizers with
    a backward of their own, for a scaler made with `enabled=False`, and where a framework (apex,
    accelerate, Fabric, Lightning) runs the backward.

    ## Why it breaks
    SGD moves 65536 times too far: the parameters are nan after a few steps. AdamW divides by the
    gradient's own size and trains on as if nothing were wrong, until a gradient overflows: that
    step is not skipped, and every parameter is nan. If the code calls `scaler.update()`, it raises
    `AssertionError: No inf checks were recorded prior to update`.

    ## Example
    ```python
    scaler.scale(loss).backward()
    optimizer.step()
    scaler.update()
    ```
    Use instead:
    ```python
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    ```

    ## Fix safety
    Safe where the call is replaced: a disabled scaler's `step` is the optimizer's. Where it stands
    beside `scaler.step` it is deleted, which is unsafe: without a scale it trains too, and the code
    stepped twice for each batch.

    ## How to silence
    `# precision-lint: ignore[MP104] reason` or `# noqa: MP104` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision examples: typical mixed precision training; the numbers are
    measured.
    """

    code = "MP104"
    name = "optimizer-step-bypasses-scaler"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = events("scaler-bypassed", pattern=r"(?i:scaler)|\.scale\([^\n]*\)\.backward\(")

    def check(self, violation: Violation, at: Context) -> Iterator[Finding]:
        remedy = Remedy(violation, at)
        evidence = []
        if violation.backward is not None:
            evidence.append(at.note(violation.backward, "the loss is scaled here"))
        evidence += violation.traced(at.note, "it steps here")
        name = violation.optimizer
        twice = violation.how == "again" or any(
            step.args and at.text(step.args[0]) == name for step in violation.steps
        )
        confidence = violation.confidence
        fix = None
        if violation.how == "again":
            message = f"{name} steps again after the scaler stepped it: each batch counts twice"
            if confidence is Confidence.LIKELY and not violation.guessed:
                confidence = Confidence.CERTAIN
        elif violation.how == "unchecked":
            message = f"{name} steps by itself: a step with inf or nan gradients is not skipped"
            confidence = min(confidence, Confidence.LIKELY, key=lambda c: c.rank)
        else:
            message = (
                f"{name} steps with gradients that are still multiplied by the loss scale "
                "(65536 at first)"
            )
        if twice:
            evidence += [at.note(step, "the scaler steps it here") for step in violation.steps]
            edits = remedy.drop()
            if edits is not None:
                why = "the code stepped twice for each batch; without a scale it does too"
                fix = Fix("leave the step to the scaler", Applicability.UNSAFE, edits, why)
        else:
            edits = remedy.step_through_scaler()
            if edits is not None:
                fix = Fix(f"step with {violation.scaler}", Applicability.SAFE, edits)
        yield at.finding(violation.node, message, confidence, evidence=evidence, fix=fix)
