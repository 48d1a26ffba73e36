from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Doubt,
    Finding,
    Fix,
    Guard,
    Rule,
    Severity,
    calls,
)

WIDE = frozenset({"float32", "float64"})
ROOT = 65504.0**0.5
"""From here on a square overflows in float16."""
EXPONENT = 11.09
"""From here on an exponential overflows in float16."""


class UpcastTooLate(Rule):
    """`.float()` behind an operation whose result half has lost already.

    ## What it flags
    `(x + eps).float()` with an epsilon of at most 2.98e-8, `(x * x).float()`, `x.square().float()`,
    `x.pow(2).float()`, `(x ** 2).float()` and `x.exp().float()` (or `.double()`,
    `.to(torch.float32)`), where `x` may be float16.

    It stays silent where `x` is upcast, where its bounds exclude an overflow (a sigmoid, a
    normalised vector, a value from which its maximum was subtracted), for bfloat16, and where
    autocast runs the operation in float32 (`pow` and `exp` in a CUDA region). A matrix product
    that is upcast afterwards is MP201's where it is large. It is only `possible` where pure half
    would be needed in a project that trains under autocast.

    ## Why it breaks
    The operation runs in the dtype of its operands, and the cast comes after it. 1e-8 is 0 in
    float16, so `(p + 1e-8).float().log()` is -inf where p is 0, as without `.float()`. Squares
    overflow from 256 on and exponentials from 11.09 on: inf in half stays inf in float32.

    ## Example
    ```python
    energy = (x * x).float().mean(dim=-1)
    ```
    Use instead:
    ```python
    energy = (x.float() * x.float()).mean(dim=-1)
    ```

    ## Fix safety
    Safe: the cast moves to the operands, and the result has the dtype that it had; float32 results
    are the same to the bit.

    ## How to silence
    `# precision-lint: ignore[MP304] reason` or `# noqa: MP304` on the line.

    ## Sources
    PyTorch, `torch.finfo`; Automatic Mixed Precision: CUDA op-specific behavior (`mul` and `add`
    are not listed, `pow` and `exp` run in float32).
    """

    code, name = "MP304", "upcast-too-late"
    severity, applicability = Severity.ERROR, Applicability.SAFE
    triggers = calls("Tensor.float", "Tensor.double", "Tensor.to", "Tensor.type")

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        if not isinstance(node.func, ast.Attribute) or at.qualify(node.func) is not None:
            return
        if not isinstance(node.func.value, (ast.BinOp, ast.Call)) or node.keywords:
            return
        damage = _damage(node.func.value, at)
        if damage is None or at.value(node).dtype not in WIDE:
            return
        # what autocast makes of the operation, for exp and pow; the operand's, for the rest
        made = at.value(node.func.value)
        half = at.float16(made, at.region(node.func.value))
        if half is None:
            return
        confidence = Doubt.lowered(half, made, damage.operand, at)
        if confidence is not Confidence.CERTAIN and not at.is_tensor(damage.operand):
            confidence = Confidence.POSSIBLE
        yield at.finding(
            node,
            f"upcast comes too late: {damage.why}",
            confidence,
            evidence=half.evidence,
            fix=_fix(node, damage, at),
        )


@dataclass(frozen=True)
class Damage:
    """What an operation loses in half before it is upcast, and what has to be upcast instead."""

    why: str
    operand: ast.expr
    places: tuple[ast.expr, ...]


def _damage(node: ast.expr, at: Context) -> Damage | None:
    squared = _squared(node, at)
    if squared is not None:
        value = at.value(squared[0])
        if max(-value.lo, value.hi) < ROOT or {"unit", "normalized"} & value.tags:
            return None
        return Damage("a square overflows in float16 from 256 on", squared[0], squared)
    operation = at.operation(node)
    if operation is not None and operation[0] == "exp":
        if at.value(operation[1]).hi < EXPONENT:
            return None
        why = "an exponential overflows in float16 from 11.09 on"
        return Damage(why, operation[1], (operation[1],))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        guard = Guard.of(node, node, at)
        if guard is None or guard.others or not 0 < guard.epsilon <= Guard.VANISHES:
            return None
        if at.least(at.value(guard.operand)) > Guard.OVERFLOWS:
            return None
        why = f"epsilon {guard.epsilon:g} is added in float16, where it is 0"
        return Damage(why, guard.operand, (guard.operand,))
    return None


def _squared(node: ast.expr, at: Context) -> tuple[ast.expr, ...] | None:
    """The operands of a square."""
    match node:
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return (left, right) if ast.dump(left) == ast.dump(right) else None
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=2)):
            return (left,)
        case ast.Call(args=arguments):
            operation = at.operation(node)
            if operation is not None and operation[0] == "square":
                return (operation[1],)
            if operation is not None and operation[0] == "pow" and arguments:
                power = arguments[-1]
                if isinstance(power, ast.Constant) and power.value == 2:
                    return (operation[1],)
    return None


def _fix(node: ast.Call, damage: Damage, at: Context) -> Fix | None:
    statement = at.statement(node)
    if statement is None or not isinstance(node.func, ast.Attribute):
        return None
    arguments = ", ".join(at.text(argument) for argument in node.args)
    cast = f".{node.func.attr}({arguments})"
    edits = at.edit.move(statement, node, damage.places, cast)
    names = ", ".join(dict.fromkeys(at.text(place) for place in damage.places))
    return Fix(f"upcast {names} instead", Applicability.SAFE, edits) if edits is not None else None
