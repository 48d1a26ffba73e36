"""Constants that guard a logarithm against 0, and where a guarded value comes from."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from precision_lint.api import Applicability, Fix
from precision_lint.semantics.defaults import defaulted
from precision_lint.semantics.flow import PRODUCERS
from precision_lint.semantics.regions import NO_GRAD

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context

CLAMPS = frozenset({
    "clamp", "clamp_", "clamp_min", "clamp_min_", "clip", "clip_", "maximum", "max", "fmax",
})  # fmt: skip
LOGARITHMS = frozenset({"log", "log2", "log10", "log_"})
REDUCTIONS = frozenset({"sum", "mean", "amax", "prod"})
RESHAPES = frozenset({"detach", "gather", "view", "reshape", "squeeze", "unsqueeze", "flatten"})
FOLLOWED = REDUCTIONS | RESHAPES | {"clamp", "clamp_min", "clip"}
"""Operations behind which a probability is still one, or a sum of them."""
NUMPY = {"float32": (2.0**-23, 2.0**-126), "float64": (2.0**-52, 2.0**-1022)}
"""Machine epsilon and smallest normal number, as numpy and sys spell them."""


@dataclass(frozen=True)
class Guard:
    """``operand`` guarded by the constant ``epsilon``, 0 for a probability without a guard.

    ``node`` is the constant, ``others`` are further operands of the function that is guarded;
    ``clamped``: values below epsilon are replaced by it, so that they have no gradient.
    """

    VANISHES: ClassVar[float] = 2.0**-25
    """Largest guard that rounds to 0 in float16 (half of its smallest subnormal, ties to even)."""
    OVERFLOWS: ClassVar[float] = 1 / 65504
    """Guards up to here have a reciprocal beyond float16's largest number."""

    operand: ast.expr
    epsilon: float
    node: ast.expr
    others: tuple[ast.expr, ...] = ()
    clamped: bool = False

    @classmethod
    def of(cls, argument: ast.expr, use: ast.expr, at: Context) -> Guard | None:
        """The guard in an argument of ``use``; None: there is none, and no probability either."""
        return _guard(argument, at, use) or _bare(argument, at)

    @property
    def complement(self) -> bool:
        """Whether the guarded value is ``1 - p``."""
        return _complement(self.operand)

    @property
    def operands(self) -> tuple[ast.expr, ...]:
        return (self.operand, *self.others)

    def without_gradient(self, call: ast.expr, at: Context) -> bool:
        """Whether the function has no gradient, or one that its own operand bounds."""
        if at.without_gradient or _in_no_grad(call, at) or _compared(call, at):
            return True
        return _times_itself(call, self.operand, at) or all(
            _detached(operand, at) for operand in self.operands
        )

    def before_log(self, use: ast.expr, at: Context) -> bool:
        """Whether this is the guard of a logarithm that the value of ``use`` goes into."""
        for call in _logarithms(use, at):
            operation = at.operation(call)
            guard = Guard.of(operation[1], call, at) if operation is not None else None
            if guard is not None and guard.node is self.node:
                return True
        return False

    def made(self, at: Context) -> ast.expr | None:
        """The operation that makes the guarded probability."""
        return made(self.operand, at)

    def upcasts(self, at: Context) -> list[tuple[ast.expr, bool]]:
        """Where ``.float()`` has to go so that the guarded value is computed in float32.

        With each place: whether it is the argument of the operation that makes the value, so that
        the upcast comes before anything is lost.
        """
        found = {id(leaf): leaf for operand in self.operands for leaf in _leaves(operand, at)}
        if any(isinstance(getattr(leaf, "ctx", None), ast.Store) for leaf in found.values()):
            return []
        return [(leaf, _feeds_producer(leaf, at)) for leaf in found.values()]

    def fix(self, node: ast.expr, at: Context) -> Fix | None:
        """The upcast of what a guarded logarithm is taken of; safe where it cures."""
        leaves = self.upcasts(at)
        if not leaves:
            return None
        late = not all(early for _, early in leaves)
        edits = at.append({leaf: ".float()" for leaf, _ in leaves})
        if edits is None:
            return None
        names = ", ".join(dict.fromkeys(at.text(leaf) for leaf, _ in leaves))
        title = f"compute in float32: upcast {names}"
        if late and not self.epsilon:
            why = "a probability that is 0 in half stays 0: upcast what it is made of"
            return Fix(title, Applicability.DISPLAY, edits, why)
        if late and self.epsilon > self.VANISHES:
            why = (
                "the gradient 1/eps overflows on its way into the half value: upcast at its origin"
            )
            return Fix(title, Applicability.DISPLAY, edits, why)
        if at.products_reached(node):
            why = "the result is float32 then, and meets a matrix product"
            return Fix(title, Applicability.UNSAFE, edits, why)
        return Fix(title, Applicability.SAFE, edits)

    def times_itself(self, call: ast.expr, at: Context) -> bool:
        """Whether the logarithm is multiplied by its own operand, as in an entropy."""
        return _times_itself(call, self.operand, at)

    def complements(self, at: Context) -> str | None:
        """The operation that makes ``p`` where ``1 - p`` is guarded."""
        node: ast.expr | None = self.operand
        while isinstance(node, ast.Name):
            node = at.definition(node.id, node)
        maker = made(node, at) if node is not None and _complement(node) else None
        operation = at.operation(maker) if maker is not None else None
        return operation[0] if operation is not None else None


