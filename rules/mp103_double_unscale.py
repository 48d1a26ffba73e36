from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Finding,
    Fix,
    Rule,
    Severity,
    Violation,
    calls,
    events,
)

CLIPS = ("clip_grad_norm_", "clip_grad_value_", "unscale_gradients")
"""Methods of accelerate's Accelerator that unscale."""


class DoubleUnscale(Rule):
    """Second `unscale_` of one optimizer since the last `update`, which raises.

    ## What it flags
    `scaler.unscale_(optimizer)` on a path where the same optimizer was unscaled, or stepped, since
    the last `scaler.update()`: two calls in a row, one in every micro-step of gradient
    accumulation while `step` and `update` run in a branch, one more in a helper. Also
    `accelerator.unscale_gradients()` before `accelerator.clip_grad_norm_`, which does it too.

    It stays silent for one call for each of several optimizers, in exclusive branches, under the
    accumulation's own condition, and where the scaler's state is asked first.

    ## Why it breaks
    `RuntimeError: unscale_() has already been called on this optimizer since the last update()`;
    after a step, `unscale_() is being called after step()`. With accumulation it comes in the
    second micro-step. A naive repair of MP101 or MP102 that only adds a call causes it.

    ## Example
    ```python
    for i, batch in enumerate(loader):
        scaler.scale(loss(batch)).backward()
        scaler.unscale_(optimizer)
        if (i + 1) % 4 == 0:
            scaler.step(optimizer)
            scaler.update()
    ```
    Use instead:
    ```python
    for i, batch in enumerate(loader):
        scaler.scale(loss(batch)).backward()
        if (i + 1) % 4 == 0:
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
    ```

    ## Fix safety
    Safe: the call that raises is removed, or moved to the top of the branch that steps. Without
    a scale (a disabled scaler) it did nothing. Where gradients are read between the call and
    that branch the code has to be moved by hand.

    ## How to silence
    `# precision-lint: ignore[MP103] reason` or `# noqa: MP103` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision examples: working with unscaled gradients, gradient
    accumulation. Hugging Face accelerate, `Accelerator.unscale_gradients`.
    """

    code = "MP103"
    name = "double-unscale"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = events("unscaled-twice", pattern=r"\.unscale_\(") | calls("Tensor.unscale_gradients")

    def check(self, violation: Violation | ast.Call, at: Context) -> Iterator[Finding]:
        if isinstance(violation, ast.Call):
            yield from _before_accelerators_clip(violation, at)
            return
        evidence = []
        first = violation.first
        again = first is violation.node
        if first is not None and not again:
            evidence.append(at.note(first, "it was unscaled here already"))
        evidence += [
            at.note(s, "it steps, and later updates, only here") for s in violation.steps if again
        ]
        fix = None
        if violation.helper is None and isinstance(violation.node, ast.Call):
            edits = at.move_into_step_branch(violation) if again else at.remove(violation.node)
            forgotten = [] if again else _forgotten(violation)
            if edits is not None and forgotten:
                why = f"{forgotten[0]} is stepped without being unscaled: it may have been meant"
                fix = Fix("remove the second unscale_", Applicability.DISPLAY, edits, why)
            elif edits is not None:
                title = (
                    "unscale only in the branch that steps"
                    if again
                    else "remove the second unscale_"
                )
                fix = Fix(title, Applicability.SAFE, edits)
        if violation.after_step:
            when = "after its step, before update"
        elif again:
            when = "again in the next iteration, without an update between"
        else:
            when = "twice since the last update"
        yield at.finding(
            violation.place,
            f"{violation.optimizer} is unscaled{violation.via} {when}: this raises RuntimeError",
            Confidence.CERTAIN,
            evidence=evidence,
            fix=fix,
        )


def _before_accelerators_clip(call: ast.Call, at: Context) -> Iterator[Finding]:
    """accelerate unscales in its own clips; in float16 a call before them is the first of two."""
    statement = at.statement(call)
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    if not isinstance(statement, ast.Expr) or owner is None or "accelerator" not in at.text(owner):
        return
    for following in at.after(statement):
        for node in ast.walk(following):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            name = node.func.attr
            if name in ("step", "update", "backward"):
                return
            if name in CLIPS and at.text(node.func.value) == at.text(owner):
                at_once = following is at.after(statement)[0]  # else gradients may be read between
                edits = at.remove(call) if at_once else None
                title = "leave it to the clip"
                yield at.finding(
                    call,
                    f"{at.text(node.func)} unscales by itself: in float16 the second unscale_ of "
                    "an optimizer raises RuntimeError",
                    Confidence.LIKELY,
                    evidence=[at.note(node, "it is unscaled again here")],
                    fix=Fix(title, Applicability.SAFE, edits) if edits is not None else None,
                )
                return


def _forgotten(violation: Violation) -> list[str]:
    """Other optimizers that step afterwards and are unscaled nowhere before."""
    unscaled = {violation.optimizer, *violation.unscaled} | {
        ast.unparse(c.args[0]) for c in violation.unscales if c.args
    }
    stepped = [ast.unparse(c.args[0]) for c in violation.steps if c.args]
    return [name for name in stepped if name not in unscaled]
