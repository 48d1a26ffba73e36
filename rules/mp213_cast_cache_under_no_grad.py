from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterator

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Finding,
    Fix,
    Region,
    Rule,
    Severity,
    operators,
)

FIXED = (2, 10)
"""The release from which on a cast that was made without gradient is not used with one."""
With = ast.With | ast.AsyncWith
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
SWITCHES = re.compile(r"enable_grad|set_grad|requires_grad|unfreeze")
"""Names of what gives parameters their gradients back."""
COUNTED = re.compile(r"range$|enumerate$|tqdm$")


class CastCacheUnderNoGrad(Rule):
    """Model run under no_grad and then with gradient in one autocast region of an old torch.

    ## What it flags
    A module that is called under `torch.no_grad()` and afterwards without it, in one autocast
    region, in a project that allows torch before 2.10. Shown as info: it does not fail a run.

    The first call may stand in a method that `no_grad` decorates, and both in a module whose
    callers are in a region.

    `possible`: the same in a module whose callers may be in a region, in a project that uses
    autocast; a loop that has gradients in its last round only (`set_grad_enabled(i == n - 1)`,
    `requires_grad_` behind a condition), as recycling and truncated rollouts do.

    Where the project's metadata (see MP212) say nothing of torch it is `possible`.

    It stays silent where they say 2.10 or later, where the two calls have regions of their own, for
    `cache_enabled=False`, and where `torch.clear_autocast_cache()` is called.

    ## Why it breaks
    Autocast keeps the half copy of each weight until the region ends. Old versions kept the copy
    that was made under `no_grad` too, which has no history, and gave it to the forward pass with
    gradients: those weights got none, without an error. Reported for torch 1.9 to 2.9, where a
    teacher or an earlier frame goes through the same network; not reproducible with 2.13.

    ## Example
    ```python
    with torch.autocast("cuda"):
        with torch.no_grad():
            history = model(earlier)
        out = model(frame)
    ```
    Use instead:
    ```python
    with torch.autocast("cuda"):
        with torch.no_grad():
            history = model(earlier)
        torch.clear_autocast_cache()
        out = model(frame)
    ```

    ## Fix safety
    Shown, not applied: emptying the cache costs one more cast of every weight, and no torch that
    proofs run on shows what it cures.

    ## How to silence
    `# precision-lint: ignore[MP213] reason` or `# noqa: MP213` on the line.

    ## Sources
    PyTorch issues 105211, 112583 and 158232, pull request 165068.
    """

    code = "MP213"
    name = "cast-cache-under-no-grad"
    severity = Severity.INFO
    applicability = Applicability.DISPLAY
    triggers = operators(ast.With, ast.For, pattern=r"no_grad|set_grad|enable_grad|requires_grad")

    def check(self, node: ast.With | ast.For, at: Context) -> Iterator[Finding]:
        if at.project.torch is not None and at.project.has_torch(*FIXED):
            return
        if isinstance(node, ast.For):
            yield from _last_round(node, at)
            return
        manager = next(
            (i.context_expr for i in node.items if _is_no_grad(i.context_expr, at)), None
        )
        region = at.region(manager) if isinstance(manager, ast.Call) else None
        if region is None:
            yield from _behind_decorator(node, at)
            return
        called = region.called is not None or bool(region.foreign)
        if region.state == "inherited" or (region.on and called):
            yield from _in_module(node, region, at)
            return
        if not region.on:
            return
        around = _region_statement(node, region.node, at)
        if around is None or _keeps_no_cache(region.node) or at.mentions("clear_autocast_cache"):
            return
        before = {at.text(c.func): c for c in _modules(node, at)}
        later = next((c for c in _modules(around, at) if _reuses(c, node, before, at)), None)
        if later is None:
            return
        first = before[at.text(later.func)]
        spelling, imports = at.torch()
        edits = at.edit.insert_after(node, f"{spelling}.clear_autocast_cache()")
        fix = None
        if edits is not None:
            why = "it costs one more cast of every weight, and helps only before torch 2.10"
            fix = Fix("empty the cache", Applicability.DISPLAY, (*imports, *edits), why)
        yield at.finding(
            first,
            f"before torch 2.10 autocast keeps the casts that {at.text(first.func)} makes under "
            "no_grad, and the next call gets no gradients for its weights",
            Confidence.LIKELY if at.project.torch is not None else Confidence.POSSIBLE,
            evidence=[
                *at.why(region),
                at.note(later, "the call with gradients"),
                at.note(manager or node, "no_grad ends behind this"),
            ],
            fix=fix,
        )


