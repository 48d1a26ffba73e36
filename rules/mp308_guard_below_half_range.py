from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Doubt,
    Finding,
    Guard,
    Rule,
    Severity,
    Upcast,
    calls,
    operators,
)

STEPS = {"float16": 2.0**-12, "bfloat16": 2.0**-9}
"""A limit this close to 1 rounds to 1 (half of a step below 1, ties to even)."""


class GuardBelowHalfRange(Rule):
    """Clamp whose limit half rounds to 0, or to 1, so that it guards nothing.

    ## What it flags
    `x.clamp(min=eps)`, `torch.clamp_min(x, eps)` and `torch.maximum(x, eps)` with an epsilon of at
    most 2.98e-8, `torch.finfo(torch.float32).tiny` included, where `x` may be float16; and
    `p.clamp(eps, 1 - eps)` whose upper limit rounds to 1: closer than 2.44e-4 in float16, 1.95e-3
    in bfloat16. Limits may come from names, defaults, attributes and other modules.

    Likewise a table that is cast to half before it is divided by its own maximum or sum, which its
    small entries do not live to see. `possible`: small values that are replaced by an epsilon that
    vanishes too (`x[x == 0] = 1e-8`).

    It stays silent where `x` is float32 (upcast, float32 by autocast), bounded by itself, an
    integer or a Python number, for a limit of 0, and where the clamp guards a logarithm, a
    denominator, a root or an inverse sigmoid in this function, which rules of their own report.
    A value that an argument brings is `possible` only.

    ## Why it breaks
    A limit takes the dtype of the tensor. 1e-8 is 0 in float16, so zeros pass. Next to 1 float16
    has steps of `2**-11` and bfloat16 of `2**-8`, so 1 - 1e-4 is 1 in both: behind
    `p.clamp(1e-4, 1 - 1e-4)` p is still 1, `log(1 - p)` and `atanh(p)` are -inf and inf, and the
    gradient of `acos(p)` is infinite.

    ## Example
    ```python
    cosine = torch.tanh(x.half()).clamp(-1 + 1e-6, 1 - 1e-6)
    angle = torch.acos(cosine)
    ```
    Use instead:
    ```python
    cosine = torch.tanh(x.half()).float().clamp(-1 + 1e-6, 1 - 1e-6)
    angle = torch.acos(cosine)
    ```

    ## Fix safety
    Safe where the result ends in a loss: only `.float()` is inserted, so float32 results are the
    same to the bit (float64 comes down to float32). Unsafe where it goes on as an activation: the
    result stays float32, because half does not hold the limit. There is none for
    `torch.maximum`, whose limit is a tensor that has lost it already.

    ## How to silence
    `# precision-lint: ignore[MP308] reason` or `# noqa: MP308` on the line; or choose the limit by
    `torch.finfo(x.dtype).eps`.

    ## Sources
    PyTorch, `torch.finfo` (`eps` is `2**-10` for float16 and `2**-7` for bfloat16), `torch.clamp`.
    """

    code, name = "MP308", "guard-below-half-range"
    severity, applicability = Severity.ERROR, Applicability.SAFE
    triggers = calls(
        "torch.clamp", "torch.clip", "torch.clamp_min", "torch.clamp_max", "torch.maximum",
        "Tensor.clamp", "Tensor.clip", "Tensor.clamp_min", "Tensor.clamp_max", "Tensor.maximum",
        "torch.minimum", "Tensor.minimum",
    ) | operators(
        ast.Assign, ast.Div, pattern=r"(<=?|==) *[\w.-]+\] *=|/ *[\w.]+[.(]a?(max|sum)"
    )  # fmt: skip

    def check(self, node: ast.Call | ast.Assign | ast.BinOp, at: Context) -> Iterator[Finding]:
        if isinstance(node, ast.BinOp):
            yield from _late(node, at)
            return
        if isinstance(node, ast.Assign):
            yield from _replaced(node, at)
            return
        parts = _limits(node, at)
        if parts is None:
            return
        operand, low, high = parts
        value = at.value(operand)
        half = at.half(value, at.region(node))
        if half is None:
            return
        what = _lost(low, high, value.lo, value.hi, half.dtypes)
        if what is None:
            return
        limit, dtype, becomes = what
        if becomes == "0" and any(_is_guarded(use, at) for use in [node, *_uses(node, at)]):
            return  # MP301, MP305, MP306 and others
        confidence = Doubt.strict(half, value, operand, at)
        if confidence is Confidence.LIKELY and not at.plausible:
            confidence = Confidence.POSSIBLE
        yield at.finding(
            node,
            f"limit {limit} rounds to {becomes} in {dtype}, so the clamp lets {becomes} through",
            confidence,
            evidence=half.evidence,
            fix=None if _by_tensor(node, at) else Upcast.of([operand], node, at, fits=False),
        )


