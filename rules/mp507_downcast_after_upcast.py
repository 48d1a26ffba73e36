from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Care,
    Confidence,
    Context,
    Finding,
    Fix,
    Provenance,
    Rule,
    Severity,
    calls,
)

LARGEST = 65504.0
GROWING = {
    "sum": "a sum", "nansum": "a sum", "cumsum": "a cumulative sum", "prod": "a product",
    "cumprod": "a product", "exp": "an exponential", "square": "a square", "pow": "a power",
    "cdist": "a distance", "pdist": "a distance", "box_area": "an area",
}  # fmt: skip
"""Operations whose results leave float16 where their operands are in it."""
SHAPES = frozenset({
    "unsqueeze", "squeeze", "view", "reshape", "permute", "transpose", "contiguous", "detach",
    "expand", "flatten", "clone",
})  # fmt: skip
SIDES = re.compile(r"(?<![a-z])(w|h|ws|hs|widths?|heights?)(?![a-z])")
DISTANCES = frozenset({"cdist", "pairwise_distance", "matmul", "bmm", "mm"})
"""Operations on two tensors whose result grows with what they are given."""
BOUNDED = frozenset({"normalized", "unit", "homogeneous"})


class DowncastAfterUpcast(Rule):
    """Sum, area or squared distance that is computed in float32 and brought back to float16.

    ## What it flags
    `.half()`, `.to(torch.float16)`, `.to(x.dtype)` and `.type_as(x)` directly on a result that
    grows beyond its operands: sums over large dimensions, areas of boxes, squares and powers,
    exponentials, distances, where the operands were upcast on purpose, or autocast ran the
    operation in float32.

    It stays silent where only bfloat16 is in question, which has float32's range; where the result
    is provably below 65504, normalised, or an average (`mean`, `softmax`, `sum(...) / n`); on sums
    of weights and masks, and on exponentials of what is below 0.

    ## Why it breaks
    The upcast prevented an overflow that the downcast brings about: from 65520 on a float16 number
    is inf. An area of 300 x 300 pixels is 90,000, so is the square of a difference of 300, and so
    is the sum of 256 x 256 activations of 1.4.

    ## Example
    ```python
    area = (widths.float() * heights.float()).to(boxes.dtype)
    ```
    Use instead:
    ```python
    area = widths.float() * heights.float()
    ```

    ## Fix safety
    Safe: in a float32 run the cast that goes away does nothing. There is no fix where the result
    goes on into a layer, which wants its own dtype, and where the code names float16 itself, which
    rounds a float32 run as well: divide or normalise before the cast.

    ## How to silence
    `# precision-lint: ignore[MP507] reason` or `# noqa: MP507` on the line.

    ## Sources
    IEEE 754 binary16 (largest number 65504); PyTorch, `torch.finfo`.
    """

    code = "MP507"
    name = "downcast-after-upcast"
    severity = Severity.WARNING
    applicability = Applicability.SAFE
    triggers = calls("Tensor.half", "Tensor.to", "Tensor.type_as")

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        if not isinstance(node.func, ast.Attribute) or Care.in_test(at):
            return
        if node.func.attr == "half" and (node.args or node.keywords):
            return
        region = at.region(node)
        cast, wide = at.value(node), at.value(node.func.value)
        if wide.dtype not in ("float32", "float64") or wide.dtype == cast.dtype:
            return
        half = at.half(cast, region)
        if half is None or "float16" not in half.dtypes or wide.hi <= LARGEST:
            return
        found = _growing(node.func.value, at)
        if found is None:
            return
        operation, what = found
        upcast = _upcast(operation, at)
        if upcast is None and not at.region(operation).on:
            return
        confidence = min(half.confidence, Confidence.LIKELY, key=lambda c: c.rank)
        if cast.variable and not (at.plausible or half.told):
            confidence = Confidence.POSSIBLE
        if what == "a distance" or (what == "a sum" and not _over_many(operation, at)):
            confidence = Confidence.POSSIBLE  # of few terms, as far as one can see
        if what == "a cumulative sum" and at.value(operation).lo < 0:
            confidence = Confidence.POSSIBLE  # terms of both signs cancel
        notes = [*half.evidence]
        if upcast is not None:
            notes.append(at.note(upcast, "upcast here"))
        yield at.finding(
            node,
            f"{what} is computed in float32 and brought back to float16: inf from 65520 on",
            confidence,
            evidence=dict.fromkeys(notes),
            fix=self._fix(node, at) if cast.variable else None,
        )

    def _fix(self, node: ast.Call, at: Context) -> Fix | None:
        statement = at.statement(node)
        if statement is None or at.reaches_layer(node) or not isinstance(node.func, ast.Attribute):
            return None
        edits = at.edit.exchange(statement, {node: ""})
        if edits is None:
            return None
        return Fix("keep it in float32", Applicability.SAFE, edits)


