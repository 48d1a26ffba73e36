from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from precision_lint.api import (
    Applicability,
    Care,
    Confidence,
    Context,
    Doubt,
    Evidence,
    Finding,
    Guard,
    Half,
    Helper,
    LogOdds,
    Noise,
    Rule,
    Severity,
    Value,
    operators,
)

LOGARITHMS = frozenset({"log", "log2", "log10", "log_"})
NORMAL = 2.0**-126
"""float32's smallest normal number: below it are subnormals, which some devices flush to 0."""
NARROW = Guard.OVERFLOWS / 2
"""A clamp from here on lets hardly any value through whose reciprocal overflows."""


class EpsBeforeLog(Rule):
    """Epsilon before a logarithm that rounds to zero in float16, or whose reciprocal overflows.

    ## What it flags
    `log`, `log2` and `log10` of `x + eps`, `x.clamp(min=eps)`, `torch.maximum(x, eps)`,
    `torch.where(x > eps, x, eps)`, `x.masked_fill(x == 0, eps)` or `a / (b + eps)` where `x` may
    be float16 and `eps` is at most 1.53e-5. The constant may come from a name, a default
    argument, an attribute of the class, or the machine limits of numpy and `sys`. A sigmoid, a
    softmax or one minus it counts as guarded by 0 where nothing guards it. One minus a sigmoid
    is MP302's, the logarithm of a sigmoid in one expression MP303's, an inverse sigmoid MP309's.

    A function that does nothing but that (`def log(t, eps=1e-12)`) is reported where it is called
    with a half value, which is only `possible` unless the caller asks for a dtype.

    It stays silent where the value is float32 for certain (`.float()` before the addition; a
    softmax, exp, sum or norm inside the same CUDA autocast region, which runs in float32), where
    the value is bounded away from zero, for `torch.finfo(x.dtype)`, for a surviving epsilon where
    no gradient passes (detached, under `no_grad`, only compared or rounded) or `x` itself is the
    factor of the logarithm (`x * log(x + 1e-7)`, whose gradient is bounded), and for bfloat16,
    whose range is that of float32, except for `log(1 - p)`: `1 - p` is 0 there from logits of 6.3
    on.

    It is only `possible` where a project that trains under autocast would have to run in pure half
    (the value is a softmax, exp or sum), where the name says that a value comes from the data
    (`gt`, `target`, `prior`, `sigma`), for a cost without gradient whose complement MP302 reports,
    for a clamp from 7.6e-6 on, which stops nearly all large gradients, and for a subnormal constant
    such as 1e-45 next to float32 values.

    ## Why it breaks
    float16's smallest subnormal is `2**-24`, about 6e-8. A guard up to `2**-25` (2.98e-8), such as
    1e-8, rounds to 0: the sum is still 0 and the logarithm is -inf, under CUDA autocast too,
    because the addition runs in half *before* `log` is cast up. A guard between 2.98e-8 and
    1.53e-5, such as 1e-7 or 1e-6, survives, so the forward pass is finite, but the gradient 1/eps
    exceeds 65504 and is inf. `clamp(min=1e-6)` on a half value is the second kind: it cures the
    loss and leaves the gradient infinite. Both thresholds hold at loss scale 1 and grow with it.

    ## Example
    ```python
    p = torch.sigmoid(logits)
    loss = -torch.log(p + 1e-8)
    ```
    Use instead:
    ```python
    p = torch.sigmoid(logits.float())
    loss = -torch.log(p + 1e-8)
    ```

    ## Fix safety
    Safe: only `.float()` is inserted, so float32 results are the same to the bit (float64
    values come down to float32). It goes on the argument of the operation that produces the
    probability where that is in sight. Where the half value comes from elsewhere it goes on the
    value itself: the forward pass is then finite, but a gradient of 1/eps still overflows on
    its way back into the half value. For an epsilon that survives (1e-7) this would cure
    nothing, so there the fix is only shown: upcast at the origin, or use `log_softmax`,
    `logsigmoid` or `logsumexp`.

    ## How to silence
    `# precision-lint: ignore[MP301] reason` or `# noqa: MP301` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision: CUDA op-specific behavior (`add` is not listed, `log` runs
    in float32). An Empirical Study on Numerical Bugs in Deep Learning Programs, ASE 2022.
    """

    code = "MP301"
    name = "eps-before-log"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = operators(ast.Call, pattern=r"log\w*\(")

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        qualified = at.qualify(node.func)
        if isinstance(node.func, ast.Name) and qualified is None and "log" in node.func.id:
            yield from _by_helper(node, at)
            return
        argument = _argument(node, at)
        if argument is None or not _is_log(node, qualified):
            return
        guard = Guard.of(argument, node, at)
        if guard is None or not 0 <= guard.epsilon <= Guard.OVERFLOWS:
            return
        if guard.complements(at) == "sigmoid" and not guard.others:
            return  # MP302
        produced = at.operation(argument)
        if produced is not None and produced[0] in ("sigmoid", "softmax") and _is_natural(node):
            return  # MP303
        if guard.others and LogOdds.of(argument, node, at) is not None:
            return  # MP309
        if Noise.behind(guard.operand, at) is not None:
            return  # MP608
        if _bounded_after(node, at):
            return
        half = _half(guard, node, at)
        if half is None:
            wide = all(at.value(o).dtype in ("float32", "bool", "int") for o in guard.operands)
            if wide and 0 < guard.epsilon < NORMAL and at.project.evidence:
                yield self._subnormal(guard, node, at)
            return
        survives = guard.epsilon > Guard.VANISHES and not guard.others
        if survives and (guard.without_gradient(node, at) or _weighted(guard.operand, node, at)):
            return  # only the gradient is harmed, or a quotient
        call = at.text(node.func).rpartition(".")[2]
        evidence = [*half.evidence]
        if not isinstance(guard.node, ast.Constant) and guard.epsilon:
            evidence.append(at.note(guard.node, f"this is {guard.epsilon:g}"))
        yield at.finding(
            node,
            f"{_subject(guard)} before {call} {_fate(guard, half)}",
            half.confidence,
            evidence=[*evidence, *self._origin(guard, at)],
            fix=guard.fix(node, at),
        )

    def _subnormal(self, guard: Guard, node: ast.Call, at: Context) -> Finding:
        return at.finding(
            node,
            f"epsilon {guard.epsilon:g} before log is subnormal even in float32: it is 0 in half "
            "and where subnormals are flushed, so log of 0 gives -inf",
            Confidence.POSSIBLE,
            evidence=at.project.evidence[:1],
        )

    def _origin(self, guard: Guard, at: Context) -> list[Evidence]:
        producer = guard.made(at)
        return [at.note(producer, "the guarded value is made here")] if producer else []


