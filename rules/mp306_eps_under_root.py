from __future__ import annotations

import ast
import math
import re
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

POWERS = {0.5: "sqrt", -0.5: "rsqrt"}
LARGEST = 65504.0
SMALLEST = 2.0**-24
COSINE = re.compile(r"(^|_)(cos|cosines?|cos_?\w*theta\w*|sims?|similarit\w+)(_|$)|cos(ine)?_sim")
"""Names of cosines."""
PRODUCTS = ("matmul", "mm", "bmm", "einsum", "linear")
BOUNDS = frozenset({"clamp", "clamp_", "clip", "clamp_max", "minimum", "hardtanh"})


class EpsUnderRoot(Rule):
    """Epsilon under a square root that rounds to zero in float16.

    ## What it flags
    `torch.sqrt(x + eps)`, `torch.rsqrt(x + eps)`, `(x + eps) ** 0.5`, `(x + eps).pow(-0.5)` and
    the same with `x.clamp(min=eps)`, where `x` may be float16 and `eps` is at most 2.98e-8: hand
    written norms, Charbonnier losses, distances.

    Also `sqrt(1 - c ** 2)` and `sqrt(2 - 2 * c + eps)` of cosines that are half (a matrix product,
    a similarity), where nothing bounds the cosine or the difference: a cosine of half unit vectors
    comes out as 1.001 at times, and an epsilon below 1e-3 does not cover that.

    It stays silent where `x` is float32 for certain (upcast; a sum, `pow` or exp inside a CUDA
    autocast region), where it is bounded away from 0, for `torch.finfo(x.dtype)`, for bfloat16,
    and for a plain root whose result has no gradient.

    It is only `possible` for an epsilon from 2.98e-8 to 1.53e-5, where the root holds and its
    gradient may not, for a value that an argument or an attribute brings, and in a project that
    trains under autocast for what autocast makes float32.

    ## Why it breaks
    float16's smallest subnormal is `2**-24`, about 6e-8, so 1e-8 rounds to 0. `rsqrt(0)` is inf.
    `sqrt(0)` is 0, which a division turns into inf or nan, and its gradient is 1/0: the square of
    a difference that is 0 (two equal pixels) gets the gradient inf * 0, which is nan. autocast
    does not help: `sqrt` is not on its lists, and for `rsqrt`, which is, the sum is made in half
    before. An epsilon of 1e-6 survives; the gradient of `rsqrt` at 0, 0.5 * eps ** -1.5, is 5e8.

    ## Example
    ```python
    diff = (output - target).half()
    error = torch.sqrt(diff * diff + 1e-8).mean()
    ```
    Use instead:
    ```python
    diff = (output - target).half()
    error = torch.sqrt(diff.float() * diff.float() + 1e-8).mean()
    ```

    ## Fix safety
    Safe: only `.float()` is inserted, in front of the squares where they are in sight, so float32
    results are the same to the bit (float64 comes down to float32). A root that goes on as an
    activation returns to its dtype; where it may exceed half's range (`rsqrt` of less than
    2.3e-10) it cannot, and the fix is unsafe.

    ## How to silence
    `# precision-lint: ignore[MP306] reason` or `# noqa: MP306` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision: CUDA op-specific behavior (`rsqrt` and `pow` run in
    float32, `sqrt`, `var`, `add` and `mul` are not listed).
    """

    code, name = "MP306", "eps-under-root"
    severity, applicability = Severity.WARNING, Applicability.SAFE
    triggers = calls(
        "torch.sqrt", "torch.rsqrt", "torch.pow", "Tensor.sqrt", "Tensor.rsqrt", "Tensor.pow",
        "Tensor.sqrt_", "Tensor.rsqrt_",
    ) | operators(ast.Pow, pattern=r"\*\*")  # fmt: skip

    def check(self, node: ast.expr, at: Context) -> Iterator[Finding]:
        parts = _root(node, at)
        if parts is None:
            return
        name, argument = parts
        cosine = _cosine(argument, at)
        if cosine is not None:
            yield from _cancels(node, name, cosine, at)
            return
        guard = Guard.of(argument, node, at)
        if guard is None or guard.others or not 0 < guard.epsilon <= Guard.OVERFLOWS:
            return
        value = at.value(guard.operand)
        half = at.float16(value, at.region(node))
        if half is None or at.least(value) > Guard.OVERFLOWS:
            return
        survives = guard.epsilon > Guard.VANISHES
        divides = _divides(node, at)
        if survives and name == "sqrt" and not divides:
            return  # its gradient at 0 is at most 2900
        if (name == "sqrt" or survives) and not divides and guard.without_gradient(node, at):
            return
        confidence = Doubt.strict(half, value, guard.operand, at)
        if survives and confidence is not Confidence.CERTAIN:
            confidence = Confidence.POSSIBLE
        evidence = [*half.evidence]
        if not isinstance(guard.node, ast.Constant):
            evidence.append(at.note(guard.node, f"this is {guard.epsilon:g}"))
        places = [leaf for leaf, _ in guard.upcasts(at)]
        root = math.sqrt(guard.epsilon)
        fits = 1 / root <= LARGEST if name == "rsqrt" else root >= SMALLEST
        fix = Upcast.of(places, node, at, fits=fits) if places else None
        statement = at.statement(node)
        evidence += [
            at.note(place, "made of this")
            for place in places
            if at.statement(place) is not statement
        ]
        yield at.finding(
            node, _message(name, guard.epsilon), confidence, evidence=evidence, fix=fix
        )


