from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Care,
    Confidence,
    Context,
    Edit,
    Finding,
    Fix,
    Region,
    Rule,
    Severity,
    calls,
)

SCALED = re.compile(
    r"(?<!standard)(?<!minmax)(?<!robust)scaler|scale_loss|loss_?scale|scaled_loss|get_scale|accelerat|fabric|deepspeed|apex|colossal"
    r"|lightning",
    re.IGNORECASE,
)
"""A module that mentions one of these scales its losses, or leaves it to a framework."""
DEPTH = 4
"""Assignments between a loss and the region in which its model ran."""


class Float16AutocastWithoutScaler(Rule):
    """Training under float16 autocast without a GradScaler: small gradients become zero.

    ## What it flags
    `loss.backward()` and an `optimizer.step()` in one function, where the loss comes from a float16
    autocast region of that function (CUDA's default, or `dtype=torch.float16`) and the module
    mentions neither a scaler nor a loss scale nor a framework that brings one.

    `GradScaler(enabled=False).scale(loss).backward()` of such a loss: the scaler is off.

    The region may be in a function of the file that computes the loss. Where another function of
    the file scales losses, the finding is `possible`.

    It stays silent for bfloat16, for a device that is only known at run time unless the dtype is
    given, and for losses that are multiplied by hand. Without an `optimizer.step()` (gradients of
    an input, say) the finding is `possible`, and so it is in tests and benchmarks.

    ## Why it breaks
    float16 ends at 6e-8, and gradients of activations are often smaller: they are divided by the
    number of elements of a mean. In a measured network with a mean over 65536 elements 46.9 % of
    the weight gradients were zero, 24.1 % with a scale. Nothing raises; the model trains worse, or
    its first layers do not train.

    ## Example
    ```python
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
    ```
    Use instead:
    ```python
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Fix safety
    Unsafe: a scaler skips steps whose gradients overflow, the first ones for certain. It is offered
    where one loop of the function holds the only backward and the only step, with `unscale_` before
    a clip. Checkpoints should hold the scaler's state from then on.

    ## How to silence
    `# precision-lint: ignore[MP111] reason` or `# noqa: MP111` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision package: gradient scaling; the numbers are measured.
    """

    code = "MP111"
    name = "float16-autocast-without-scaler"
    severity = Severity.WARNING
    applicability = Applicability.UNSAFE
    triggers = calls("Tensor.backward")

    def check(self, call: ast.Call, at: Context) -> Iterator[Finding]:
        if call.args or not isinstance(call.func, ast.Attribute):
            return
        off = _switched_off(call.func.value, at)
        if off is not None:
            yield from _beside_nothing(call, off, at)
            return
        elsewhere = _is_scaled(at)
        if elsewhere and at.mentions(f"(?i:{SCALED.pattern})") and not _alone(call, at):
            return
        found = _region(call.func.value, at, DEPTH)
        if found is None or found.node is None:
            return
        steps = [
            node
            for node in at.function.nodes
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "step"
            and not node.args
            and "opt" in ast.unparse(node.func.value).lower()
        ]
        confidence = Confidence.CERTAIN if found.sure else Confidence.LIKELY
        fix = None
        if not steps or Care.in_test(at) or Care.in_benchmark(at):
            confidence = Confidence.POSSIBLE
        elif len(steps) == 1:
            edits = _with_scaler(call, steps[0], found, at)
            if edits is not None:
                why = "a scaler skips the steps whose gradients overflow; it needs torch 2.3"
                fix = Fix("scale the loss", Applicability.UNSAFE, edits, why)
        if elsewhere:
            confidence = Confidence.POSSIBLE  # it may be scaled by whoever calls this
        evidence = [at.note(found.node, "float16 autocast region opened here")]
        evidence += [at.note(step, "the gradients are used here") for step in steps]
        yield at.finding(
            call,
            "the loss of a float16 region is not scaled: gradients below 6e-8 become 0",
            confidence,
            evidence=evidence,
            fix=fix,
        )


def _switched_off(loss: ast.expr, at: Context) -> ast.expr | None:
    """The call that makes the scaler of ``scaler.scale(loss)``, if it is off for good."""
    if not isinstance(loss, ast.Call) or not isinstance(loss.func, ast.Attribute) or not loss.args:
        return None
    if loss.func.attr != "scale":
        return None
    made = at.module.typestate.made(at.function, at.text(loss.func.value))
    off = [
        call
        for call in made
        if isinstance(call, ast.Call)
        and (at.qualify(call.func) or "").startswith("torch.")
        and any(
            k.arg == "enabled" and isinstance(k.value, ast.Constant) and k.value.value is False
            for k in call.keywords
        )
    ]
    return off[0] if off and len(off) == len(made) else None


def _beside_nothing(call: ast.Call, scaler: ast.expr, at: Context) -> Iterator[Finding]:
    """A float16 loss whose scaler does nothing."""
    assert isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call)
    found = _region(call.func.value.args[0], at, DEPTH)
    if found is not None and found.node is not None:
        yield at.finding(
            call,
            "the loss of a float16 region is not scaled, because the scaler is off: gradients "
            "below 6e-8 become 0",
            Confidence.LIKELY,
            evidence=(
                at.note(found.node, "float16 autocast region opened here"),
                at.note(scaler, "the scaler is switched off here"),
            ),
        )


