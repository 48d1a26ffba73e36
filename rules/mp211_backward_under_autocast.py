from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Edit,
    Finding,
    Fix,
    Rule,
    Severity,
    calls,
)

TRAINING = frozenset({
    "backward", "scale", "step", "update", "zero_grad", "unscale_", "clip_grad_norm_",
    "clip_grad_value_", "parameters", "item", "append", "get_scale", "set_to_none", "format",
    "print", "detach", "set_postfix", "float", "is_enabled", "sum", "mean", "len", "get_last_lr",
})  # fmt: skip
"""Calls that may stand behind the region as well as in it."""
NEVER = ast.MatMult | ast.FunctionDef | ast.ClassDef | ast.With | ast.Return
With = ast.With | ast.AsyncWith


class BackwardUnderAutocast(Rule):
    """Backward pass inside the autocast region, which torch's documentation advises against.

    ## What it flags
    `loss.backward()` and `scaler.scale(loss).backward()` that stand in a `with autocast`. Shown as
    info: it does not fail a run.

    It stays silent where a loop is between the region and the backward pass, which is a matter of
    MP205 if weights change there, and for regions that the caller opens.

    ## Why it breaks
    For torch's own operations nothing happens: the backward pass of an operation runs in the dtype
    that its forward pass had, and measured gradients are the same to the bit. What does change is
    the backward pass of a custom `autograd.Function`: its products run under the autocast of
    whoever calls `backward`, so one that was kept in float32 with `autocast(enabled=False)` comes
    down to half again, and its gradients lose digits or overflow.

    ## Example
    ```python
    with torch.autocast("cuda"):
        loss = criterion(model(images), labels)
        scaler.scale(loss).backward()
    ```
    Use instead:
    ```python
    with torch.autocast("cuda"):
        loss = criterion(model(images), labels)
    scaler.scale(loss).backward()
    ```

    ## Fix safety
    Safe: what is moved behind the region, backward pass, step, update and their logs, computes
    nothing else. No fix where other statements follow in the region, or strings of several lines.

    ## How to silence
    `# precision-lint: ignore[MP211] reason` or `# noqa: MP211` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision: "Backward passes under autocast are not recommended".
    """

    code = "MP211"
    name = "backward-under-autocast"
    severity = Severity.INFO
    applicability = Applicability.SAFE
    triggers = calls("Tensor.backward")

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        region = at.region(node)
        if not region.on or region.called is not None or region.foreign:
            return
        statement: ast.stmt | None = None
        for parent in at.ancestors(node):
            if isinstance(parent, ast.For | ast.AsyncFor | ast.While):
                return
            if isinstance(parent, With) and any(
                i.context_expr is region.node for i in parent.items
            ):
                break
            if isinstance(parent, ast.stmt):
                statement = parent
        else:
            return
        if statement is None or _first(parent) is not node:
            return  # one report for a region
        moved = parent.body[parent.body.index(statement) :]
        edits = _edits(parent, moved, at)
        evidence = [*at.why(region)]
        if edits is not None:
            evidence += [at.note(s, "this may stand behind the region") for s in moved]
        yield at.finding(
            node,
            "the backward pass runs under autocast: products of custom functions come down to half",
            Confidence.CERTAIN if region.sure else Confidence.LIKELY,
            evidence=evidence,
            fix=Fix("end the region before it", Applicability.SAFE, edits) if edits else None,
        )


def _first(statement: ast.With | ast.AsyncWith) -> ast.Call | None:
    """The first backward pass of a region."""
    passes = [
        node
        for inner in statement.body
        for node in ast.walk(inner)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "backward"
    ]
    return min(passes, key=lambda call: (call.lineno, call.col_offset), default=None)


def _edits(
    statement: ast.With | ast.AsyncWith, moved: list[ast.stmt], at: Context
) -> tuple[Edit, ...] | None:
    """Edits that take the last statements of a region out of it."""
    if moved[0] is statement.body[0] or not all(_trains(s) for s in moved):
        return None
    outer, inner = at.edit.indentation(statement), at.edit.indentation(moved[0])
    if outer.strip() or inner.strip() or not inner.startswith(outer):
        return None
    extra, lines, text = len(inner) - len(outer), at.source.lines, at.source.text
    edits = []
    for row in range(moved[0].lineno, (moved[-1].end_lineno or 0) + 1):
        start = lines[row - 1] + len(outer)
        if text[start : start + extra] == inner[len(outer) :]:
            edits.append(Edit(start, start + extra, ""))
        elif text[lines[row - 1] :].split("\n", 1)[0].strip():
            return None
    return tuple(edits)


def _trains(statement: ast.stmt) -> bool:
    """Whether a statement only takes gradients, steps and logs."""
    for part in ast.walk(statement):
        if isinstance(part, ast.Call):
            name = getattr(part.func, "attr", getattr(part.func, "id", ""))
            if name not in TRAINING:
                return False
        elif isinstance(part, NEVER):
            return False
        elif isinstance(part, ast.Constant | ast.JoinedStr) and part.end_lineno != part.lineno:
            return False  # a string keeps the blanks of its lines
    return True
