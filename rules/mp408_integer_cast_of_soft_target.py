from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Evidence,
    Finding,
    Fix,
    Rule,
    Severity,
    calls,
)

REGRESSION = frozenset({"mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div"})
SOFT = re.compile(
    r"(?<![a-z])(targets?|gts?|ground_?truth|dist(ance)?s?|offsets?|box(es)?|bbox(es)?|reg|deltas?|"
    r"ltrb|soft|scores?|depths?|heatmaps?|flows?|dfl)(?![a-z])"
)
"""Words of names that hold values of regression."""
CLASSES = re.compile(
    r"(?<![a-z])(labels?|class(es)?|cls|ids?|idx|ind(ex|ices)|masks?|tokens?)(?![a-z])"
)
FLOORS = frozenset({"floor", "long", "int", "trunc", "ceil"})


class IntegerCastOfSoftTarget(Rule):
    """Target of a regression or an interpolation that is cut off to an integer first.

    ## What it flags
    `.long()` or `.int()` on a target that is then interpolated between its two neighbours (the
    distribution focal loss: `target - target.long()`, `left + 1 - target`), in the same function or
    in the one it is passed to, or that goes into a regression loss (`mse_loss`, `smooth_l1_loss`,
    `l1_loss`, `huber_loss`, `kl_div`).

    It stays silent where the cast makes an index or a class while the target itself stays as it is,
    as `left = target.long()` does, on targets that are integers already, and on names of labels,
    classes, ids and masks.

    ## Why it breaks
    The fractions are lost. With whole targets the weights of the two bins are always 1 and 0, so
    the loss of a distance of 3.9 is that of 3.0, and up to a bin of the box is never learned. Such
    a cast often comes from repairing an error of dtypes in mixed precision (`expected scalar type
    Long`), in the wrong place.

    ## Example
    ```python
    loss = distribution_focal_loss(pred, target_ltrb.long())
    ```
    Use instead:
    ```python
    loss = distribution_focal_loss(pred, target_ltrb.float())
    ```

    ## Fix safety
    Display: the loss is another one afterwards, in float32 as well, which is the point.

    ## How to silence
    `# precision-lint: ignore[MP408] reason` or `# noqa: MP408` on the line.

    ## Sources
    Li et al., Generalized Focal Loss: Learning Qualified and Distributed Bounding Boxes (2020).
    """

    code = "MP408"
    name = "integer-cast-of-soft-target"
    severity = Severity.ERROR
    applicability = Applicability.DISPLAY
    triggers = calls("Tensor.long", "Tensor.int", "Tensor.to", "Tensor.type")

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        if not isinstance(node.func, ast.Attribute) or not _truncates(node, at):
            return
        text = at.text(node.func.value)
        words = re.sub(r"([a-z])([A-Z])", r"\1_\2", text).lower()
        if CLASSES.search(words) or not SOFT.search(words):
            return
        found = _harm(node, at)
        if found is None:
            return
        harm, note = found
        statement = at.statement(node)
        edits = None
        if statement is not None:
            edits = at.edit.exchange(statement, {node: ".float()"})
        reason = "the loss becomes another one, in float32 as well"
        fix = Fix("keep the fractions", Applicability.DISPLAY, edits, reason) if edits else None
        yield at.finding(
            node,
            f"{' '.join(text.split())[:40]} loses its fractions: {harm}",
            Confidence.LIKELY,
            evidence=(note,),
            fix=fix,
        )


def _truncates(node: ast.Call, at: Context) -> bool:
    """Whether a call casts something that may have fractions to integers."""
    assert isinstance(node.func, ast.Attribute)
    operand = at.value(node.func.value)
    if operand.dtype in ("int", "bool") or operand.kind not in ("tensor", "unknown"):
        return False
    if node.func.attr in ("to", "type"):
        return at.value(node).dtype == "int"
    return not node.args and not node.keywords


