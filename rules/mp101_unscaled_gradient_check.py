from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Care,
    Confidence,
    Context,
    Finding,
    Fix,
    Rule,
    Severity,
    Violation,
    events,
)


class UnscaledGradientCheck(Rule):
    """Gradient that is inspected while it is still multiplied by the loss scale.

    ## What it flags
    Reads of gradients (`isnan`, `isfinite`, `norm`, `max`, histograms, comparisons, printing), or
    calls of helpers that read them, between `scaler.scale(loss).backward()` and
    `scaler.unscale_(optimizer)`. The first read after each backward is reported.

    It stays silent for `grad is None`, for assignments, for linear operations such as `all_reduce`,
    on paths whose backward is not scaled, for a scaler made with `enabled=False`, and for wrappers
    that unscale by themselves (accelerate, Fabric, Lightning). In tests, which train nothing to
    use, it is only `possible`.

    ## Why it breaks
    The scale starts at 65536. A gradient of 1.0 is 65536 then, which float16 cannot hold: the
    check reports an explosion that is not there and the step is skipped, or a norm that is logged
    is 65536 times too large, while a real explosion hides among the false ones.

    ## Example
    ```python
    scaler.scale(loss).backward()
    norm = max(p.grad.norm() for p in model.parameters())
    scaler.unscale_(optimizer)
    ```
    Use instead:
    ```python
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = max(p.grad.norm() for p in model.parameters())
    ```

    ## Fix safety
    Safe: without a scale (a disabled scaler) `unscale_` does nothing. It is inserted before the
    read and a later duplicate is removed, because a second `unscale_` raises (MP103). With
    gradient accumulation `unscale_` may only run in the iteration that steps; a read outside of
    that branch has to be moved by hand.

    ## How to silence
    `# precision-lint: ignore[MP101] reason` or `# noqa: MP101` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision examples: working with unscaled gradients, gradient
    accumulation.
    """

    code = "MP101"
    name = "unscaled-gradient-check"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = events(
        "scaled-gradient-read", pattern=r"(?i:scaler)|\.unscale_\(|\.scale\([^\n]*\)\.backward\("
    )

    def check(self, violation: Violation, at: Context) -> Iterator[Finding]:
        evidence = []
        backward = violation.backward or violation.caller
        if backward is not None:
            evidence.append(at.note(backward, "the loss is scaled here"))
        evidence += violation.traced(at.note, "they are read here")
        repaired = at.unscale_first(violation)
        fix = None
        if repaired is not None:
            edits, removed = repaired
            evidence += [at.note(gone, "it is unscaled only here") for gone in removed]
            fix = Fix("unscale the gradients first", Applicability.SAFE, edits)
        if violation.sometimes_unscaled or Care.in_test(at):
            confidence = Confidence.POSSIBLE
        elif backward is not None and not violation.guessed:
            confidence = Confidence.CERTAIN
        else:
            confidence = Confidence.LIKELY
        if backward is None:
            evidence += [
                at.note(s, "the scaler steps here, never unscaled") for s in violation.steps
            ]
        via = f" in {violation.helper.name}()" if violation.helper is not None else ""
        yield at.finding(
            violation.node,
            f"gradients are read{via} while still multiplied by the loss scale (65536 at first)",
            confidence,
            evidence=evidence,
            fix=fix,
        )
