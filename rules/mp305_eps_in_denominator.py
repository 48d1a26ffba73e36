from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import cast

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Doubt,
    Finding,
    Guard,
    Provenance,
    Quotient,
    Region,
    Rule,
    Severity,
    calls,
    operators,
)

ACTIVATIONS = frozenset({
    "sigmoid", "softmax", "relu", "exp", "tanh", "softplus", "elu", "gelu", "silu", "leaky_relu",
})  # fmt: skip
"""What a model's output goes through, and data does not."""


class EpsInDenominator(Rule):
    """Epsilon in a denominator that rounds to zero in float16, or whose reciprocal overflows.

    ## What it flags
    `a / (b + eps)`, `a / b.clamp(min=eps)`, `torch.div(a, b + eps)`, `(b + eps).reciprocal()`,
    `a /= b + eps`, `a.div_(b + eps)` and the other guards of MP301, where `b` is computed in this
    function, may be float16 and may come near 0, and `eps` is at most 1.53e-5. The constant may
    come from a name, a default argument, an attribute of the class, another module, the default of
    a configuration (`config.get("eps", 1e-8)`), or `torch.finfo(torch.float32)`.

    It stays silent where `b` is float32 for certain (`.float()`; a sum, norm or softmax inside a
    CUDA autocast region), is an integer or a Python number, or is bounded away from 0, for
    `torch.finfo(x.dtype)`, for bfloat16, for a norm (MP307) and in front of a logarithm (MP301).

    It is only `possible` for a denominator that is an argument or an attribute itself, for what two
    arguments promote to (the union of predicted and target boxes is float32 if the targets are),
    for metrics under `no_grad`, for a sum or norm in a project that trains under autocast and what
    no layer or activation function in sight made there (statistics of features), and for an epsilon
    that survives where the numerator vanishes with the denominator.

    ## Why it breaks
    float16's smallest subnormal is `2**-24`, about 6e-8. A guard up to `2**-25` (2.98e-8), such as
    1e-8, rounds to 0: 0/0 is nan and a/0 is inf. A guard between 2.98e-8 and 1.53e-5, such as 1e-7
    or 1e-6, survives, but its reciprocal exceeds 65504: a quotient whose numerator does not
    vanish too is inf, and so is the gradient 1/eps of one whose numerator does.

    ## Example
    ```python
    attention = torch.relu(scores)
    peak = attention.amax(dim=-1, keepdim=True)
    weights = attention / (peak + 1e-8)
    ```
    Use instead:
    ```python
    attention = torch.relu(scores)
    peak = attention.amax(dim=-1, keepdim=True)
    weights = (attention.float() / (peak.float() + 1e-8)).to(attention.dtype)
    ```

    ## Fix safety
    Safe: `.float()` on both operands, so float32 results are the same to the bit (float64 comes
    down to float32). The quotient goes back to the dtype of its numerator where it goes on as an
    activation. Where it goes on and may exceed half's range itself, as `1 / (x + 1e-8)`, the fix
    is unsafe: the result stays float32, and a layer in pure half would not take it. The backward
    pass is finite only while loss scale times gradient over epsilon stays below 65504.

    ## How to silence
    `# precision-lint: ignore[MP305] reason` or `# noqa: MP305` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision: CUDA op-specific behavior (`div` is not listed and runs in
    the dtype of its operands; `sum`, `norm` and `softmax` run in float32).
    """

    code, name = "MP305", "eps-in-denominator"
    severity, applicability = Severity.ERROR, Applicability.SAFE
    triggers = calls(
        "torch.div", "torch.divide", "torch.true_divide", "torch.reciprocal", "Tensor.div",
        "Tensor.divide", "Tensor.true_divide", "Tensor.reciprocal", "Tensor.div_",
        "Tensor.divide_", "Tensor.reciprocal_",
    ) | operators(
        ast.Div, ast.AugAssign, pattern=r"\d[eE]-\d|eps|EPS|finfo|tiny|0\.0000"
    )  # fmt: skip

    def check(self, place: ast.expr | ast.AugAssign, at: Context) -> Iterator[Finding]:
        node, region = _divided(place, at)
        if node is None:
            return
        quotient = Quotient.of(node, at)
        if quotient is None or quotient.guard.epsilon > Guard.OVERFLOWS:
            return
        guard = quotient.guard
        if quotient.by_norm(at):
            return  # MP307
        value = at.value(guard.operand)
        half = at.float16(value, region)
        if half is None or quotient.away(at):
            return
        if guard.before_log(node, at):
            return  # MP301
        vanishing = quotient.vanishing(at)
        rare = guard.epsilon > Guard.VANISHES and vanishing
        if rare and guard.without_gradient(node, at):
            return
        confidence = Doubt.strict(half, value, guard.operand, at)
        known = at.region(node).known or half.confidence is Confidence.CERTAIN or half.outside
        if at.project.autocast is not None and not known and not _is_activation(guard.operand, at):
            confidence = Confidence.POSSIBLE  # features or statistics of data, as a rule
        if (rare or _capped(node, at)) and confidence is not Confidence.CERTAIN:
            confidence = Confidence.POSSIBLE
        evidence = [*half.evidence]
        if not isinstance(guard.node, ast.Constant):
            evidence.append(at.note(guard.node, f"this is {guard.epsilon:g}"))
        fix, touched = quotient.fix(at)
        yield at.finding(
            node, _message(guard, vanishing), confidence, evidence=[*evidence, *touched], fix=fix
        )


def _divided(place: ast.expr | ast.AugAssign, at: Context) -> tuple[ast.expr | None, Region]:
    """The quotient, also that of ``a /= b``; and the region that it runs in."""
    if not isinstance(place, ast.AugAssign):
        return place, at.region(place)
    regions = at.analysis.regions
    inner = next((part for part in ast.walk(place.value) if id(part) in regions), place.value)
    region = at.region(cast(ast.expr, inner))
    if not isinstance(place.op, ast.Div):
        return None, region
    made = ast.BinOp(place.target, ast.Div(), place.value)
    return ast.copy_location(made, place), region


def _is_activation(node: ast.expr, at: Context) -> bool:
    """Whether a layer, a product or an activation function of this function made a value."""
    if Provenance.computed(node, at) is not None:
        return True
    found = (at.operation(origin) for origin in Provenance.of(node, at))
    return any(operation is not None and operation[0] in ACTIVATIONS for operation in found)


def _capped(node: ast.expr, at: Context) -> bool:
    """Whether the quotient is clamped from above at once, so that an inf goes no further."""
    parent = at.parents.get(id(node))
    call = at.parents.get(id(parent)) if isinstance(parent, ast.Attribute) else parent
    found = at.operation(call) if isinstance(call, ast.Call) else None
    if found is None or found[1] is not node or not isinstance(call, ast.Call):
        return False
    given = [a for a in call.args if a is not node]
    capped = len(given) > 1 or any(k.arg == "max" for k in call.keywords)
    return found[0] == "nan_to_num" or (found[0] in ("clamp", "clip") and capped)


def _message(guard: Guard, vanishing: bool) -> str:
    what = f"epsilon {guard.epsilon:g} in a denominator"
    if guard.epsilon <= Guard.VANISHES:
        return (
            f"{what} rounds to 0 in float16, so division by 0 gives {'nan' if vanishing else 'inf'}"
        )
    harmed = "its gradient is" if vanishing else "quotient and gradient are"
    return (
        f"{what} survives in float16, but its reciprocal {1 / guard.epsilon:.3g} exceeds 65504, "
        f"so {harmed} inf"
    )