def _half(guard: Guard, node: ast.Call, at: Context) -> Half | None:
    """Whether a value that may come near zero is half where it is guarded."""
    region = at.region(node)
    harmed = {"float16"} if guard.epsilon or not guard.complement else {"float16", "bfloat16"}
    found: list[Half] = []
    for operand in guard.operands:
        value = at.value(operand)
        if at.least(value) > Guard.OVERFLOWS:
            continue
        half = at.half(value, region)
        if half is not None and half.dtypes & harmed:
            found.append(replace(half, confidence=_sure(half, value, operand, guard, at)))
    return max(found, key=lambda h: h.confidence.rank) if found else None


def _sure(half: Half, value: Value, operand: ast.expr, guard: Guard, at: Context) -> Confidence:
    """Confidence, lowered where the value is half only in a way that the code does not suggest."""
    if half.confidence is Confidence.CERTAIN or half.outside:
        return half.confidence
    if guard.clamped and guard.epsilon > NARROW and not guard.others:
        return Confidence.POSSIBLE
    if value.variable and isinstance(operand, ast.Name) and _only_logs(at):
        return Confidence.POSSIBLE
    if at.without_gradient and at.mentions(r"\bnan_to_num\b"):
        return Confidence.POSSIBLE  # a cost, whose infinities are seen to
    named = re.search(r"cost|match|assign", at.function.qualname, re.IGNORECASE)
    if (at.without_gradient or named) and _is_beside_complement(operand, guard, at):
        return Confidence.POSSIBLE  # a cost of +inf only forbids; that of the complement is MP302's
    return Doubt.lowered(half, value, operand, at)


def _is_beside_complement(operand: ast.expr, guard: Guard, at: Context) -> bool:
    """Whether a sigmoid's logarithm stands beside that of one minus it, as in a focal cost."""
    maker = guard.made(at)
    operation = at.operation(maker) if maker is not None and not guard.complement else None
    if operation is None or operation[0] != "sigmoid":
        return False
    return at.mentions(rf"\b1(?:\.0?)?\s*-\s*{re.escape(at.text(operand))}\b")


def _only_logs(at: Context) -> bool:
    """Whether a function does nothing but return a logarithm, of whatever it is given."""
    body = at.function.node.body
    rest = body[1:] if isinstance(body[0], ast.Expr) else body
    if at.function.cls is not None or len(rest) != 1 or not isinstance(rest[0], ast.Return):
        return False
    value = rest[0].value
    while isinstance(value, ast.UnaryOp):
        value = value.operand
    operation = at.operation(value) if isinstance(value, ast.Call) else None
    return operation is not None and operation[0] in LOGARITHMS


