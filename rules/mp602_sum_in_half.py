from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Finding,
    Fix,
    Outgrown,
    Rule,
    Severity,
    calls,
)

PERIODIC = frozenset({"sin", "cos", "frac", "remainder", "fmod"})
TAKES_NO_FLOAT = "the result is float32 then, and a layer in half would not take it"


class SumInHalf(Rule):
    """Sum of float16 values of one sign over all elements, or over height and width.

    ## What it flags
    `x.sum()`, `x.sum(dim=(-2, -1))` and `x.cumsum(d)` that run on float16: after a cast, of what a
    region has left in half, in CPU autocast. Only values that cannot cancel (squares, absolute
    values, probabilities, masks) are `likely`, and a phase: a cumulative sum that goes into a sine
    or is taken modulo a number. Other sums are `possible`.

    It stays silent for `dtype=torch.float32`, for upcast operands, for bfloat16, inside CUDA
    autocast, which runs `sum`, `cumsum` and `prod` in float32, for `mean` and `norm`, which
    accumulate in float32, and for a sum of softmax weights, which is 1.

    ## Why it breaks
    The sum accumulates in float32, but its result has to fit into float16, which ends at 65504: a
    mask of 256 x 256 ones has the sum 65536, which is inf, and the division by the area that
    follows comes too late. `mean` divides before it rounds. Counts above 2048 are rounded too:
    2049 ones have the sum 2048.

    ## Example
    ```python
    mask = torch.sigmoid(logits.half())
    area = mask.sum()
    ```
    Use instead:
    ```python
    mask = torch.sigmoid(logits.half())
    area = mask.sum(dtype=torch.float32)
    ```
    or `mask.mean()`.

    ## Fix safety
    Safe where the sum ends in a loss or a metric: with `dtype=torch.float32` a float32 sum is the
    same to the bit. Elsewhere unsafe: the sum stays in float32, and a layer in half would not take
    it.

    ## How to silence
    `# precision-lint: ignore[MP602] reason` or `# noqa: MP602` on the line.

    ## Sources
    PyTorch, `torch.sum` (`dtype`); Automatic Mixed Precision: CUDA ops that autocast to float32.
    """

    code, name = "MP602", "sum-in-half"
    severity, applicability = Severity.WARNING, Applicability.SAFE
    triggers = calls("Tensor.sum", "torch.sum", "Tensor.cumsum", "torch.cumsum", "torch.nansum",
                     "Tensor.nansum")  # fmt: skip

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        operation = at.operation(node)
        if operation is None or any(k.arg in ("dtype", None, "out") for k in node.keywords):
            return
        name, operand = operation
        value = at.value(operand)
        half = at.float16(at.value(node), at.region(node))
        if half is None or "normalized" in value.tags:
            return
        confidence = Outgrown.reaching(half, operand, at)
        phase = _is_phase(node, at)
        over = "along a dimension" if phase else _many(node, operand, at)
        if over == "along a dimension" and not phase:
            confidence = Confidence.POSSIBLE
        if over is None or not (value.is_tensor or at.is_tensor(node)):
            return
        if _few(operand):
            return
        if (value.lo < 0 and not phase) or value.hi == 0:
            confidence = Confidence.POSSIBLE  # the terms may cancel
        if _of_exponentials(operand, at):
            confidence = Confidence.POSSIBLE  # of a softmax: as many terms as classes
        statement = at.statement(node)
        torch, imports = at.torch()
        edits = None
        if statement is not None:
            edits = at.edit.add_keyword(statement, node, "dtype", f"{torch}.float32")
        fix = None
        if edits is not None:
            ends = Outgrown.ends(node, at)
            level = Applicability.SAFE if ends else Applicability.UNSAFE
            reason = None if ends else TAKES_NO_FLOAT
            fix = Fix(f"take the {name} in float32", level, (*imports, *edits), reason)
        yield at.finding(
            node,
            f"{name} {over} in float16 is inf above 65504, as of 256 x 256 ones"
            if not phase
            else "a phase that is added up in float16 has no fraction from 2048 on, and is inf "
            "above 65504",
            confidence,
            evidence=half.evidence,
            fix=fix,
        )


def _is_phase(node: ast.Call, at: Context) -> bool:
    """Whether a cumulative sum is reduced to its fraction or goes into a sine, in this function."""
    if "cumsum" not in at.text(node.func):
        return False
    statement = at.statement(node)
    places: list[ast.expr] = [node]
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        places += [use for use in at.uses(statement.targets[0].id) if use.lineno > node.lineno]
    return any(_turns(place, at) for place in places)


def _turns(node: ast.expr, at: Context) -> bool:
    """Whether a value is taken modulo a number, or its sine or cosine is, where it stands."""
    for around in at.ancestors(node):
        match around:
            case ast.BinOp(op=ast.Mod()):
                return True
            case ast.Call():
                operation = at.operation(around)
                if operation is not None and operation[0] in PERIODIC:
                    return True
            case ast.Subscript() | ast.stmt():
                return False
    return False


def _of_exponentials(node: ast.expr, at: Context) -> bool:
    """Whether a value is what ``exp`` gives, by a local name too."""
    source = at.definition(node.id, node) if isinstance(node, ast.Name) else node
    operation = at.operation(source) if isinstance(source, ast.Call) else None
    return operation is not None and operation[0] == "exp"


def _few(node: ast.expr) -> bool:
    """Whether a slice picks so few elements that their sum is one of them."""
    return any(
        isinstance(part, ast.Slice)
        and isinstance(part.upper, ast.Constant)
        and part.lower is None
        and part.upper.value in (0, 1)
        for part in ast.walk(node)
    )


def _many(node: ast.Call, operand: ast.expr, at: Context) -> str | None:
    """Over what a sum runs, if that may be many elements; None: over one dimension."""
    if "cumsum" in at.text(node.func) and at.value(operand).lo >= 0:
        return "along a dimension"
    given = [a for a in node.args if a is not operand]
    given += [k.value for k in node.keywords if k.arg in ("dim", "axis")]
    if not given:
        return "of all elements" if at.value(operand).ndim != 0 else None
    dims = at.value(given[0])
    if isinstance(given[0], (ast.Tuple, ast.List)):
        found = {at.value(item).const for item in given[0].elts}
        return "over height and width" if len(found) > 1 else None
    if {"spatial-last"} & at.value(operand).tags and dims.const == -1:
        return "over all pixels"
    return None