def _replaced(node: ast.Assign, at: Context) -> Iterator[Finding]:
    """``x[x < eps] = eps``, a clamp in other words."""
    target = node.targets[0]
    if not isinstance(target, ast.Subscript) or not isinstance(target.slice, ast.Compare):
        return
    test = target.slice
    if not isinstance(test.ops[0], (ast.Eq, ast.Lt, ast.LtE)):
        return
    if ast.dump(test.left) != ast.dump(target.value).replace("Store()", "Load()"):
        return
    limit = _number(node.value, at)
    if limit is None or not 0 < limit <= Guard.VANISHES:
        return
    half = at.float16(at.value(test.left), at.region(test.left))
    if half is not None:
        yield at.finding(
            node,
            f"{limit:g} is 0 in float16, so that what is replaced by it stays 0",
            Confidence.POSSIBLE,
            evidence=half.evidence,
        )


def _late(node: ast.BinOp, at: Context) -> Iterator[Finding]:
    """A table that is scaled by its own maximum after its cast to half."""
    if not isinstance(node.left, ast.Name) or not isinstance(node.right, ast.Call):
        return
    called, name = node.right, node.left.id
    func = called.func
    if not isinstance(func, ast.Attribute) or func.attr not in ("max", "amax", "sum"):
        return
    over = called.args[0] if called.args and at.qualify(func) else func.value
    if not isinstance(over, ast.Name) or over.id != name:
        return
    casts = [
        (part.value, cast)
        for part in at.function.nodes
        if isinstance(part, ast.Assign)
        and part.lineno < node.lineno
        and any(isinstance(t, ast.Name) and t.id == name for t in part.targets)
        for cast in [_half_cast(part.value, at)]
    ]
    if casts and casts[-1][1] is not None:
        yield at.finding(
            node,
            f"{name} is cast to half before it is divided by its own {func.attr}: entries below "
            "6e-8 are 0 by then",
            Confidence.LIKELY,
            evidence=(at.note(casts[-1][1], "it is cast here"),),
        )


def _half_cast(node: ast.expr, at: Context) -> ast.Call | None:
    """A cast to float16 in a chain of methods, by name or by the default of a parameter."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "half":
            return node
        given = [*node.args, *(k.value for k in node.keywords if k.arg == "dtype")]
        if node.func.attr in ("type", "to", "tensor", "as_tensor"):
            for dtype in given:
                meant = at.function.defaults().get(getattr(dtype, "id", ""), dtype)
                if at.qualify(meant) in ("torch.float16", "torch.half"):
                    return node
        node = node.func.value
    return None


def _limits(node: ast.Call, at: Context) -> tuple[ast.expr, float | None, float | None] | None:
    """What is clamped, and the limits that are known."""
    operands = list(node.args)
    if at.qualify(node.func) is None and isinstance(node.func, ast.Attribute):
        operands.insert(0, node.func.value)
    operation = at.operation(node)
    if operation is None or not operands or any(isinstance(o, ast.Starred) for o in operands):
        return None
    name = operation[0]
    named = {k.arg: k.value for k in node.keywords}
    low = named.get("min")
    high = named.get("max")
    rest = operands[1:]
    if name in ("clamp_max", "minimum"):
        high = rest[0] if rest else high
    else:
        low = rest[0] if rest else low
        high = rest[1] if len(rest) > 1 else high
    return operands[0], _number(low, at), _number(high, at)


def _by_tensor(node: ast.Call, at: Context) -> bool:
    """Whether the limit is a tensor, whose own dtype has lost it."""
    return (at.operation(node) or ("",))[0] in ("maximum", "minimum")


def _number(node: ast.expr | None, at: Context) -> float | None:
    if node is None:
        return None
    value = at.value(node)
    if isinstance(value.const, (int, float)):
        return float(value.const)
    return value.lo if value.is_tensor and value.lo == value.hi else None


def _lost(
    low: float | None, high: float | None, least: float, most: float, dtypes: frozenset[str]
) -> tuple[str, str, str] | None:
    """A limit that is lost, in which dtype, and what becomes of it."""
    for dtype in ("float16", "bfloat16"):
        if dtype not in dtypes:
            continue
        step = STEPS[dtype]
        if high is not None and 1 - step <= high < 1 and most > high:
            return f"1 - {1 - high:.3g}", dtype, "1"
        if low is not None and -1 < low <= -1 + step and least < low:
            return f"-1 + {1 + low:.3g}", dtype, "-1"
        if dtype == "float16" and low is not None and 0 < low <= Guard.VANISHES and least < low:
            return f"{low:g}", dtype, "0"
    return None


def _uses(node: ast.expr, at: Context) -> Iterator[ast.expr]:
    for parent in at.ancestors(node):
        if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
            yield from (
                use
                for use in at.uses(parent.targets[0].id)
                if isinstance(use.ctx, ast.Load)
                and (use.lineno, use.col_offset) > (node.lineno, node.col_offset)
            )
        if isinstance(parent, ast.stmt):
            return


def _is_guarded(use: ast.expr, at: Context) -> bool:
    inner: ast.AST = use
    for parent in at.ancestors(use):
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, (ast.Div, ast.Pow)):
            return isinstance(parent.op, ast.Pow) or parent.right is inner
        if isinstance(parent, ast.Call):
            operation = at.operation(parent)
            if operation is not None and operation[0] in (
                "log", "log2", "log10", "log_", "sqrt", "rsqrt", "reciprocal", "div", "logit",
            ):  # fmt: skip
                return True
        if isinstance(parent, ast.stmt):
            return False
        inner = parent
    return False