def _harm(node: ast.Call, at: Context) -> tuple[str, Evidence] | None:
    """What the fractions would have been for, and where."""
    parent = at.parents.get(id(node))
    while isinstance(parent, (ast.Subscript, ast.Attribute)) or (
        isinstance(parent, ast.Call)
        and isinstance(parent.func, ast.Attribute)
        and parent.func.attr in ("view", "reshape", "flatten", "squeeze", "clamp", "to")
    ):
        parent = at.parents.get(id(parent))  # of the same values
    if isinstance(parent, ast.keyword):
        parent = at.parents.get(id(parent))
    if isinstance(parent, ast.Call):
        return _passed(parent, node, at)
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
        target = parent.targets[0]
        if isinstance(target, ast.Name):
            return _bound(target.id, parent.value, at)
    return None


def _bound(name: str, source: ast.expr, at: Context) -> tuple[str, Evidence] | None:
    for use in at.uses(name):
        if not isinstance(use.ctx, ast.Load) or at.definition(name, use) is not source:
            continue
        parent = at.parents.get(id(use))
        if isinstance(parent, ast.Call):
            found = _passed(parent, use, at)
            if found is not None:
                return found
    fraction = _interpolated(name, source, at.function, at.module)
    return None if fraction is None else ("its interpolation is of nothing", fraction)


def _passed(call: ast.Call, given: ast.expr, at: Context) -> tuple[str, Evidence] | None:
    """What becomes of a target in the loss that it is passed to."""
    home = at.qualify(call.func) or ""
    last = home.rpartition(".")[2]
    if home.startswith("torch.") and last in REGRESSION:
        return f"{last} compares with whole numbers", at.note(call, "the regression loss")
    callee = at.module.callee(call.func, at.function) or _stored(call.func, at)
    if callee is None:
        return None
    function, module = callee
    names = [p.arg for p in function.parameters()]
    if names[:1] == ["self"]:
        names = names[1:]
    holders = [a if _holds(a, given) else None for a in call.args]
    name = next((n for n, h in zip(names, holders, strict=False) if h is not None), None)
    name = name or next((k.arg for k in call.keywords if _holds(k.value, given)), None)
    fraction = _interpolated(name, None, function, module) if name is not None else None
    if fraction is None:
        return None
    return f"{function.name} interpolates between whole numbers", fraction


def _stored(func: ast.expr, at: Context) -> Any:
    """The ``forward`` of an object of this file that an attribute holds."""
    cls = at.function.cls
    if cls is None or not isinstance(func, ast.Attribute) or at.text(func.value) != "self":
        return None
    stored = at.module.stores(cls).get(func.attr)
    made = stored[0] if stored is not None else None
    if not isinstance(made, ast.Call) or not isinstance(made.func, ast.Name):
        return None
    home = at.module.index.classes.get(made.func.id)
    forward = home.methods.get("forward") if home is not None else None
    return (forward, at.module) if forward is not None else None


def _holds(argument: ast.expr, given: ast.expr) -> bool:
    return any(part is given for part in ast.walk(argument))


def _interpolated(
    name: str, source: ast.expr | None, function: Any, module: Any
) -> Evidence | None:
    """Where a name is set against its own floor, as an interpolation does."""
    assigned = {
        bound: {ast.unparse(s) for s in sources} for bound, sources in function.assigned.items()
    }
    near = {f"{name}.{floor}()" for floor in FLOORS} | {f"torch.floor({name})"}
    near |= {f"{text}.{cast}()" for text in near for cast in ("long", "int")}
    for _ in range(2):  # left, then right = left + 1
        near |= {bound for bound, texts in assigned.items() if texts & near and bound != name}
        near |= {f"{bound} + 1" for bound in near if bound.isidentifier()}
    for node in function.nodes:
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub):
            continue
        sides = [ast.unparse(side).removesuffix(".float()") for side in (node.left, node.right)]
        if name in sides and near & set(sides) and (source is None or node.lineno > source.lineno):
            note: Evidence = module.note(node, "the weight between two neighbours")
            return note
    return None
