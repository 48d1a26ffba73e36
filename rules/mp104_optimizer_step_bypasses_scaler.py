from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Fix, Link, Rule, Severity


class OptimizerStepBypassesScaler(Rule):
    """Optimizer that steps by itself with gradients of a scaled loss.

    ## What it flags
    `optimizer.step()` after `scaler.scale(loss).backward()`, instead of `scaler.step(optimizer)`;
    also beside it: before it (the update is made with scaled gradients, then again) or behind it
    (the update is made twice). Helpers and wrappers are followed. A step behind
    `scaler.unscale_(optimizer)` has the right gradients, but nothing skips it when they are
    infinite: that is reported as `likely`, unless the code looks at the gradients itself.

    `scaler.step(optimizer, closure)`, and `optimizer.step(closure)` whose closure scales its loss.
    An optimizer that apex's `amp.initialize` returns and nobody uses. The step of the optimizer
    that accelerate's `prepare` or Fabric's `setup` was given, instead of the one that it returned:
    `likely` where the file names float16 for the framework, else `possible`.

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
        else:
            message = (
                "the optimizer steps with gradients that are still multiplied by the loss scale "
                "(65536 at first)"
            )
        yield Finding(message, fix=_stepped(event, at), related=_backward(event))


def _backward(event: Event) -> tuple[Link, ...]:
    backward = event.facts["backward"]
    return () if backward is None else (Link("the loss is scaled here", backward),)


def _stepped(event: Event, at: Context) -> Fix | None:
    """Step with the scaler that has scaled the loss, and update it."""
    facts = event.facts
    optimizer = at.receiver(event.place)
    scalers = {at.text(place) for place in facts["scalers"] if place.path == at.path}
    named = optimizer is not None and at.is_name(optimizer) and len(scalers) == 1
    if facts["done"] is not None or optimizer is None or not named or facts["steps"]:
        return None
    scaler = scalers.pop()
    if not all(at.is_name(place) for place in facts["scalers"]):
        return None
    edits = at.replace({event.place: f"{scaler}.step({at.text(optimizer)})"})
    if edits is not None and not facts["updates"]:
        updated = at.insert_after(event.place, f"{scaler}.update()")
        edits = None if updated is None else (*edits, *updated)
    return at.fix(f"step with {scaler}", edits)