def _is_no_grad(node: ast.expr, at: Context) -> bool:
    if not isinstance(node, ast.Call):
        return False
    off = len(node.args) == 1 and at.text(node.args[0]) == "False"
    name = at.qualify(node.func)
    return name == "torch.no_grad" or (off and name == "torch.set_grad_enabled")


def _may_be_in_region(at: Context) -> bool:
    """Whether autocast is used, and nothing here empties its cache."""
    used = at.project.autocast is not None or "autocast" in at.source.text
    return used and "clear_autocast_cache" not in at.source.text


def _behind_decorator(node: ast.With, at: Context) -> Iterator[Finding]:
    """A method that runs a module under ``no_grad``, in a region that runs it with gradients."""
    cls = at.function.cls
    regions = [item.context_expr for item in node.items]
    if cls is None or any(map(_keeps_no_cache, regions)) or at.mentions("clear_autocast_cache"):
        return
    for call in (n for inner in node.body for n in ast.walk(inner)):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        region = at.region(call)
        if not region.on or region.node not in regions or at.text(call.func.value) != "self":
            continue
        method = at.module.index.method(cls, call.func.attr)
        if method is None or isinstance(method.node, ast.Module):
            continue
        if not any("no_grad" in ast.unparse(d) for d in method.node.decorator_list):
            continue
        inside = at.inside(method)
        before = {inside.text(c.func): c for c in _modules(method.node, inside)}
        own = {text: c for text, c in before.items() if text.startswith("self.")}
        later = next((c for c in _modules(node, at) if _reuses(c, call, own, at)), None)
        if later is not None:
            yield at.finding(
                call,
                f"before torch 2.10 autocast keeps the casts that {at.text(later.func)} makes "
                f"under no_grad in {call.func.attr}(), and the next call gets no gradients for its "
                "weights",
                Confidence.LIKELY if at.project.torch is not None else Confidence.POSSIBLE,
                evidence=[
                    *at.why(region),
                    inside.note(own[at.text(later.func)], "the call without gradients"),
                    at.note(later, "the call with gradients"),
                ],
            )
            return


def _in_module(node: ast.With, region: Region, at: Context) -> Iterator[Finding]:
    """Two runs of a submodule in one method, whose region a caller has, or may have, opened."""
    around, cls = at.function.node, at.function.cls
    if isinstance(around, ast.Module) or cls is None or not cls.is_module:
        return
    if not _may_be_in_region(at):
        return
    own = (c for c in _modules(node, at) if isinstance(c.func, ast.Attribute))
    before = {at.text(c.func): c for c in own}
    later = next((c for c in _modules(around, at) if _reuses(c, node, before, at)), None)
    if later is not None:
        known = at.project.autocast
        yield at.finding(
            before[at.text(later.func)],
            f"{at.text(later.func)} runs without gradient and then with one: in one autocast "
            "region its weights get no gradients before torch 2.10",
            Confidence.LIKELY if region.on and at.project.torch else Confidence.POSSIBLE,
            evidence=[
                at.note(later, "the call with gradients"),
                *(at.why(region) if region.on else [known] if known else []),
            ],
        )


