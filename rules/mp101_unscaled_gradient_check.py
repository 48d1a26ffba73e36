from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeGuard

from precision_lint.api import (
    Applicability,
    Care,
    Confidence,
    Context,
    Finding,
    Fix,
    Framework,
    Rule,
    Severity,
    Violation,
    calls,
    events,
)


class UnscaledGradientCheck(Rule):
    """Gradient that is inspected while it is still multiplied by the loss scale.

    ## What it flags
    Reads of gradients (`isnan`, `isfinite`, `norm`, `max`, histograms, comparisons, printing), or
    calls of helpers that read them, between `scaler.scale(loss).backward()` and
    `scaler.unscale_(optimizer)`. The first read after each backward is reported.

    What is added to gradients that no loss scale multiplies: noise, a weight decay or an L1 term by
    hand (`p.grad.add_(p.data, alpha=decay)`). `scaler.step` divides it by the scale.

    `torch.autograd.grad` of a scaled loss, as for a gradient penalty, in a function that never
    divides by the scale. Reads behind the backward of a framework that scales inside
    (`accelerator.backward(loss)`, Lightning's `on_after_backward`, apex's `amp.scale_loss`):
    `likely` where the file names float16 for it, else `possible`.

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
        "scaled-gradient-read",
        pattern=rf"(?i:scaler)|\.unscale_\(|\.scale\([^\n]*\)\.backward\(|{Framework.triggers}",
    ) | calls("torch.autograd.grad")

    def check(self, violation: Violation | ast.Call, at: Context) -> Iterator[Finding]:
        if isinstance(violation, ast.Call):
            yield from _penalised(violation, at)
            return
        wrapped = Framework.scaled(violation)
        if wrapped and Framework.spared(at):
            return
        evidence = []
        backward = violation.backward or violation.caller
        if backward is not None:
            evidence.append(at.note(backward, "the loss is scaled here"))
        evidence += violation.traced(at.note, "they are read here")
        repaired = None if wrapped else at.unscale_first(violation)
        fix = None
        if repaired is not None:
            edits, removed = repaired
            evidence += [at.note(gone, "it is unscaled only here") for gone in removed]
            fix = Fix("unscale the gradients first", Applicability.SAFE, edits)
        if Care.in_test(at):
            confidence = Confidence.POSSIBLE  # a test trains nothing to use
        elif wrapped:
            confidence = Framework.confidence(at)
        elif violation.sometimes_unscaled:
            confidence = Confidence.POSSIBLE
        elif backward is not None and not violation.guessed:
            confidence = Confidence.CERTAIN
        else:
            confidence = Confidence.LIKELY
        if backward is None and not wrapped:
            evidence += [
                at.note(s, "the scaler steps here, never unscaled") for s in violation.steps
            ]
        inner = violation.inner.node if violation.inner is not None else None
        called = inner.func if isinstance(inner, ast.Call) else None
        added = isinstance(called, ast.Attribute) and called.attr in ("add_", "sub_")
        added |= isinstance(inner, (ast.Name, ast.Attribute))  # the target of ``+=``
        added |= isinstance(inner, ast.BinOp) and isinstance(inner.op, (ast.Add, ast.Sub))
        yield at.finding(
            violation.place,
            f"gradients are {'changed by what is not scaled' if added else 'read'}{violation.via} "
            f"while still multiplied by the loss scale (65536 at first)",
            confidence,
            evidence=evidence,
            fix=fix,
        )


def _penalised(call: ast.Call, at: Context) -> Iterator[Finding]:
    """Gradients of a scaled loss that a function goes on to use as if they were not."""
    given = next((k.value for k in call.keywords if k.arg == "outputs"), None)
    outputs = given or (call.args[0] if call.args else None)
    source = at.definition(outputs.id, outputs) if isinstance(outputs, ast.Name) else outputs
    scaled = next((n for n in ast.walk(source) if _scales(n)), None) if source is not None else None
    if scaled is None or at.mentions(r"get_scale\(|inv_?scale|inverse_scale|/ *\w*scale|unscale"):
        return
    yield at.finding(
        call,
        "gradients of a scaled loss are taken and never divided by the scale (65536 at first)",
        Confidence.LIKELY,
        evidence=(at.note(scaled, "the loss is scaled here"),),
    )


def _scales(node: ast.AST) -> TypeGuard[ast.Call]:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "scale"
        and "scaler" in ast.unparse(node.func.value).lower()
    )