def _logarithms(use: ast.expr, at: Context) -> Iterator[ast.expr]:
    """Logarithms around an expression, and around the uses of the name it is bound to."""
    for parent in at.ancestors(use):
        if isinstance(parent, ast.Call):
            operation = at.operation(parent)
            if operation is not None and operation[0] in LOGARITHMS:
                yield parent
        elif isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
            for name in at.uses(parent.targets[0].id):
                for around in at.ancestors(name) if isinstance(name.ctx, ast.Load) else ():
                    if isinstance(around, ast.stmt):
                        break
                    operation = at.operation(around) if isinstance(around, ast.Call) else None
                    if operation is not None and operation[0] in LOGARITHMS:
                        yield around  # type: ignore[misc]


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
            if _number(right, at) is not None:
                return _guard(left, at, use, depth)
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
            if source is None:
                return None
            parent = at.parents.get(id(source))
            if isinstance(parent, ast.AugAssign):
                number = _number(source, at) if isinstance(parent.op, ast.Add) else None
                return Guard(parent.target, number, source) if number is not None else None
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
                        return Guard(operands[0], number, limits[0], clamped=True)
            elif last in ("where", "masked_fill", "masked_fill_"):
                return _replaced(node, at)
            elif last in ("add", "add_") and qualified is not None and len(args) > 1:
                number = _number(args[1], at)
                return Guard(args[0], number, args[1]) if number is not None else None
            elif last in (
                "add",
                "add_",
                "squeeze",
                "unsqueeze",
                "mean",
                "flatten",
                "view",
                "reshape",
            ):
                if qualified is None and isinstance(func, ast.Attribute):
                    if last in ("add", "add_"):
                        number = _number(args[0], at) if args else None
                        return Guard(func.value, number, args[0]) if number is not None else None
                    return _guard(func.value, at, use, depth)
    return None


def _replaced(node: ast.Call, at: Context) -> Guard | None:
    """The guard in ``where(x < eps, eps, x)`` and ``x.masked_fill(x == 0, eps)``."""
    parts = list(node.args)
    if at.qualify(node.func) is None and isinstance(node.func, ast.Attribute):
        parts.insert(0, node.func.value)
        if node.func.attr == "where":
            parts[:2] = parts[1::-1]
    if len(parts) != 3:
        return None
    if getattr(node.func, "attr", "") != "where":
        parts = [parts[1], parts[0], parts[2]]
    for operand, eps in ((parts[1], parts[2]), (parts[2], parts[1])):
        number = _number(eps, at)
        if number is not None and number > 0:
            return Guard(operand, number, eps, clamped=True)
    return None


def _number(node: ast.expr, at: Context) -> float | None:
    value = at.value(node)
    if value.kind == "number" and value.const is not None:
        return float(value.const)
    if value.is_tensor and value.lo == value.hi:
        return value.lo
    default = defaulted(node, at)
    return default if default is not None else _machine(node, at)


def _machine(node: ast.expr, at: Context) -> float | None:
    """``numpy.finfo(...).eps`` and ``sys.float_info.min``, which no value of the analysis holds."""
    if isinstance(node, ast.Name) and node.id not in at.function.assigned:
        top = at.inside(at.module.index.top)
        sources = top.function.assigned.get(node.id, []) if top.function is not at.function else []
        return _number(sources[-1], top) if sources else None
    if not isinstance(node, ast.Attribute):
        return None
    dtype = ""
    if at.qualify(node.value) == "sys.float_info":
        dtype = "float64"
    elif isinstance(node.value, ast.Call) and at.qualify(node.value.func) == "numpy.finfo":
        named = [at.text(a).rpartition(".")[2].strip("'\"") for a in node.value.args[:1]]
        dtype = {"float": "float64"}.get(named[0], named[0]) if named else "float64"
    if dtype not in NUMPY:
        return None
    eps, tiny = NUMPY[dtype]
    return {"eps": eps, "epsilon": eps, "tiny": tiny, "min": tiny, "smallest_normal": tiny}.get(
        node.attr if not (node.attr == "min" and isinstance(node.value, ast.Call)) else ""
    )


def _bare(node: ast.expr, at: Context) -> Guard | None:
    """A probability, or its complement, whose logarithm is taken without any guard."""
    inner = node.right if _complement(node) and isinstance(node, ast.BinOp) else node
    producer = _probability(inner, at)
    return Guard(node, 0.0, node) if producer else None