def _last_round(loop: ast.For, at: Context) -> Iterator[Finding]:
    """A loop over one model that switches its gradients on for some of its rounds."""
    counted = isinstance(loop.iter, ast.Call) and COUNTED.search(at.text(loop.iter.func))
    if not counted or at.mentions(r"\.backward\(|\.step\("):
        return  # over layers; of epochs, each of which has a region of its own
    rounds = _names(loop.target)
    inner = [part for statement in loop.body for part in ast.walk(statement)]
    for part in inner:
        if isinstance(part, ast.Assign) and rounds & _names(part.value):
            if isinstance(part.value, (ast.Compare, ast.BoolOp)):
                rounds |= {t.id for t in part.targets if isinstance(t, ast.Name)}
    switch = next((s for part in inner if (s := _switch(part, rounds, at)) is not None), None)
    if switch is None or not _may_be_in_region(at):
        return
    known = at.project.autocast
    yield at.finding(
        switch,
        "only some rounds of this loop have gradients: in one autocast region the weights' casts "
        "of the others are used again before torch 2.10, and get none",
        Confidence.POSSIBLE,
        evidence=() if known is None else (known,),
    )


def _switch(node: ast.AST, rounds: set[str], at: Context) -> ast.expr | None:
    """What switches gradients on or off, by a condition on the round."""
    match node:
        case ast.Call(args=[test]) if at.qualify(node.func) == "torch.set_grad_enabled":
            return node if rounds & _names(test) else None
        case ast.IfExp(test=test) if rounds & _names(test) and "grad" in ast.unparse(node):
            return node if any(_is_no_grad(part, at) for part in (node.body, node.orelse)) else None
        case ast.If(test=test, body=body) if rounds & _names(test):
            for part in (p for statement in body for p in ast.walk(statement)):
                if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
                    if SWITCHES.search(part.func.attr) and not rounds & _names(part.func):
                        return part
                elif isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Attribute):
                    target = part.targets[0]
                    if target.attr == "requires_grad" and not rounds & _names(target):
                        return target
    return None


def _names(node: ast.expr) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _region_statement(node: ast.With, region: ast.expr | None, at: Context) -> With | None:
    """The statement that opens the region around another."""
    for parent in at.ancestors(node):
        if isinstance(parent, With) and any(i.context_expr is region for i in parent.items):
            return parent
    return None


def _keeps_no_cache(region: ast.expr | None) -> bool:
    given = region.keywords if isinstance(region, ast.Call) else []
    return any(k.arg == "cache_enabled" for k in given)


def _modules(statement: With | FunctionNode, at: Context) -> Iterator[ast.Call]:
    """Calls in a block of what may be a module: a parameter, a local name, ``self.x``."""
    for node in (n for inner in statement.body for n in ast.walk(inner)):
        if not isinstance(node, ast.Call) or not node.args or at.qualify(node.func) is not None:
            continue
        func, cls = node.func, at.function.cls
        if isinstance(func, ast.Attribute):
            own = cls is not None and at.text(func.value) == "self"
            method = at.module.index.method(cls, func.attr) if cls is not None else None
            if own and (method is None or _runs_modules(method.node, cls.methods if cls else ())):
                yield node
        elif isinstance(func, ast.Name) and (
            func.id in {p.arg for p in at.function.parameters()}
            or at.function.assigned.get(func.id)
        ):
            yield node


def _runs_modules(method: ast.AST, names: Container[str]) -> bool:
    """Whether a method calls attributes of its object other than these methods."""
    return any(
        isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and ast.unparse(n.func.value) == "self"
        and n.func.attr not in names
        for n in ast.walk(method)
    )


def _reuses(
    call: ast.Call, block: ast.With | ast.Call, before: dict[str, ast.Call], at: Context
) -> bool:
    """Whether a call behind a block runs with gradients a module that ran in it without."""
    behind = call.lineno > (block.end_lineno or block.lineno)
    if not behind or at.text(call.func) not in before:
        return False
    return not any(
        isinstance(parent, With) and any(_is_no_grad(i.context_expr, at) for i in parent.items)
        for parent in at.ancestors(call)
    )
