from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Edit,
    Evidence,
    Finding,
    Fix,
    Rule,
    Severity,
    calls,
)

LOOKS = frozenset({"item", "tolist", "numpy"})
THROUGH = frozenset({"detach", "cpu", "data", "float", "clone", "mean", "sum"})
TAKES = frozenset({"float", "print", "append", "update", "add_scalar", "info", "log", "log_metric"})
FINITE = frozenset({"isfinite", "isnan", "isinf"})


class ScaledHalfLoss(Rule):
    """Loss in float16 that is multiplied by the loss scale.

    ## What it flags
    `scaler.scale(loss)` of a loss that is float16 for certain: computed from half tensors in a
    float16 region, or cast to half. A loss with dimensions (`reduction="none"`) overflows itself:
    it is reported as well where it is computed from a model's output in a float16 region. A 0-d
    loss is promoted to float32 by the scale; it is reported, as a warning, because its gradient is
    not.

    A scaled loss that is read as if it was the loss: `item()`, `float()`, added to a total,
    printed. What is returned, or only asked for inf and nan, is `possible`. Silent where the
    function divides by the scale.

    It stays silent for losses that autocast computes in float32 (`cross_entropy`, `mse_loss` and
    the others of its float32 list), for bfloat16, and where the dtype is not known.

    ## Why it breaks
    65536 is inf in float16. A loss with dimensions of 2.0 is 131072 after scaling: inf, wherever it
    is logged, summed or checked, and a loop that passes over bad batches passes over all of them.
    The gradient that enters a 0-d half loss is the scale itself: steps are skipped until the scale
    is 32768, and each time that it grows beyond.

    ## Example
    ```python
    loss = (student - teacher).abs().mean()
    scaler.scale(loss).backward()
    ```
    Use instead:
    ```python
    loss = (student - teacher).abs().float().mean()
    scaler.scale(loss).backward()
    ```

    ## Fix safety
    Safe: a float32 loss stays what it is. A loss with dimensions is cast where it is scaled; a mean
    is taken in float32. For other 0-d losses a cast does not help, because the gradient goes back
    through it: there is no automatic fix.

    ## How to silence
    `# precision-lint: ignore[MP115] reason` or `# noqa: MP115` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision package: autocast op reference; the numbers are measured.
    """

    code = "MP115"
    name = "scaled-half-loss"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = calls("Tensor.scale")

    def check(self, call: ast.Call, at: Context) -> Iterator[Finding]:
        owner = at.text(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        if "scaler" not in owner.lower() or len(call.args) != 1:
            return
        yield from _read(call, at)
        loss = call.args[0]
        value = at.value(loss)
        computed = value.variable and "amp" in value.tags and not at.region(call).on
        if not value.is_tensor or not (computed or value.dtype in ("float16", "low")):
            return
        half = at.half(value, at.region(call))
        if half is None or "float16" not in half.dtypes:
            return
        scalar = value.ndim == 0 or _backward_of(call, at)
        if computed and (scalar or not (value.ndim or _reduced(call, at))):
            return
        evidence: list[Evidence] = []
        edits: tuple[Edit, ...] | None = None
        statement = at.statement(call)
        if not scalar and statement is not None:
            edits = at.edit.append(statement, {loss: ".float()"})
        elif scalar:
            mean = _mean(loss, at)
            around = at.statement(mean) if mean is not None else None
            if mean is not None and around is not None:
                assert isinstance(mean.func, ast.Attribute)
                edits = at.edit.append(around, {mean.func.value: ".float()"})
                if around is not statement:
                    evidence.append(at.note(mean, "the mean is taken in half here"))
        title = "take the mean in float32" if scalar else "scale the loss in float32"
        what = (
            "and so is the gradient that enters the loss"
            if scalar
            else "and every loss of 1.0 or more becomes inf"
        )
        yield at.finding(
            call,
            f"a float16 loss is scaled: the scale (65536 at first) is inf in float16, {what}",
            Confidence.POSSIBLE if value.dtype == "low" else half.confidence,
            severity=Severity.WARNING if scalar else Severity.ERROR,
            evidence=(*evidence, *half.evidence),
            fix=Fix(title, Applicability.SAFE, edits) if edits is not None else None,
        )


def _backward_of(call: ast.Call, at: Context) -> bool:
    """Whether ``backward()`` runs on it as it is: then it has no dimensions."""
    parent = at.parents.get(id(call))
    if not isinstance(parent, ast.Attribute) or parent.attr != "backward":
        return False
    backward = at.parents.get(id(parent))
    return isinstance(backward, ast.Call) and not backward.args


def _reduced(call: ast.Call, at: Context) -> bool:
    """Whether a scaled loss is reduced afterwards: then it has dimensions."""
    statement, places = at.statement(call), [at.parents.get(id(call))]
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        places = [at.parents.get(id(use)) for use in at.uses(statement.targets[0].id)]
    return any(isinstance(p, ast.Attribute) and p.attr in ("mean", "sum") for p in places)


def _mean(loss: ast.expr, at: Context) -> ast.Call | None:
    """The call of ``mean()`` that made a loss."""
    made: ast.expr | None = loss
    if isinstance(loss, ast.Name):
        made = at.definition(loss.id, loss)
    if isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute):
        if made.func.attr == "mean" and not made.args and at.qualify(made.func) is None:
            return made
    return None


def _read(call: ast.Call, at: Context) -> Iterator[Finding]:
    """The first place that reads a scaled loss, other than its backward."""
    if at.mentions(r"get_scale\(|inv_?scale|/ *\w*scale"):
        return
    statement = at.statement(call)
    uses: list[ast.expr] = [call]
    if isinstance(statement, ast.Assign) and statement.value is call:
        target = statement.targets[0]
        if not isinstance(target, ast.Name):
            return
        uses = [
            use
            for use in at.uses(target.id)
            if isinstance(use.ctx, ast.Load) and at.definition(use.id, use) is call
        ]
    for use in uses:
        sure = _looks(use, at)
        if sure is not None:
            yield at.finding(
                use,
                "a scaled loss is read: it is 65536 times the loss at first, and grows",
                sure,
                severity=Severity.WARNING,
                evidence=(at.note(call, "the loss is scaled here"),) if use is not call else (),
            )
            return


def _looks(use: ast.expr, at: Context) -> Confidence | None:
    """How sure it is that a scaled loss is read here for its value; None: it is not."""
    node: ast.AST = use
    while True:
        parent = at.parents.get(id(node))
        if isinstance(parent, ast.Attribute):
            if parent.attr in LOOKS:
                node = parent
                break
            if parent.attr not in THROUGH:
                return None
            node = parent
        elif isinstance(parent, ast.Call) and parent.func is node:
            node = parent
        else:
            break
    parent = at.parents.get(id(node))
    if isinstance(node, ast.Attribute) and node.attr in LOOKS:
        around = at.parents.get(id(parent)) if parent is not None else None
        checked = isinstance(around, ast.Call) and _last(around) in FINITE
        return Confidence.POSSIBLE if checked else Confidence.LIKELY
    if isinstance(parent, ast.keyword):
        parent = at.parents.get(id(parent))
    if isinstance(parent, ast.AugAssign | ast.FormattedValue):
        return Confidence.LIKELY
    if isinstance(parent, ast.Call):
        if _last(parent) in TAKES:
            return Confidence.LIKELY
        return Confidence.POSSIBLE if _last(parent) in FINITE else None
    return Confidence.POSSIBLE if isinstance(parent, ast.Return) else None


def _last(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))
