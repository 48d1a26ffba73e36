from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_lint.api import (
    Apex,
    Applicability,
    Confidence,
    Context,
    Finding,
    Fix,
    Framework,
    Remedy,
    Rule,
    Severity,
    Violation,
    calls,
    events,
)

SCALER = re.compile(r"(?i:grad_?scaler|loss_?scaler|(^|[._])scaler\b)")
"""Names of GradScalers."""


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
    triggers = events(
        "scaler-bypassed", pattern=r"(?i:scaler)|\.scale\([^\n]*\)\.backward\("
    ) | calls(Apex.initialize, "Tensor.step")

    def check(self, violation: Violation | ast.Call, at: Context) -> Iterator[Finding]:
        if isinstance(violation, ast.Call):
            if at.qualify(violation.func) == Apex.initialize:
                yield from _lost(violation, at)
            else:
                yield from _closure(violation, at)
                yield from _unwrapped(violation, at)
            return
        remedy = Remedy(violation, at)
        evidence = []
        if violation.backward is not None:
            evidence.append(at.note(violation.backward, "the loss is scaled here"))
        evidence += violation.traced(at.note, "it steps here")
        name = violation.optimizer
        twice = violation.how == "again" or any(
            step.args and at.text(step.args[0]) == name for step in violation.steps
        )
        confidence = violation.confidence
        fix = None
        if violation.how == "again":
            message = f"{name} steps again after the scaler stepped it: each batch counts twice"
            if confidence is Confidence.LIKELY and not violation.guessed:
                confidence = Confidence.CERTAIN
        elif violation.how == "unchecked":
            message = f"{name} steps by itself: a step with inf or nan gradients is not skipped"
            confidence = min(confidence, Confidence.LIKELY, key=lambda c: c.rank)
        else:
            message = (
                f"{name} steps with gradients that are still multiplied by the loss scale "
                "(65536 at first)"
            )
        if twice:
            evidence += [at.note(step, "the scaler steps it here") for step in violation.steps]
            edits = remedy.drop()
            if edits is not None:
                why = "the code stepped twice for each batch; without a scale it does too"
                fix = Fix("leave the step to the scaler", Applicability.UNSAFE, edits, why)
        else:
            edits = remedy.step_through_scaler()
            if edits is not None:
                fix = Fix(f"step with {violation.scaler}", Applicability.SAFE, edits)
        yield at.finding(violation.place, message, confidence, evidence=evidence, fix=fix)


def _lost(call: ast.Call, at: Context) -> Iterator[Finding]:
    """The optimizer that apex has taught to unscale, under a name that nothing reads."""
    name = Apex.lost(call, at)
    if name is not None:
        yield at.finding(
            call,
            f"amp.initialize returns the optimizer that unscales as {name}, which nothing uses: "
            f"{at.text(call.args[1])} is stepped instead",
            Confidence.LIKELY,
        )


def _unwrapped(call: ast.Call, at: Context) -> Iterator[Finding]:
    """Steps of the optimizer that a framework has wrapped, past the one that unscales."""
    wrapped = Framework.unwrapped(call, at)
    if wrapped is not None:
        assert isinstance(call.func, ast.Attribute)
        owner = at.text(call.func.value)
        yield at.finding(
            call,
            f"{owner} is what {at.text(wrapped.func)} was given, not the optimizer that it "
            "returned: with float16 it steps with gradients multiplied by the loss scale",
            Framework.confidence(at),
            evidence=(at.note(wrapped, "the optimizer that unscales is made here"),),
        )


def _closure(call: ast.Call, at: Context) -> Iterator[Finding]:
    """Steps that call a closure, which a scaler does not support."""
    assert isinstance(call.func, ast.Attribute)
    owner = at.text(call.func.value)
    named = next((k.value for k in call.keywords if k.arg == "closure"), None)
    if SCALER.search(owner):
        given = named or (call.args[1] if len(call.args) == 2 else None)
        if given is not None and len(call.args) in (1, 2) and _is_function(given, at):
            harm = "raises RuntimeError" if named is not None else "runs it with gradients unscaled"
            yield at.finding(
                call,
                f"a GradScaler supports no closure: {owner}.step {harm}",
                Confidence.LIKELY,
            )
        return
    given = named or (call.args[0] if len(call.args) == 1 else None)
    if not isinstance(given, ast.Name) or "opt" not in owner.lower():
        return
    inside = _nested(given.id, at)
    if inside is None or inside.function is at.function:
        return
    if not inside.mentions(r"\.scale\(") or inside.mentions(r"unscale_\(|get_scale\("):
        return
    backward = next((n for n in inside.function.nodes if _backward(n)), None)
    if isinstance(backward, ast.Call):
        yield at.finding(
            call,
            f"{owner} steps with the gradients of a closure that scales its loss",
            Confidence.LIKELY,
            evidence=(inside.note(backward, "the loss is scaled here"),),
        )


def _nested(name: str, at: Context) -> Context | None:
    """The function that a name stands for: one inside of this function, or the module's."""
    inner = [f for f in at.module.index.functions if f.name == name and f.parent is at.function]
    found = inner[-1] if inner else at.module.index.function_named(name, at.function)
    return at.inside(found) if found is not None else None


def _is_function(node: ast.expr, at: Context) -> bool:
    """Whether an argument is a function for sure, no parameter that is passed on."""
    if isinstance(node, ast.Name):
        given = {p.arg for p in at.function.parameters()}
        return node.id not in given and _nested(node.id, at) is not None
    return isinstance(node, (ast.Lambda, ast.Attribute))


def _backward(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "backward"
        and re.search(r"\.scale\(|scal", ast.unparse(node.func.value)) is not None
    )