def _growing(node: ast.expr, at: Context) -> tuple[ast.Call | ast.BinOp, str] | None:
    """The operation that made a value, and what it makes, if that may grow."""
    for _ in range(6):
        if isinstance(node, ast.Name):
            source = at.definition(node.id, node)
            if source is None:
                return None
            node = source
        elif isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call):
            found = at.operation(node)
            name = found[0] if found is not None else ""
            if not name and isinstance(node.func, ast.Attribute):
                name = node.func.attr
            if (at.qualify(node.func) or "").endswith(".box_area"):
                return node, GROWING["box_area"]
            if found is not None and name in GROWING:
                return (node, GROWING[name]) if _unbounded(name, node, found[1], at) else None
            if found is None or name not in SHAPES:
                return None
            node = found[1]
        elif isinstance(node, ast.BinOp):
            return _product(node, at)
        else:
            return None
    return None


def _product(node: ast.BinOp, at: Context) -> tuple[ast.BinOp, str] | None:
    if isinstance(node.op, ast.Pow):
        power = at.value(node.right).const
        grows = isinstance(power, (int, float)) and power >= 2
        return (node, "a square") if grows and not _small(node.left, at) else None
    if not isinstance(node.op, ast.Mult):
        return None
    sides = [_difference(side, at) for side in (node.left, node.right)]
    if all(sides) or {_side(side, at) for side in (node.left, node.right)} == {"w", "h"}:
        return node, "an area"
    return None


def _side(node: ast.expr, at: Context) -> str:
    """``w`` or ``h``: which side of a box an expression names; empty: none, or more than it."""
    found = {word[0] for word in SIDES.findall(at.text(node).lower())}
    return found.pop() if len(found) == 1 else ""


def _difference(node: ast.expr, at: Context) -> bool:
    """Whether an expression is a difference of two coordinates, perhaps clamped."""
    if isinstance(node, ast.Name):
        source = at.definition(node.id, node)
        return source is not None and _difference(source, at)
    if isinstance(node, ast.Call):
        found = at.operation(node)
        return (
            found is not None and found[0] in ("clamp", "float", "to") and _difference(found[1], at)
        )
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub):
        return False
    return all(isinstance(side, (ast.Subscript, ast.Call)) for side in (node.left, node.right))


def _small(node: ast.expr, at: Context) -> bool:
    value = at.value(node)
    return (value.lo > -256 and value.hi < 256) or bool(BOUNDED & value.tags)


def _unbounded(name: str, node: ast.Call, operand: ast.expr, at: Context) -> bool:
    """Whether the result of an operation may leave float16."""
    value = at.value(operand)
    if value.dtype in ("int", "bool") or BOUNDED & value.tags:
        return False
    if name == "exp":
        return value.hi > 11.08 and not _limited(operand, at)
    if name == "prod" or name == "cumprod":
        return not (value.lo >= -1 and value.hi <= 1)
    if name == "pow":
        power = at.value(node.args[-1]).const if node.args else None
        if not isinstance(power, (int, float)) or power < 2:
            return False
    if name in ("pow", "square"):
        return not _small(operand, at)
    if name in ("sum", "nansum", "cumsum"):
        text = at.text(operand).lower()
        return re.search(r"mask|weight|prob|valid|count|gate", text) is None
    return True


def _limited(operand: ast.expr, at: Context) -> bool:
    """Whether an exponent is clamped from above, to a limit that is not known."""
    source = at.definition(operand.id, operand) if isinstance(operand, ast.Name) else operand
    found = at.operation(source) if isinstance(source, ast.Call) else None
    if found is None or not isinstance(source, ast.Call) or found[0] not in ("clamp", "clip"):
        return False
    given = [a for a in source.args if a is not found[1]]
    limit = next((k.value for k in source.keywords if k.arg == "max"), None)
    limit = limit or (given[1] if len(given) > 1 else None)
    return limit is not None and at.value(limit).const is None


def _over_many(operation: ast.expr, at: Context) -> bool:
    """Whether a sum is of squares, or takes in all elements or an image."""
    if not isinstance(operation, ast.Call):
        return True
    found = at.operation(operation)
    if found is None:
        return True
    given = [a for a in operation.args if a is not found[1]]
    dims = [k.value for k in operation.keywords if k.arg in ("dim", "axis")] + given[:1]
    square = any(
        (isinstance(o, ast.BinOp) and isinstance(o.op, ast.Pow))
        or (isinstance(o, ast.Call) and (at.operation(o) or ("",))[0] in ("square", "pow"))
        for o in Provenance.of(found[1], at, casts=True)
    )
    whole = not dims and not any(k.arg == "dim" for k in operation.keywords)
    return square or whole or any(isinstance(d, ast.Tuple) and len(d.elts) > 1 for d in dims)


def _upcast(operation: ast.expr, at: Context) -> ast.expr | None:
    """Where the operands were made float32 in so many words."""
    if isinstance(operation, ast.Call):
        for keyword in operation.keywords:
            if keyword.arg == "dtype" and at.value(keyword.value).dtype == "float32":
                return keyword.value
    for origin in Provenance.of(operation, at, casts=True):
        found = at.operation(origin) if isinstance(origin, ast.Call) else None
        pair = found is not None and found[0] in DISTANCES
        for part in (origin, *(origin.args if pair and isinstance(origin, ast.Call) else ())):
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
                wide = at.value(part).dtype == "float32" and "cast" in at.value(part).tags
                if part.func.attr in ("float", "to") and wide:
                    return part
    return None
