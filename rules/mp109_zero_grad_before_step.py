from __future__ import annotations

import ast
import re
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

SKIPS = re.compile(r"(?i)skip|finite|\b(is)?nan|\b(is)?inf\b|overflow")
"""What conditions speak of under which a step is left out, by clearing the gradients."""


class ZeroGradBeforeStep(Rule):
    """`zero_grad()` between the scaled backward and the step that should use its gradients.

    ## What it flags
    `optimizer.zero_grad()`, or `model.zero_grad()` of the module that the optimizer was made of, on
    a path from `scaler.scale(loss).backward()` to `scaler.step(optimizer)` that has no other
    backward.

    `model.zero_grad()` where nothing says of which model the optimizer was made is `possible`.

    It stays silent for another optimizer's or model's gradients, after the step, and where the
    gradients were unscaled before and only one path clears them, or a branch that speaks of a skip,
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
    well, changes too.

    ## How to silence
    `# precision-lint: ignore[MP109] reason` or `# noqa: MP109` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision examples: typical mixed precision training; documentation of
    Optimizer.zero_grad.
    """

    code = "MP109"
    name = "zero-grad-before-step"
    severity = Severity.ERROR
    applicability = Applicability.UNSAFE
    triggers = events("zeroed-before-step", pattern=r"zero_grad|(?i:scaler)")

    def check(self, violation: Violation, at: Context) -> Iterator[Finding]:
        if violation.unscaled and _skips(violation, at):
            return  # the overflow check was recorded
        evidence = []
        if violation.backward is not None:
            evidence.append(at.note(violation.backward, "the gradients are computed here"))
        evidence += violation.traced(at.note, "they are set to zero here")
        if violation.later is not None and violation.later is not violation.node:
            evidence.append(at.note(violation.later, "the step that should use them is here"))
        confidence = violation.confidence
        if violation.sometimes_unscaled:  # a condition decides: an AssertionError, where it holds
            confidence = Confidence.LIKELY
        if violation.how == "perhaps":  # of which model the optimizer was made is not known
            confidence = Confidence.POSSIBLE
        fix = None
        edits = Remedy(violation, at).zero_after_step()
        if edits is not None:
            why = "training without a scale changes too: it stood still"
            fix = Fix("clear the gradients after the step", Applicability.UNSAFE, edits, why)
        yield at.finding(
            violation.place,
            f"gradients are set to zero before {violation.optimizer} steps with them: nothing is "
            "trained, and the scaler finds nothing to check",
            confidence,
            evidence=evidence,
            fix=fix,
        )


def _skips(violation: Violation, at: Context) -> bool:
    """Whether a branch that ends the iteration clears gradients which were computed before it."""
    inner = next((a for a in at.ancestors(violation.place) if isinstance(a, ast.If)), None)
    if inner is None or SKIPS.search(at.text(inner.test)) is None or violation.backward is None:
        return False
    ends = isinstance(inner.body[-1], (ast.Break, ast.Continue, ast.Return))
    return ends and violation.backward.lineno < inner.lineno