def _probability(node: ast.expr, at: Context, depth: int = 3) -> bool:
    """Whether a value is a sigmoid's or softmax's, picked from or reshaped at most."""
    operation = at.operation(node)
    if operation is not None:
        name, operand = operation
        if name in ("sigmoid", "softmax"):
            return True
        if name == "where" and isinstance(node, ast.Call):
            return any(_probability(part, at, depth) for part in node.args[1:])
        return name in FOLLOWED - REDUCTIONS - CLAMPS and _probability(operand, at, depth)
    match node:
        case ast.Subscript(value=value):
            return _probability(value, at, depth)
        case ast.Name(id=name) if depth:
            source = at.definition(name, node)
            return source is not None and _probability(source, at, depth - 1)
    return False


def _complement(node: ast.expr) -> bool:
    """Whether an expression is ``1 - p``."""
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Sub)
        and isinstance(node.left, ast.Constant)
        and node.left.value == 1
    )


def _in_no_grad(node: ast.AST, at: Context) -> bool:
    return any(
        isinstance(item.context_expr, ast.Call) and at.qualify(item.context_expr.func) in NO_GRAD
        for parent in at.ancestors(node)
        if isinstance(parent, ast.With)
        for item in parent.items
    )


def _detached(node: ast.expr, at: Context, depth: int = 4) -> bool:
    """Whether a value was cut off from the graph, by ``detach`` or under ``no_grad``."""
    match node:
        case ast.Constant():
            return True
        case ast.Attribute(attr="data"):
            return True
        case ast.Subscript(value=inner) | ast.UnaryOp(operand=inner):
            return _detached(inner, at, depth)
        case ast.BinOp(left=left, right=right):
            return _detached(left, at, depth) and _detached(right, at, depth)
        case ast.Name(id=name) if depth:
            source = at.definition(name, node)
            if source is None:
                return False
            return _in_no_grad(source, at) or _detached(source, at, depth - 1)
        case ast.Call():
            operation = at.operation(node)
            if operation is None:
                return False
            return operation[0] == "detach" or (
                operation[0] in FOLLOWED | PRODUCERS and _detached(operation[1], at, depth)
            )
    return False


def _compared(node: ast.expr, at: Context, seen: frozenset[str] = frozenset()) -> bool:
    """Whether a value is only compared with others, which has no gradient."""
    inner = held = node
    for parent in at.ancestors(node):
        match parent:
            case ast.Compare():
                return True
            case ast.BinOp() | ast.UnaryOp() | ast.Subscript() | ast.Attribute() | ast.Tuple():
                pass
            case ast.Call(func=func) if func is inner or at.operation(parent) is not None:
                if getattr(func, "attr", "") in ("to", "type_as") and func is not inner:
                    return True  # it only lends its dtype
            case ast.Assign(targets=[target], value=value):
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                    places = [i for i, part in enumerate(value.elts) if part is held]
                    target = target.elts[places[0]] if places else target
                if not isinstance(target, ast.Name):
                    return False
                uses = [use for use in at.uses(target.id) if isinstance(use.ctx, ast.Load)]
                if target.id in seen:
                    return True  # its uses are looked at already
                known = seen | {target.id}
                return bool(uses) and all(_compared(use, at, known) for use in uses)
            case _:
                return False
        held, inner = inner, parent
    return False


def _times_itself(node: ast.expr, operand: ast.expr, at: Context) -> bool:
    """Whether the logarithm is multiplied by its own operand, which bounds the gradient."""
    parent = at.parents.get(id(node))
    if not isinstance(parent, ast.BinOp) or not isinstance(parent.op, ast.Mult):
        return False
    other = parent.left if parent.right is node else parent.right
    while isinstance(other, ast.UnaryOp):
        other = other.operand
    return ast.dump(other) == ast.dump(operand)


def made(node: ast.expr, at: Context, depth: int = 4) -> ast.expr | None:
    """The operation that produces a probability (sigmoid, exp, ...) in or behind an expression."""
    operation = at.operation(node)
    if operation is not None:
        name, operand = operation
        if name in PRODUCERS:
            return node
        return made(operand, at, depth) if name in FOLLOWED else None
    match node:
        case ast.Subscript(value=value) | ast.UnaryOp(operand=value):
            return made(value, at, depth)
        case ast.BinOp(left=left, op=op, right=right) if not isinstance(op, ast.MatMult):
            return made(left, at, depth) or made(right, at, depth)
        case ast.Name() if depth:
            source = at.definition(node.id, node)
            return made(source, at, depth - 1) if source is not None else None
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
    if isinstance(name_node, ast.Name) and depth and made(name_node, at) is not None:
        source = at.definition(name_node.id, name_node)
        if source is not None and at.stays_elementwise(name_node.id):
            found = list(_leaves(source, at, depth - 1))
            if found and found != [source]:
                yield from found
                return
    yield node
