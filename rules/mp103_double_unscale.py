from __future__ import annotations

from collections.abc import Iterator

from precision_lint import remedies
from precision_lint.api import Applicability, Context, Cost, Event, Finding, Fix, Rule, Severity


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
    cost = Cost.RAISES
    applicability = Applicability.SAFE
    listens = ("double-unscale",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        when = (
            "after its step, before update"
            if event.facts["done"] == "stepped"
            else ("twice since the last update")
        )
        yield Finding(
            f"the optimizer is unscaled {when}: this raises RuntimeError",
            fix=_removed(event, at),
            related=remedies.backward(event),
        )


def _removed(event: Event, at: Context) -> Fix | None:
    """Remove the call; where it is the only one, unscale in the branch that steps instead."""
    facts = event.facts
    if facts["another"]:
        return None  # the other optimizer may have been meant
    edits = at.remove(event.place)
    if facts["done"] == "stepped" or not facts["alone"]:
        return at.fix("remove the second unscale_", edits)
    skipped = remedies.update_skips(event, at)
    if skipped is not None:
        return at.fix("update the scaler where the step is skipped", skipped)
    moved = None
    for step, scaler, optimizer in facts["steps"]:
        known = all(at.is_known(one, event.place) for one in (scaler, optimizer))
        if step.path == at.path and known:
            line = f"{at.text(scaler)}.unscale_({at.text(optimizer)})"
            moved = at.insert_in_branch(event.place, step, line)
            break
    both = None if edits is None or moved is None else (*edits, *moved)
    return at.fix("unscale in the branch that steps", both)
