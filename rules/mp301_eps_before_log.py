from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from precision_lint.api import (
    Applicability,
    Context,
    Edit,
    Evidence,
    Finding,
    Fix,
    Rule,
    Severity,
    calls,
)

VANISHES = 2.0**-25
"""Largest guard that rounds to 0 in float16 (half of its smallest subnormal, ties to even)."""
OVERFLOWS = 1 / 65504
"""Guards up to here have a reciprocal beyond float16's largest number."""
CLAMPS = {"clamp": 0, "clamp_min": 0, "clip": 0, "maximum": 0, "max": 0}
PRODUCERS = frozenset({"sigmoid", "softmax", "tanh", "relu", "exp", "hardsigmoid", "abs", "square"})
REDUCTIONS = frozenset({"sum", "mean", "amax", "prod"})
FOLLOWED = REDUCTIONS | {
    "clamp",
    "clamp_min",
    "clip",
    "detach",
    "gather",
    "view",
    "reshape",
    "squeeze",
}


@dataclass(frozen=True)
class Guard:
    """``operand`` guarded by the constant ``epsilon``; ``others``: further operands of the log."""

    operand: ast.expr
    epsilon: float
    node: ast.expr
    others: tuple[ast.expr, ...] = ()


class EpsBeforeLog(Rule):
    """Epsilon before a logarithm that rounds to zero in float16, or whose reciprocal overflows.

    ## What it flags
    `log`, `log2` and `log10` of `x + eps`, `x.clamp(min=eps)`, `torch.maximum(x, eps)` or
    `a / (b + eps)` where `x` may be float16 and `eps` is at most 1.53e-5. The constant may come
    from a name, a default argument or an attribute of the class.

    It stays silent where the value is float32 for certain (`.float()` before the addition; a
    softmax, exp, sum or norm inside the same CUDA autocast region, which runs in float32), where
    the value is bounded away from zero, for `torch.finfo(x.dtype)`, and for bfloat16, whose range
    is that of float32.

    ## Why it breaks
    float16's smallest subnormal is 2**-24, about 6e-8. A guard up to 2**-25 (2.98e-8), such as
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
    triggers = calls(
        "torch.log", "torch.log2", "torch.log10", "Tensor.log", "Tensor.log2", "Tensor.log10",
        "Tensor.log_", "torch.log_",
    )  # fmt: skip

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        argument = _argument(node, at)
        if argument is None:
            return
        guard = _guard(argument, at, node)
        if guard is None or not 0 < guard.epsilon <= OVERFLOWS:
            return
        if _bounded_after(node, at):
            return
        region = at.region(node)
        open_values = [
            value
            for value in map(at.value, (guard.operand, *guard.others))
            if at.least(value) <= OVERFLOWS
        ]
        halves = [h for h in (at.half(value, region) for value in open_values) if h is not None]
        halves = [h for h in halves if "float16" in h.dtypes]
        if not halves:
            return
        half = max(halves, key=lambda h: h.confidence.rank)
        if guard.epsilon > VANISHES and (
            at.without_gradient or _times_itself(node, guard.operand, at)
        ):
            return
        call = at.text(node.func).rpartition(".")[2]
        if guard.epsilon <= VANISHES:
            fate = "rounds to 0 in float16, so log of 0 gives -inf"
        else:
            harmed = "a quotient by it and the gradient are" if guard.others else "the gradient is"
            fate = (
                f"survives in float16, but its reciprocal {1 / guard.epsilon:.3g} exceeds 65504, "
                f"so {harmed} inf"
            )
        evidence = [*half.evidence]
        if not isinstance(guard.node, ast.Constant):
            evidence.append(at.note(guard.node, f"this is {guard.epsilon:g}"))
        yield at.finding(
            node,
            f"epsilon {guard.epsilon:g} before {call} {fate}",
            half.confidence,
            evidence=[*evidence, *self._origin(guard, at)],
            fix=self._fix(guard, at, node),
        )

    def _origin(self, guard: Guard, at: Context) -> list[Evidence]:
        producer = _makes(guard.operand, at)
        return [at.note(producer, "the guarded value is made here")] if producer else []

    def _fix(self, guard: Guard, at: Context, node: ast.Call) -> Fix | None:
        leaves: dict[int, tuple[ast.expr, ast.stmt]] = {}
        for operand in (guard.operand, *guard.others):
            for leaf in _leaves(operand, at):
                statement = at.statement(leaf)
                if statement is not None:
                    leaves[id(leaf)] = (leaf, statement)
        if not leaves:
            return None
        opaque = guard.epsilon > VANISHES and not all(
            _feeds_producer(leaf, at) for leaf, _ in leaves.values()
        )
        edits: list[Edit] = []
        by_statement: dict[int, tuple[ast.stmt, dict[ast.expr, str]]] = {}
        for leaf, statement in leaves.values():
            by_statement.setdefault(id(statement), (statement, {}))[1][leaf] = ".float()"
        for statement, suffixes in by_statement.values():
            added = at.edit.append(statement, suffixes)
            if added is None:
                return None
            edits += added
        names = ", ".join(dict.fromkeys(at.text(leaf) for leaf, _ in leaves.values()))
        title = f"compute in float32: upcast {names}"
        if opaque:
            why = (
                "the gradient 1/eps overflows on its way into the half value: upcast at its origin"
            )
            return Fix(title, Applicability.DISPLAY, tuple(edits), why)
        if at.products_reached(node):
            why = "the result is float32 then, and meets a matrix product"
            return Fix(title, Applicability.UNSAFE, tuple(edits), why)
        return Fix(title, Applicability.SAFE, tuple(edits))


def _bounded_after(node: ast.Call, at: Context) -> bool:
    """Whether the logarithm is rounded at once, as for levels: no gradient, and a clamp follows."""
    return any(
        isinstance(parent, ast.Attribute)
        and parent.attr in ("floor", "round", "ceil", "long", "int")
        for parent in at.ancestors(node)
    )


def _times_itself(node: ast.Call, operand: ast.expr, at: Context) -> bool:
    """Whether the logarithm is multiplied by its own operand, which bounds the gradient."""
    parent = at.parents.get(id(node))
    if not isinstance(parent, ast.BinOp) or not isinstance(parent.op, ast.Mult):
        return False
    other = parent.left if parent.right is node else parent.right
    while isinstance(other, ast.UnaryOp):
        other = other.operand
    return ast.dump(other) == ast.dump(operand)


def _argument(node: ast.Call, at: Context) -> ast.expr | None:
    if at.qualify(node.func) is not None:
        return node.args[0] if node.args else None
    return node.func.value if isinstance(node.func, ast.Attribute) else None


def _number(node: ast.expr, at: Context) -> float | None:
    value = at.value(node)
    if value.kind == "number" and value.const is not None:
        return float(value.const)
    filled = value.is_tensor and value.lo == value.hi
    return value.lo if filled else None


def _guard(node: ast.expr, at: Context, use: ast.expr, depth: int = 3) -> Guard | None:
    """The guarded operand inside a logarithm's argument, or None."""
    match node:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            for operand, eps in ((left, right), (right, left)):
                number = _number(eps, at)
                if number is not None:
                    return Guard(operand, number, eps)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            inner = _guard(right, at, use, depth)
            if inner is not None:
                return Guard(inner.operand, inner.epsilon, inner.node, (left, *inner.others))
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            for side in (left, right):
                if _number(side, at) is None:
                    inner = _guard(side, at, use, depth)
                    if inner is not None:
                        return inner
        case ast.Subscript(value=value):
            return _guard(value, at, use, depth)
        case ast.Name(id=name) if depth:
            source = at.definition(name, use)
            if source is not None:
                return _guard(source, at, source, depth - 1)
        case ast.Call(func=func, args=args, keywords=keywords):
            qualified = at.qualify(func)
            last = func.attr if isinstance(func, ast.Attribute) else (qualified or "")
            last = last.rpartition(".")[2]
            if last in CLAMPS:
                operands = list(args)
                if qualified is None and isinstance(func, ast.Attribute):
                    operands.insert(0, func.value)
                limits = [k.value for k in keywords if k.arg == "min"] or operands[1:2]
                if operands and limits:
                    number = _number(limits[0], at)
                    if number is not None:
                        return Guard(operands[0], number, limits[0])
            elif last in ("add", "squeeze", "unsqueeze", "mean", "flatten", "view", "reshape"):
                if qualified is None and isinstance(func, ast.Attribute):
                    if last == "add" and args:
                        number = _number(args[0], at)
                        return Guard(func.value, number, args[0]) if number is not None else None
                    return _guard(func.value, at, use, depth) if last != "add" else None
    return None