def _cancels(node: ast.expr, name: str, cosine: ast.expr, at: Context) -> Iterator[Finding]:
    """A difference that is 0 for equal directions, and below it by the rounding of the cosine."""
    value = at.value(cosine)
    region = at.region(cosine)
    half = at.half(value, region) or at.float16(value, region)
    if half is None or not value.maybe_tensor:
        return
    source = at.definition(cosine.id, cosine) if isinstance(cosine, ast.Name) else None
    made = source if source is not None else cosine
    step = "0.001" if "float16" in half.dtypes else "0.0078"
    yield at.finding(
        node,
        f"{' '.join(at.text(cosine).split())[:40]} may round to 1 + {step} in {half.dtype}, where "
        f"{name} of the difference is nan",
        min(Doubt.strict(half, value, made, at), Confidence.LIKELY, key=lambda found: found.rank),
        evidence=half.evidence,
    )


def _cosine(argument: ast.expr, at: Context) -> ast.expr | None:
    """The cosine ``c`` in ``1 - c ** 2 + eps`` and ``2 - 2 * c + eps``, where nothing bounds it."""
    node, least = argument, 0.0
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        least, node = _number(node.right, at), node.left
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub):
        return None
    whole, factor, cosine = _number(node.left, at), 1.0, node.right
    if isinstance(cosine, ast.BinOp) and isinstance(cosine.op, ast.Mult):
        for number, other in ((cosine.left, cosine.right), (cosine.right, cosine.left)):
            if _number(number, at):
                factor, cosine = _number(number, at), other
                break
    if whole <= 0 or not 0 <= whole - factor + least < 1e-3 * factor:
        return None
    base = _squared(cosine, at)
    while isinstance(base, ast.Subscript):
        base = base.value
    source = at.definition(base.id, base) if isinstance(base, ast.Name) else base
    operation = at.operation(source) if isinstance(source, ast.Call) else None
    if operation is not None and operation[0] in BOUNDS:
        return None
    made = isinstance(source, ast.BinOp) and isinstance(source.op, ast.MatMult)
    made |= operation is not None and operation[0] in (*PRODUCTS, "cosine_similarity")
    named = isinstance(base, (ast.Name, ast.Attribute)) and COSINE.search(
        at.text(base).rpartition(".")[2].lower()
    )
    return base if made or named else None


def _squared(node: ast.expr, at: Context) -> ast.expr:
    """``c`` of ``c ** 2``, ``c * c``, ``c.pow(2)``; anything else is itself."""
    match node:
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=2 | 2.0)):
            return left
        case ast.BinOp(left=left, op=ast.Mult(), right=right) if at.text(left) == at.text(right):
            return left
        case ast.Call():
            operation = at.operation(node)
            if operation is not None and operation[0] in ("pow", "square"):
                return operation[1]
    return node


def _root(node: ast.expr, at: Context) -> tuple[str, ast.expr] | None:
    """``sqrt`` or ``rsqrt``, and what it is taken of."""
    if isinstance(node, ast.BinOp):
        name = POWERS.get(_number(node.right, at))
        return (name, node.left) if name else None
    operation = at.operation(node)
    if operation is None or not isinstance(node, ast.Call):
        return None
    name, argument = operation
    if name == "pow":
        given = node.args[1:] if at.qualify(node.func) is not None else node.args
        name = POWERS.get(_number(given[0], at), "") if given else ""
    name = name.rstrip("_")
    return (name, argument) if name in ("sqrt", "rsqrt") else None


def _number(node: ast.expr, at: Context) -> float:
    const = node.value if isinstance(node, ast.Constant) else at.value(node).const
    return float(const) if isinstance(const, (int, float)) else 0.0


def _divides(node: ast.expr, at: Context) -> bool:
    """Whether a root is a denominator."""
    inner: ast.AST = node
    for parent in at.ancestors(node):
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Div):
            return parent.right is inner
        if isinstance(parent, ast.stmt):
            break
        inner = parent
    return False


def _message(name: str, epsilon: float) -> str:
    if epsilon > Guard.VANISHES:
        return (
            f"epsilon {epsilon:g} under {name} survives in float16, but the gradient of its "
            f"reciprocal at 0, {0.5 * epsilon**-1.5:.3g}, exceeds 65504"
        )
    fate = "gives inf at 0" if name == "rsqrt" else "has an infinite gradient at 0"
    return f"epsilon {epsilon:g} under {name} rounds to 0 in float16, so {name} {fate}"
