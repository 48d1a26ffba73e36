from __future__ import annotations

import ast
import math
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


class EpsUnderRoot(Rule):
    """Epsilon under a square root that rounds to zero in float16.

    ## What it flags
    `torch.sqrt(x + eps)`, `torch.rsqrt(x + eps)`, `(x + eps) ** 0.5`, `(x + eps).pow(-0.5)` and
    the same with `x.clamp(min=eps)`, where `x` may be float16 and `eps` is at most 2.98e-8: hand
    written norms, Charbonnier losses, distances.

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