def _is_log(node: ast.Call, qualified: str | None) -> bool:
    """Whether a call is a logarithm of torch, as a function or as a method."""
    if qualified is not None:
        owner, _, name = qualified.rpartition(".")
        return owner == "torch" and name in LOGARITHMS
    return isinstance(node.func, ast.Attribute) and node.func.attr in LOGARITHMS


def _by_helper(call: ast.Call, at: Context) -> Iterator[Finding]:
    """A logarithm that a function of this module takes of its argument, with its own guard."""
    helper = Helper.of(call, at)
    if helper is None or helper.module is not at.module:
        return
    there = at.inside(helper.function)
    taken = getattr(helper.function.node.body[-1], "value", None)
    if not isinstance(taken, ast.Call):
        return
    argument, operation = _argument(taken, there), there.operation(taken)
    if argument is None or operation is None or not operation[0].startswith("log"):
        return
    guard = Guard.of(argument, taken, there) if _only_logs(there) else None
    operand = helper.passed(guard.operand) if guard is not None else None
    if guard is None or operand is None or helper.passed(guard.node) is not None:
        return
    value, narrow = at.value(operand), guard.clamped and guard.epsilon > NARROW
    half = at.half(value, at.region(call))
    if half is None or "float16" not in half.dtypes or not 0 < guard.epsilon <= Guard.OVERFLOWS:
        return
    if guard.epsilon > Guard.VANISHES and guard.without_gradient(taken, there):
        return
    confidence = Doubt.lowered(half, value, operand, at)
    if any(_asks_dtype(node) for node in at.function.nodes) and not Care.in_test(at):
        confidence = max(confidence, Confidence.LIKELY, key=lambda c: c.rank)
    elif not at.region(call).on:
        confidence = Confidence.POSSIBLE
    if narrow:
        confidence = Confidence.POSSIBLE
    yield at.finding(
        call,
        f"{_subject(guard)} in {helper.function.name}() {_fate(guard, half)}",
        confidence,
        evidence=[*half.evidence, helper.note(guard.node, f"this is {guard.epsilon:g}")],
    )


def _asks_dtype(node: ast.AST) -> bool:
    """Whether a condition asks if a tensor is float32, or half, so that half ones come here."""
    if not isinstance(node, ast.Compare) or getattr(node.left, "attr", "") != "dtype":
        return False
    named = ast.unparse(node.comparators[0])
    return re.search(r"\btorch\.(b?float(16|32)?|half)\b", named) is not None


def _subject(guard: Guard) -> str:
    return f"epsilon {guard.epsilon:g}" if guard.epsilon else "probability without a guard"


def _fate(guard: Guard, half: Half) -> str:
    """What becomes of a guard in half."""
    if not guard.epsilon and guard.complement:
        least = "8.3" if half.dtype == "float16" else "6.3"
        return f"is 0 in {half.dtype} from logits of {least} on, where log gives -inf"
    if not guard.epsilon:
        return "is 0 in float16 below 2**-25, where log gives -inf"
    if guard.epsilon <= Guard.VANISHES:
        return "rounds to 0 in float16, so log of 0 gives -inf"
    harmed = "a quotient by it and the gradient are" if guard.others else "the gradient is"
    return (
        f"survives in float16, but its reciprocal {1 / guard.epsilon:.3g} exceeds 65504, "
        f"so {harmed} inf"
    )


def _bounded_after(node: ast.Call, at: Context) -> bool:
    """Whether the logarithm is rounded at once, as for levels: no gradient, and a clamp follows."""
    rounds = ("floor", "round", "ceil", "long", "int")
    for parent in at.ancestors(node):
        if isinstance(parent, ast.Attribute) and parent.attr in rounds:
            return True
        operation = at.operation(parent) if isinstance(parent, ast.Call) else None
        if operation is not None and operation[0] in rounds:
            return True
    return False


def _weighted(operand: ast.expr, node: ast.Call, at: Context) -> bool:
    """Whether ``x * log(x + eps)`` stands here: its gradient is x / (x + eps), which is bounded."""
    inner: ast.AST = node
    for parent in at.ancestors(node):
        if isinstance(parent, ast.UnaryOp):
            inner = parent
            continue
        if not isinstance(parent, ast.BinOp):
            return False
        other = parent.left if parent.right is inner else parent.right
        match parent.op:
            case ast.Mult():
                if at.text(other) == at.text(operand):
                    return True
            case ast.Add() | ast.Sub():
                pass
            case _:
                return False
        inner = parent
    return False


def _is_natural(node: ast.Call) -> bool:
    return getattr(node.func, "attr", getattr(node.func, "id", "")) == "log"


def _argument(node: ast.Call, at: Context) -> ast.expr | None:
    if at.qualify(node.func) is not None:
        return node.args[0] if node.args else None
    return node.func.value if isinstance(node.func, ast.Attribute) else None