def _makes(node: ast.expr, at: Context, depth: int = 4) -> ast.expr | None:
    """The operation that produces a probability (sigmoid, exp, ...) in or behind an expression."""
    operation = at.operation(node)
    if operation is not None:
        name, operand = operation
        if name in PRODUCERS:
            return node
        return _makes(operand, at, depth) if name in FOLLOWED else None
    match node:
        case ast.Subscript(value=value) | ast.UnaryOp(operand=value):
            return _makes(value, at, depth)
        case ast.BinOp(left=left, op=op, right=right) if not isinstance(op, ast.MatMult):
            return _makes(left, at, depth) or _makes(right, at, depth)
        case ast.Name() if depth:
            source = at.definition(node.id, node)
            return _makes(source, at, depth - 1) if source is not None else None
    return None


def _may_be_cast(node: ast.expr, at: Context) -> bool:
    """Whether ``.float()`` fits: a number of the configuration has no such method."""
    if isinstance(node, (ast.Name, ast.Attribute)):
        return at.is_tensor(node)
    return True


def _feeds_producer(leaf: ast.expr, at: Context) -> bool:
    """Whether a value is the argument of the operation that makes the probability."""
    for parent in at.ancestors(leaf):
        operation = at.operation(parent) if isinstance(parent, ast.Call) else None
        if operation is not None:
            if operation[0] in PRODUCERS:
                return True
            if operation[0] not in FOLLOWED:
                return False
        elif isinstance(parent, ast.stmt):
            return False
    return False


def _leaves(node: ast.expr, at: Context, depth: int = 4) -> Iterator[ast.expr]:
    """Where ``.float()`` has to go so that ``node`` is computed in float32.

    On the argument of the operation that produces the probability where that is in sight and
    nothing else needs its half dtype, otherwise on the value itself.
    """
    if at.half(at.value(node), at.region(node)) is None or not _may_be_cast(node, at):
        return
    operation = at.operation(node)
    if operation is not None:
        name, operand = operation
        if name in PRODUCERS:
            yield operand
            return
        if name in FOLLOWED:
            yield from list(_leaves(operand, at, depth)) or [operand]
            return
    match node:
        case ast.BinOp(left=left, op=op, right=right) if not isinstance(op, ast.MatMult):
            yield from _leaves(left, at, depth)
            yield from _leaves(right, at, depth)
            return
        case ast.UnaryOp(operand=operand):
            yield from _leaves(operand, at, depth)
            return
    name_node = node
    while isinstance(name_node, ast.Subscript):
        name_node = name_node.value
    if isinstance(name_node, ast.Name) and depth and _makes(name_node, at) is not None:
        source = at.definition(name_node.id, name_node)
        if source is not None and at.stays_elementwise(name_node.id):
            found = list(_leaves(source, at, depth - 1))
            if found:
                yield from found
                return
    yield node
