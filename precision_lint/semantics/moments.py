"""Squares, means of squares, and norm layers and variances that are written with them by hand."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context

ROOTS = frozenset({"sqrt", "rsqrt"})


@dataclass(frozen=True)
class Power:
    """``base`` to a whole power; ``operands`` are the places where the base stands."""

    node: ast.expr
    operands: tuple[ast.expr, ...]
    exponent: int = 2

    @property
    def base(self) -> ast.expr:
        return self.operands[0]

    @property
    def limit(self) -> float:
        """The magnitude from which on the power exceeds 65504."""
        return float(65520 ** (1 / self.exponent))

    @classmethod
    def of(cls, node: ast.expr, at: Context) -> Power | None:
        """``x * x``, ``x.mul(x)``, ``x ** n``, ``x.pow(n)``, ``x.square()``; n is 2, 3 or 4."""
        match node:
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                same = not isinstance(left, ast.Constant) and ast.dump(left) == ast.dump(right)
                return cls(node, (left, right)) if same else None
            case ast.BinOp(left=left, op=ast.Pow(), right=right):
                exponent = _exponent(right, at)
                return cls(node, (left,), exponent) if exponent else None
            case ast.Call(args=arguments):
                operation = at.operation(node)
                if operation is None:
                    return None
                name, base = operation
                if name == "square":
                    return cls(node, (base,))
                if name in ("mul", "multiply") and arguments:
                    same = arguments[-1] is not base and ast.dump(arguments[-1]) == ast.dump(base)
                    return cls(node, (base, arguments[-1])) if same else None
                if name == "pow" and arguments and arguments[-1] is not base:
                    exponent = _exponent(arguments[-1], at)
                    return cls(node, (base,), exponent) if exponent else None
        return None


@dataclass(frozen=True)
class Mean:
    """``call`` is the mean of ``inner`` over what ``arguments`` say, or its average in a window."""

    call: ast.Call
    inner: ast.expr
    arguments: tuple[ast.expr | ast.keyword, ...]
    windowed: bool = False

    WORDS: ClassVar = r"(?i:avg|average|pool|conv|filter|blur|smooth|gauss|box|window|mean)"
    """Parts of names of what averages; that both terms go through the same says the rest."""

    @classmethod
    def windows(cls, left: ast.expr, right: ast.expr, at: Context) -> tuple[Mean, Mean] | None:
        """Averages of two values by the same pooling, filter or function, with the same arguments:
        ``pool(x * x)`` and ``pool(x)``."""
        pair = [_windowed(node, at) for node in (left, right)]
        if pair[0] is None or pair[1] is None:
            return None
        first, second = pair[0], pair[1]
        same = ast.dump(first.call.func) == ast.dump(second.call.func) and (
            [ast.dump(a) for a in first.arguments] == [ast.dump(a) for a in second.arguments]
        )
        return (first, second) if same else None

    @classmethod
    def of(cls, node: ast.expr, at: Context, depth: int = 3) -> Mean | None:
        """The mean that a value is, by local names."""
        if isinstance(node, ast.Name):
            source = at.definition(node.id, node) if depth else None
            return cls.of(source, at, depth - 1) if source is not None else None
        operation = at.operation(node)
        if not isinstance(node, ast.Call) or operation is None or operation[0] != "mean":
            return None
        rest = [a for a in node.args if a is not operation[1]]
        return cls(node, operation[1], (*rest, *node.keywords))


def _windowed(node: ast.expr, at: Context, depth: int = 3) -> Mean | None:
    """A call of a function of one tensor, and of what else it is given, by local names."""
    if isinstance(node, ast.Name):
        source = at.definition(node.id, node) if depth else None
        return _windowed(source, at, depth - 1) if source is not None else None
    if not isinstance(node, ast.Call) or not node.args or isinstance(node.args[0], ast.Starred):
        return None
    name = (at.qualify(node.func) or at.text(node.func)).rpartition(".")[2]
    if not re.search(Mean.WORDS, name):
        return None
    return Mean(node, node.args[0], (*node.args[1:], *node.keywords), windowed=True)


@dataclass(frozen=True)
class HandNorm:
    """``x * rsqrt(mean(x**2) + eps)`` or ``(x - mean) / sqrt(var(x) + eps)``.

    ``spread`` is the square or the variance, ``places`` where its operand stands; ``quotient``
    is the normalised value, ``subject`` the name of ``x``.
    """

    quotient: ast.BinOp
    spread: ast.expr
    places: tuple[ast.expr, ...]
    subject: str

    @classmethod
    def of(cls, root: ast.expr, at: Context) -> HandNorm | None:
        """The norm whose root this is."""
        operation = at.operation(root)
        if operation is None or operation[0] not in ROOTS:
            return None
        quotient = _divided(root, operation[0] == "rsqrt", at)
        under = _without_number(operation[1], at)
        if quotient is None or under is None:
            return None
        found = _spread(under, at)
        if found is None:
            return None
        spread, places = found
        subject = _subject(places[0], at)
        other = quotient.right if _holds(quotient.left, root, at) else quotient.left
        if subject is None or subject not in _names(other, at):
            return None
        return cls(quotient, spread, places, subject)

    @classmethod
    def made_with(cls, square: ast.expr, at: Context) -> bool:
        """Whether a square is the one of a norm of this function."""
        for node in at.function.nodes:
            if isinstance(node, ast.Call):
                found = cls.of(node, at)
                if found is not None and found.spread is square:
                    return True
        return False


def _divided(root: ast.expr, reciprocal: bool, at: Context) -> ast.BinOp | None:
    """The product with a reciprocal root, or the quotient by a root, by a local name too."""
    sign = ast.Mult if reciprocal else ast.Div
    parent = at.parents.get(id(root))
    if isinstance(parent, ast.BinOp):
        fits = isinstance(parent.op, sign) and (reciprocal or parent.right is root)
        return parent if fits else None
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
        for use in at.uses(parent.targets[0].id):
            around = at.parents.get(id(use))
            if (
                isinstance(around, ast.BinOp)
                and isinstance(around.op, sign)
                and (reciprocal or around.right is use)
                and at.definition(use.id, use) is root
            ):
                return around
    return None


def _without_number(node: ast.expr, at: Context) -> ast.expr | None:
    """What an epsilon is added to."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        for side, other in ((node.left, node.right), (node.right, node.left)):
            if at.value(side).kind == "number" or "eps" in at.text(side):
                return other
    return node


