from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_lint.api import (
    Apex,
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

BY_HAND = re.compile(r"loss_?scal|grad_?scal|lg_.*scale|\bscaler?\b|dynamic_scale", re.IGNORECASE)
"""What losses are multiplied by for the range of half."""
DIVIDED = r"/=? *\(?[\w.]*scal|unscal|inv\w*scal|div_\([^)]*scal|mul_\([^)]*scal|1(\.0?)? */"
"""Code that divides by the scale, or by a number of steps."""


class ClipBeforeUnscale(Rule):
    """Gradient clipping that sees gradients multiplied by the loss scale.

    ## What it flags
    `clip_grad_norm_`, `clip_grad_value_` and wrappers of them between
    `scaler.scale(loss).backward()` and `scaler.step(optimizer)` without
    `scaler.unscale_(optimizer)` before.

    The same with the torch function behind the backward of a framework that scales inside
    (`accelerator.backward(loss)`, `fabric.backward`, `self.manual_backward`, `amp.scale_loss` of
    apex) and has a clip of its own: `likely` where the file names float16 for it, else `possible`.
    `possible`: the clip behind `(loss * loss_scale).backward()`, where nothing in the function
    divides by the scale. With apex and `opt_level="O2"`, a clip of `model.parameters()` instead of
    `amp.master_params(optimizer)`.

    It stays silent where any path to the clip unscales first (`if use_amp:`), on paths whose
    backward is not scaled, for a scaler made with `enabled=False`, and for wrappers that unscale by
    themselves (`accelerator.clip_grad_norm_`, Fabric, Lightning). It is only `possible` in tests.

    ## Why it breaks
    Nothing raises. With a scale of 65536 a `max_norm` of 1.0 acts as 1.5e-5: SGD stands still (loss
    3.55 after 60 steps where it should be 0.01). Adam divides by the gradient's own size, so it
    goes on, but as if every gradient had the same tiny norm. `clip_grad_value_` also turns inf into
    a finite number, so the scaler does not skip the step that it should skip.

    ## Example
    ```python
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    ```
    Use instead:
    ```python
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    ```

    ## Fix safety
    Safe: without a scale (a disabled scaler) `unscale_` does nothing. With gradient
    accumulation it goes into the branch that steps; where the clip itself is outside of that
    branch there is no automatic fix.

    ## How to silence
    `# precision-lint: ignore[MP102] reason` or `# noqa: MP102` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision examples: gradient clipping.
    """

    code = "MP102"
    name = "clip-before-unscale"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = events(
        "scaled-gradient-clipped",
        pattern=rf"(?i:scaler)|\.unscale_\(|\.scale\([^\n]*\)\.backward\(|{Framework.triggers}",
    ) | calls("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_")

    def check(self, violation: Violation | ast.Call, at: Context) -> Iterator[Finding]:
        if isinstance(violation, ast.Call):
            yield from _beside_masters(violation, at)
            yield from _scaled_by_hand(violation, at)
            return
        wrapped = Framework.scaled(violation)
        if wrapped and Framework.spared(at):
            return
        evidence = []
        backward = violation.backward or violation.caller
        if backward is not None:
            evidence.append(at.note(backward, "the loss is scaled here"))
        evidence += violation.traced(at.note, "they are clipped here")
        repaired = None if wrapped else at.unscale_first(violation)
        fix = None
        if repaired is not None:
            edits, removed = repaired
            evidence += [at.note(gone, "it is unscaled only here") for gone in removed]
            fix = Fix("unscale the gradients before clipping", Applicability.SAFE, edits)
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
        yield at.finding(
            violation.place,
            f"gradients are clipped{violation.via} "
            "while still multiplied by the loss scale: a max_norm of 1 "
            "acts as 1/65536",
            confidence,
            evidence=evidence,
            fix=fix,
        )


def _scaled_by_hand(call: ast.Call, at: Context) -> Iterator[Finding]:
    """A clip behind the backward of a loss times a scale, which nothing here divides by."""
    if at.mentions(DIVIDED):
        return
    for other, function in at.module.index.calls.get("backward", []):
        if function is not at.function or other.lineno > call.lineno:
            continue
        owner = other.func.value if isinstance(other.func, ast.Attribute) else None
        if isinstance(owner, ast.Name):
            owner = next(
                (
                    part.value
                    for part in reversed(at.function.nodes)
                    if isinstance(part, ast.Assign)
                    and part.lineno < other.lineno
                    and getattr(part.targets[0], "id", None) == owner.id
                ),
                None,
            )
        if not isinstance(owner, ast.BinOp) or not isinstance(owner.op, ast.Mult):
            continue
        factors = [f for f in (owner.left, owner.right) if BY_HAND.search(ast.unparse(f))]
        if factors:
            yield at.finding(
                call,
                f"gradients are clipped while still multiplied by {at.text(factors[0])}",
                Confidence.POSSIBLE,
                evidence=(at.note(other, "the loss is scaled here"),),
            )
            return


def _beside_masters(call: ast.Call, at: Context) -> Iterator[Finding]:
    """A clip of float16 parameters whose float32 copies apex steps."""
    if not call.args or "parameters()" not in at.text(call.args[0]):
        return
    made = next((c for c in Apex.initialized(at) if Apex.level(c) in ("O2", "O3", "")), None)
    if made is None or not at.mentions("scale_loss") or "FP16_Optimizer" in at.source.text:
        return
    if Apex.apart(call, made, at):
        return  # where this runs, no copies are made
    if any(
        isinstance(a, ast.With) and "scale_loss" in ast.unparse(a.items[0])
        for a in at.ancestors(call)
    ):
        return  # before they are unscaled: reported as such
    yield at.finding(
        call,
        "with O2 the optimizer steps float32 copies, amp.master_params(optimizer): a clip of the "
        "model's own gradients has no effect",
        Confidence.LIKELY if Apex.level(made) else Confidence.POSSIBLE,
        evidence=(at.note(made, "the copies are made here"),),
    )