def _is_scaled(at: Context) -> bool:
    """Whether the module's code, comments and texts aside, names what scales losses."""
    if SCALED.search(at.source.text) is None:
        return False
    for node in ast.walk(at.module.index.tree):
        words = [
            getattr(node, field, None)
            for field in ("id", "attr", "arg", "name", "module", "asname")
        ]
        if any(isinstance(word, str) and SCALED.search(word) for word in words):
            return True
    return False


def _region(node: ast.expr, at: Context, depth: int) -> Region | None:
    """The float16 region of this function in which a loss, or what it is made of, is computed."""
    for part in ast.walk(node):
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult):
            sides = [s.value for s in (part.left, part.right) if isinstance(s, ast.Constant)]
            if any(isinstance(s, (int, float)) and s >= 16 for s in sides):
                return None  # scaled by hand
        if isinstance(part, ast.Call):
            region = at.region(part)
            if region.on and region.node is not None and region.called is None:
                return region if _is_float16(region) else None
            helped = _helped(part, at) if depth else None
            if helped is not None:
                return helped
    if depth <= 0:
        return None
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load):
            source = at.definition(part.id, part)
            found = _region(source, at, depth - 1) if source is not None else None
            if found is not None:
                return found
    return None


def _alone(call: ast.Call, at: Context) -> bool:
    """Whether a backward is not scaled in a function that scales another loss before or after it,
    and an optimizer steps by itself right behind it."""
    statement, func = at.statement(call), call.func
    if statement is None or any(
        isinstance(a, (ast.If, ast.IfExp, ast.Try)) for a in at.ancestors(call)
    ):
        return False
    if not isinstance(func, ast.Attribute) or SCALED.search(at.text(func.value)):
        return False
    scaled = [n for n in at.function.nodes if _calls(n, "scale")]
    behind = at.after(statement)[:3]
    steps = [n for s in behind for n in ast.walk(s) if _calls(n, "step")]
    return bool(scaled) and bool(steps) and not getattr(steps[0], "args", None)


def _helped(call: ast.Call, at: Context) -> Region | None:
    """The float16 region in which a function of this file computes what it returns."""
    func = call.func
    if isinstance(func, ast.Attribute):
        own = at.function.cls is not None and at.text(func.value) == "self"
        home = at.function.cls.methods.get(func.attr) if own and at.function.cls else None
    else:
        home = at.module.index.function_named(getattr(func, "id", ""), at.function)
    if home is None or home is at.function:
        return None
    inside = at.inside(home)
    for node in home.nodes:
        if isinstance(node, ast.Return) and node.value is not None:
            found = _region(node.value, inside, 0) or _stored(node.value, inside)
            if found is not None:
                return found
    return None


def _stored(node: ast.expr, at: Context) -> Region | None:
    """The region behind a name that a function returns."""
    for part in ast.walk(node):
        source = at.definition(part.id, part) if isinstance(part, ast.Name) else None
        found = _region(source, at, 0) if source is not None else None
        if found is not None:
            return found
    return None


def _is_float16(region: Region) -> bool:
    named = isinstance(region.node, ast.Call) and (
        len(region.node.args) > 1 or any(k.arg == "dtype" for k in region.node.keywords)
    )
    return region.dtype == "float16" and (named or region.device == "cuda")


def _with_scaler(
    backward: ast.Call, step: ast.Call, region: Region, at: Context
) -> tuple[Edit, ...] | None:
    """Edits that train with a scaler, where one loop holds the backward and the step."""
    loops = [p for p in at.ancestors(backward) if isinstance(p, (ast.For, ast.While))]
    others = [p for p in at.ancestors(step) if isinstance(p, (ast.For, ast.While))]
    statement, stepping = at.statement(backward), at.statement(step)
    if not loops or not others or loops[-1] is not others[-1] or region.device not in ("cuda", ""):
        return None
    if not isinstance(stepping, ast.Expr) or stepping.value is not step or statement is None:
        return None
    if sum(_calls(node, "backward") for node in at.function.nodes) != 1:
        return None
    assert isinstance(step.func, ast.Attribute) and isinstance(backward.func, ast.Attribute)
    optimizer, name = at.text(step.func.value), at.fresh("scaler")
    if not at.bound_before(optimizer, loops[-1].body[0]):  # type: ignore[arg-type]
        return None
    spelling, imports = at.torch()
    looks = [
        s
        for s in (at.statement(node) for node in at.function.nodes if _looks(node))
        if s is not None and s.lineno > statement.lineno
    ]
    parts = [
        at.edit.insert_before(loops[-1], f'{name} = {spelling}.amp.GradScaler("cuda")'),
        at.edit.rewrite(statement, {backward.func.value: f"{name}.scale(_)"}),
        at.edit.rewrite(stepping, {step: f"{name}.step({optimizer})"}),
        at.edit.insert_after(stepping, f"{name}.update()"),
        imports,
    ]
    if looks:
        first = min(looks, key=lambda s: s.lineno)
        block = next((b for b in _blocks(at.parents.get(id(stepping))) if stepping in b), [])
        if first not in block or first.lineno > stepping.lineno:
            return None
        parts.append(at.edit.insert_before(first, f"{name}.unscale_({optimizer})"))
    edits: list[Edit] = []
    for part in parts:
        if part is None:
            return None
        edits += part
    return tuple(edits)


def _calls(node: ast.AST, name: str) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == name
    )


def _looks(node: ast.AST) -> bool:
    """Whether a node reads or clips gradients."""
    if isinstance(node, ast.Attribute):
        return node.attr == "grad" or node.attr.startswith("clip_grad")
    return isinstance(node, ast.Name) and node.id.startswith("clip_grad")


def _blocks(node: ast.AST | None) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block
