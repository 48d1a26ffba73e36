from __future__ import annotations

from collections.abc import Iterator

from precision_lint import remedies
from precision_lint.api import Applicability, Context, Event, Finding, Rule, Severity


class OptimizerStepBypassesScaler(Rule):
    """Optimizer that steps by itself with gradients of a scaled loss.

    ## What it flags
    `optimizer.step()` after `scaler.scale(loss).backward()`, instead of
    `scaler.step(optimizer)`; also beside it: before it (the update is made with scaled
    gradients, then again) or behind it (the update is made twice). Helpers and wrappers are
    followed. A step behind `scaler.unscale_(optimizer)` has the right gradients, but nothing
    skips it when they are infinite: that is reported as `likely`, unless the code looks at the
    gradients itself.

    It stays silent on paths whose backward is not scaled (`if use_amp:`), for other optimizers
    with a backward of their own, for a scaler made with `enabled=False`, where a framework
    (apex, accelerate, Fabric, Lightning) runs the backward, and for steps with a closure that scales
    nothing.

    `scaler.step(optimizer, closure)`, which torch refuses where `closure` is a keyword; by position
    the optimizer calls it and uses the gradients as they are scaled.

    A step of the optimizer that Accelerate or Fabric was given, where they gave back another one
    (`net, prepared = accelerator.prepare(model, optimizer)`) and scaled the loss in float16.

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
    Safe where the call is replaced, also in another branch than `scaler.step`: a disabled scaler's
    `step` is the optimizer's. Where it stands beside `scaler.step` it is deleted, which is unsafe:
    without a scale it trains too, and the code stepped twice for each batch. Where the code does not
    show whether both run, there is no fix.

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
    listens = ("plain-step",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        done = event.facts["done"]
        if done == "stepped":
            message = (
                "the optimizer steps again after the scaler stepped it: each batch counts twice"
            )
        elif done == "unscaled":
            message = (
                "the optimizer steps by itself: a step with inf or nan gradients is not skipped"
            )
        elif done == "closure":
            yield Finding(
                "a GradScaler takes no closure: its gradients would be used as they are scaled"
            )
            return
        elif event.facts["framework"]:
            yield Finding(
                "a framework was given this optimizer and gave back another one, which is to step: these "
                "gradients are still multiplied by the loss scale (65536 at first)",
                related=remedies.backward(event),
            )
            return
        else:
            message = (
                "the optimizer steps with gradients that are still multiplied by the loss scale "
                "(65536 at first)"
            )
        fix = None
        if self._beside(event, at):
            why = "the code stepped twice for each batch; without a scale it does too"
            fix = at.fix("leave the step to the scaler", remedies.removed(event, at, "step"), why)
        elif done != "stepped" and self._alone(event, at):
            fix = remedies.step_with_scaler(event, at)
        yield Finding(message, fix=fix, related=remedies.backward(event))

    @staticmethod
    def _beside(event: Event, at: Context) -> bool:
        """Whether the scaler surely steps the same optimizer, too."""
        optimizer = at.receiver(event.place)
        steps = ((step, name) for step, _, name in event.facts["steps"] if name.path == at.path)
        written = {at.text(name) for step, name in steps if at.is_sure_of(step, event.place)}
        return optimizer is not None and at.text(optimizer) in written

    @staticmethod
    def _alone(event: Event, at: Context) -> bool:
        """Whether no scaler steps where the optimizer does."""
        return all(at.are_exclusive(step, event.place) for step, _, _ in event.facts["steps"])
