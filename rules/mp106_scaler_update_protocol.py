from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_lint.api import (
    Apex,
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
    calls,
    events,
)

Edits = tuple[Edit, ...]


LOOP = ast.For | ast.AsyncFor | ast.While
AWARE = re.compile(
    r"get_scale\(|skipped|skip_(lr|sched|step)|_step_count|overflow|step_was|found_inf|optimizer_was_run"
)
"""Words of code that asks whether a step was skipped."""
HOOK = re.compile(r"^(_?on_)?after_(train_)?(step|iter)|^on_(train_)?(batch|step)_end")
"""Hooks of trainers behind one training step."""


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
    triggers = events(
        "update-misplaced", pattern=r"(?i:scaler)|\.scale\([^\n]*\)\.backward\("
    ) | calls("Tensor.step", "apex.amp.scale_loss")

    def check(self, violation: Violation | ast.Call, at: Context) -> Iterator[Finding]:
        if isinstance(violation, ast.Call):
            if isinstance(violation.func, ast.Attribute) and violation.func.attr == "step":
                yield from _scheduled(violation, at)
            else:
                yield from _unscaled_early(violation, at)
            return
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
        yield at.finding(violation.place, message, confidence, evidence=evidence, fix=fix)


def _scheduled(call: ast.Call, at: Context) -> Iterator[Finding]:
    """A schedule that goes on although its optimizer's step may have been skipped."""
    assert isinstance(call.func, ast.Attribute)
    if "sched" not in at.text(call.func.value).lower() or at.mentions(AWARE.pattern):
        return
    message = (
        "the schedule goes on where the scaler skips the step: the first learning rates are lost, "
        "and torch warns of lr_scheduler.step() before optimizer.step()"
    )
    around = _loops(call, at)
    for node in at.function.nodes:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "step"
            and node.args
            and "scaler" in ast.unparse(node.func.value).lower()
            and _loops(node, at)[:1] == around[:1]
        ):
            yield at.finding(
                call,
                message,
                Confidence.POSSIBLE,
                severity=Severity.INFO,
                evidence=(at.note(node, "this step may be skipped"),),
            )
            return
    cls, known = at.function.cls, at.project.autocast
    hooked = cls is not None and any(re.search("Hook|Callback", base) for base in cls.bases)
    if HOOK.search(at.function.name) and (hooked or known is not None):
        evidence = () if known is None else (known,)
        yield at.finding(
            call, message, Confidence.POSSIBLE, severity=Severity.INFO, evidence=evidence
        )


def _loops(node: ast.AST, at: Context) -> list[ast.AST]:
    return [parent for parent in at.ancestors(node) if isinstance(parent, LOOP)]


def _unscaled_early(call: ast.Call, at: Context) -> Iterator[Finding]:
    for region, step in Apex.micro_steps(at):
        if region is call:
            yield at.finding(
                call,
                "gradients are unscaled in every micro-step: one that overflows spoils what the "
                "others have added up, and the step is skipped late; delay_unscale=True is missing",
                Confidence.LIKELY,
                severity=Severity.WARNING,
                evidence=(at.note(step, "the optimizer steps only here"),) if step else (),
            )
