from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Doubt,
    Evidence,
    Finding,
    Fix,
    Guard,
    Rule,
    Severity,
    calls,
    operators,
)

NORMS = frozenset({"norm", "vector_norm", "matrix_norm"})
QUOTIENTS = frozenset({"div", "divide", "true_divide"})
TERMS = re.compile(r"loss|iou|dice|cost|score|metric|penalty|error|kl_?div|entropy", re.I)
"""Names of functions and classes whose result is a number to look at, not an activation."""
ENDS = frozenset({"sum", "mean", "log", "item", "nanmean"})


class EpsInDenominator(Rule):
    """Epsilon in a denominator that rounds to zero in float16, or whose reciprocal overflows.

    ## What it flags
    `a / (b + eps)`, `a / b.clamp(min=eps)`, `torch.div(a, b + eps)`, `(b + eps).reciprocal()` and
    the other guards of MP301, where `b` is computed in this function, may be float16 and may come
    near 0, and `eps` is at most 1.53e-5. The constant may come from a name, a default argument,
    an attribute of the class, another module, or `torch.finfo(torch.float32)`.

    It stays silent where `b` is float32 for certain (`.float()`; a sum, norm or softmax inside a
    CUDA autocast region), is an integer or a Python number, or is bounded away from 0, for
    `torch.finfo(x.dtype)`, for bfloat16, for a norm and in front of a logarithm (MP301).

    It is only `possible` for a denominator that is an argument or an attribute itself, for what
    two arguments promote to (the union of predicted and target boxes is float32 if the targets
    are), for metrics under `no_grad`, for a sum or norm in a project that trains under autocast,
    and for an epsilon that survives where the numerator vanishes with the denominator.

    ## Why it breaks
    float16's smallest subnormal is 2**-24, about 6e-8. A guard up to 2**-25 (2.98e-8), such as
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
        "Tensor.divide", "Tensor.true_divide", "Tensor.reciprocal",
    ) | operators(ast.Div, pattern=r"\d[eE]-\d|eps|EPS|finfo|tiny|0\.0000")  # fmt: skip

    def check(self, node: ast.expr, at: Context) -> Iterator[Finding]:
        parts = _parts(node, at)
        if parts is None:
            return
        above, below = parts
        guard = Guard.of(below, node, at)
        if guard is None or guard.others or not 0 < guard.epsilon <= Guard.OVERFLOWS:
            return
        operation = at.operation(guard.operand)
        if operation is not None and operation[0] in NORMS:
            return
        half = at.half(at.value(guard.operand), at.region(node))
        if half is None or "float16" not in half.dtypes or _away(guard.operand, at):
            return
        if guard.before_log(node, at):
            return
        survives = guard.epsilon > Guard.VANISHES
        vanishing = above is not None and _vanish_together(above, guard.operand, at)
        if survives and vanishing and guard.without_gradient(node, at):
            return
        confidence = Doubt.strict(half, at.value(guard.operand), guard.operand, at)
        if survives and vanishing and confidence is not Confidence.CERTAIN:
            confidence = Confidence.POSSIBLE
        evidence = [*half.evidence]
        if not isinstance(guard.node, ast.Constant):
            evidence.append(at.note(guard.node, f"this is {guard.epsilon:g}"))
        fix, touched = self._fix(node, above, guard, vanishing, at)
        yield at.finding(
            node, _message(guard, vanishing), confidence, evidence=[*evidence, *touched], fix=fix
        )

    def _fix(
        self, node: ast.expr, above: ast.expr | None, guard: Guard, vanishing: bool, at: Context
    ) -> tuple[Fix | None, list[Evidence]]:
        """The upcast of both operands, and notes on the other statements that it touches."""
        places = [guard.operand]
        if above is not None and at.value(above).may_be_half and at.value(above).maybe_tensor:
            places.append(above)
        if any(isinstance(getattr(place, "ctx", None), ast.Store) for place in places):
            return None, []
        suffixes = dict.fromkeys(places, ".float()")
        names = ", ".join(dict.fromkeys(at.text(place) for place in places))
        title = f"divide in float32: upcast {names}"
        level, reason = Applicability.SAFE, None
        if not _is_term(node, at):
            owner = _owner(node, above, at) if vanishing else None
            if owner is not None:
                suffixes[node] = f".to({owner}.dtype)"
                title += ", and return to its dtype"
            else:
                level = Applicability.UNSAFE
                reason = "the quotient is float32 then, and a layer in half would not take it"
        edits = at.append(suffixes)
        if edits is None:
            return None, []
        statement = at.statement(node)
        touched = [
            at.note(place, "guarded here")
            for place in places
            if at.statement(place) is not statement
        ]
        return Fix(title, level, edits, reason), touched


def _parts(node: ast.expr, at: Context) -> tuple[ast.expr | None, ast.expr] | None:
    """Numerator (None: 1) and denominator."""
    if isinstance(node, ast.BinOp):
        return node.left, node.right
    if not isinstance(node, ast.Call):
        return None
    operands = list(node.args)
    if at.qualify(node.func) is None and isinstance(node.func, ast.Attribute):
        operands.insert(0, node.func.value)
    name = (at.operation(node) or ("",))[0]
    if name == "reciprocal" and operands:
        return None, operands[0]
    return (operands[0], operands[1]) if name in QUOTIENTS and len(operands) > 1 else None


def _away(operand: ast.expr, at: Context) -> bool:
    """Whether a denominator is bounded away from 0."""
    value = at.value(operand)
    return at.least(value) > Guard.OVERFLOWS or value.hi < -Guard.OVERFLOWS


def _vanish_together(above: ast.expr, below: ast.expr, at: Context) -> bool:
    """Whether a numerator is made of what its denominator is made of, as in ``x / x.sum()``."""
    return bool(_roots(above, at) & _roots(below, at))


def _roots(node: ast.expr, at: Context, depth: int = 3) -> set[str]:
    """Names that a value is made of, those behind local names included."""
    found: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and at.qualify(part) is None and part.id != "self":
            found.add(part.id)
            source = at.definition(part.id, part) if depth else None
            if source is not None:
                found |= _roots(source, at, depth - 1)
    return found


def _is_term(node: ast.expr, at: Context) -> bool:
    """Whether a quotient ends in a loss or a metric, which may be float32."""
    cls = at.function.cls.name if at.function.cls else ""
    if TERMS.search(at.function.name) or TERMS.search(cls):
        return True
    for parent in at.ancestors(node):
        if isinstance(parent, ast.Call):
            operation = at.operation(parent)
            if operation is not None and operation[0] in ENDS:
                return True
        elif isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
            return at.stays_elementwise(parent.targets[0].id)
        elif isinstance(parent, ast.stmt):
            return False
    return False


def _owner(node: ast.expr, above: ast.expr | None, at: Context) -> str | None:
    """A name in the numerator that has the quotient's dtype."""
    dtype = at.value(node).dtype
    for part in ast.walk(above) if above is not None else ():
        if isinstance(part, ast.Name) and at.value(part).dtype == dtype and at.is_tensor(part):
            return part.id
    return None


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
