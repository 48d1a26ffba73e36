from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Care,
    Confidence,
    Context,
    Finding,
    Fix,
    Region,
    RegionEnd,
    Rule,
    Severity,
    WideBackward,
    calls,
)

With = ast.With | ast.AsyncWith


class BackwardUnderAutocast(Rule):
    """Backward pass inside the autocast region, which torch's documentation advises against.

    ## What it flags
    `loss.backward()` and `scaler.scale(loss).backward()` that stand in a `with autocast`, or in a
    function that it decorates. Shown as info: it does not fail a run.

    What the project keeps in float32, and what this could harm, is named: a region with
    `enabled=False`, or an `autograd.Function` whose `backward` multiplies without `custom_bwd`.
    It is only `possible` where the statement holds the forward pass as well, in tests and
    benchmarks, which may mean it, and, where nothing is kept in float32, in a region that a caller
    or a decorator opens. It stays silent where a
    loop is between the region and the backward pass, which is a matter of MP205 if weights change
    there.

    ## Why it breaks
    Autograd multiplies in the state of autocast in which `backward` is called, on every device.
    Products that ran in half have half gradients anyway: those are the same to the bit. What was
    kept in float32 comes down to half in the backward pass: products inside
    `autocast(enabled=False)`, the backward of a custom `autograd.Function`, and of `cdist`,
    `linalg.solve` and `linalg.inv`. For `x @ w` of 64 by 64 normal numbers the gradients are off by
    2.6e-3 of the largest (bfloat16) or 3.3e-4 (float16) instead of 1e-7; in float16, those above
    65504 are inf and those below 3e-8 are 0.

    ## Example
    ```python
    with torch.autocast("cuda"):
        features = model(images)
        with torch.autocast("cuda", enabled=False):
            wide = features.float()
            loss = criterion(wide.T @ wide, labels)
        scaler.scale(loss).backward()
    ```
    Use instead:
    ```python
    with torch.autocast("cuda"):
        features = model(images)
        with torch.autocast("cuda", enabled=False):
            wide = features.float()
            loss = criterion(wide.T @ wide, labels)
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
        if not region.on:
            return
        if region.called is not None or region.foreign or not _entered_here(node, region, at):
            yield from self._elsewhere(node, region, at)
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
        if statement is None or RegionEnd.first_backward(parent.body) is not node:
            return  # one report for a region
        whole = not RegionEnd.trains(statement)  # the forward pass is in the same statement
        moved = [] if whole else RegionEnd.behind(parent.body)
        indent = at.edit.indentation(parent)
        edits = RegionEnd.outdented(moved, indent, at) if moved else None
        confidence = Confidence.CERTAIN if region.sure else Confidence.LIKELY
        kept = WideBackward.anywhere(at)
        if whole or Care.in_test(at) or Care.in_benchmark(at):
            confidence = Confidence.POSSIBLE
        evidence = [*at.why(region), *([kept] if kept is not None else [])]
        if edits is not None:
            evidence += [at.note(s, "this may stand behind the region") for s in moved]
        yield at.finding(
            node,
            "the backward pass stands in the autocast region, which PyTorch advises against"
            + (": what was kept in float32 multiplies in half there" if kept is not None else ""),
            confidence,
            evidence=evidence,
            fix=Fix("end the region before it", Applicability.SAFE, edits) if edits else None,
        )

    @staticmethod
    def _elsewhere(node: ast.Call, region: Region, at: Context) -> Iterator[Finding]:
        """A region that a decorator or a caller opens."""
        if any(isinstance(p, ast.For | ast.AsyncFor | ast.While) for p in at.ancestors(node)):
            return
        own = region.called is None and not region.foreign
        kept = WideBackward.anywhere(at)
        sure = own and kept is not None and not Care.in_test(at)
        yield at.finding(
            node,
            "the backward pass runs under autocast: what was kept in float32 multiplies in half",
            Confidence.LIKELY if sure else Confidence.POSSIBLE,
            evidence=[*at.why(region), *([kept] if kept is not None else [])],
        )


def _entered_here(node: ast.AST, region: Region, at: Context) -> bool:
    """Whether a ``with`` of the same function opens the region around a node."""
    return any(
        isinstance(parent, With) and any(i.context_expr is region.node for i in parent.items)
        for parent in at.ancestors(node)
    )