def _spread(
    node: ast.expr, at: Context, depth: int = 3
) -> tuple[ast.expr, tuple[ast.expr, ...]] | None:
    """The square under a mean, or the variance, and where its operand stands."""
    if isinstance(node, ast.Name):
        source = at.definition(node.id, node) if depth else None
        return _spread(source, at, depth - 1) if source is not None else None
    operation = at.operation(node)
    if operation is not None and operation[0] == "var":
        return node, (operation[1],)
    mean = Mean.of(node, at)
    power = Power.of(mean.inner, at) if mean is not None else None
    return (power.node, power.operands) if power is not None and power.exponent == 2 else None


def _subject(node: ast.expr, at: Context) -> str | None:
    """The name of what is squared; of ``x`` in ``x - mean``."""
    match node:
        case ast.BinOp(left=left, op=ast.Sub()):
            return _subject(left, at)
        case ast.Name(id=name):
            source = at.definition(name, node)
            if isinstance(source, ast.BinOp) and isinstance(source.op, ast.Sub):
                return _subject(source.left, at) or name
            return name
    return None


def _holds(node: ast.expr, root: ast.expr, at: Context) -> bool:
    if any(part is root for part in ast.walk(node)):
        return True
    return isinstance(node, ast.Name) and at.definition(node.id, node) is root


def _names(node: ast.expr, at: Context) -> set[str]:
    """Names in an expression, and in what local names of it were computed from."""
    found: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            found.add(part.id)
            source = at.definition(part.id, part)
            if isinstance(source, ast.BinOp):
                found |= {n.id for n in ast.walk(source) if isinstance(n, ast.Name)}
    return found


def _exponent(node: ast.expr, at: Context) -> int | None:
    """2, 3 or 4, if that is what an expression is, or the largest that it takes in turn."""
    match node:
        case ast.Constant(value=int(exponent)) if exponent in (2, 3, 4):
            return exponent
        case ast.Name():
            value = at.value(node)
            if value.kind == "number" and value.dtype == "int" and value.hi in (2, 3, 4):
                return int(value.hi) if value.lo >= 1 else None
    return None
