"""The logarithm of odds, ``log(p / (1 - p))``, however its parts are guarded and named."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precision_lint.semantics.guards import Guard

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context


@dataclass(frozen=True)
class LogOdds:
    """``log(p / (1 - p))`` with the guard of ``1 - p``; ``places``: every ``p`` it is made of."""

    probability: ast.expr
    guard: Guard
    places: tuple[ast.expr, ...]

    @classmethod
    def of(cls, argument: ast.expr, use: ast.expr, at: Context) -> LogOdds | None:
        """The odds in the argument of a logarithm; None: it is something else."""
        quotient = _defined(argument, at)
        if not isinstance(quotient, ast.BinOp) or not isinstance(quotient.op, ast.Div):
            return None
        guard = Guard.of(quotient.right, use, at)
        if guard is None or guard.others or guard.epsilon <= 0:
            return None
        complement = _defined(guard.operand, at)
        match complement:
            case ast.BinOp(left=ast.Constant(value=1 | 1.0), op=ast.Sub(), right=probability):
                pass
            case _:
                return None
        above = Guard.of(quotient.left, use, at)
        numerator = above.operand if above is not None else quotient.left
        if ast.dump(numerator) != ast.dump(probability):
            numerator = _defined(numerator, at)
            if ast.dump(numerator) != ast.dump(_defined(probability, at)):
                return None
            return cls(probability, guard, (probability,))
        return cls(probability, guard, (numerator, probability))


def _defined(node: ast.expr, at: Context, depth: int = 3) -> ast.expr:
    """What a local name was last bound to."""
    while isinstance(node, ast.Name) and depth:
        source = at.definition(node.id, node)
        if source is None:
            break
        node, depth = source, depth - 1
    return node
