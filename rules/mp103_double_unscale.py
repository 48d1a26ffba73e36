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
    events,
)


class DoubleUnscale(Rule):
    """Second `unscale_` of one optimizer since the last `update`, which raises.

    ## What it flags
    `scaler.unscale_(optimizer)` on a path where the same optimizer was unscaled, or stepped, since
    the last `scaler.update()`: two calls in a row, one in every micro-step of gradient
    accumulation while `step` and `update` run in a branch, one more in a helper.

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
    accumulation.
    """

    code = "MP103"
    name = "double-unscale"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = events("unscaled-twice", pattern=r"\.unscale_\(")

    def check(self, violation: Violation, at: Context) -> Iterator[Finding]:
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
        via = f" in {violation.helper.name}()" if violation.helper is not None else ""
        yield at.finding(
            violation.node,
            f"{violation.optimizer} is unscaled{via} {when}: this raises RuntimeError",
            Confidence.CERTAIN,
            evidence=evidence,
            fix=fix,
        )


def _forgotten(violation: Violation) -> list[str]:
    """Other optimizers that step afterwards and are unscaled nowhere before."""
    unscaled = {violation.optimizer, *violation.unscaled} | {
        ast.unparse(c.args[0]) for c in violation.unscales if c.args
    }
    stepped = [ast.unparse(c.args[0]) for c in violation.steps if c.args]
    return [name for name in stepped if name not in unscaled]
