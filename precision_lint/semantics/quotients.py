"""Quotients with a guarded denominator, and where the result of an upcast goes."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precision_lint.api import Applicability, Evidence, Fix
from precision_lint.semantics.guards import Guard
from precision_lint.semantics.names import dotted

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context

QUOTIENTS = frozenset({"div", "divide", "true_divide"})
NORMS = frozenset({"norm", "vector_norm", "matrix_norm"})
TERMS = re.compile(r"loss|iou|dice|cost|score|metric|penalty|error|kl_?div|entropy", re.I)
"""Names of functions and classes whose result is a number to look at, not an activation."""
ENDS = frozenset({"sum", "mean", "log", "item", "nanmean"})
TAKES_NO_FLOAT = "the result is float32 then, and a layer in half would not take it"


@dataclass(frozen=True)
class Quotient:
    """``above / below``, where ``below`` is guarded; ``above`` is None for a reciprocal."""

    node: ast.expr
    above: ast.expr | None
    guard: Guard

    @classmethod
    def of(cls, node: ast.expr, at: Context) -> Quotient | None:
        """The quotient of a division or a call; None: it is none, or nothing guards it."""
        parts = _parts(node, at)
        guard = Guard.of(parts[1], node, at) if parts is not None else None
        if parts is None or guard is None or guard.others or guard.epsilon <= 0:
            return None
        return cls(node, parts[0], guard)

    def vanishing(self, at: Context) -> bool:
        """Whether the numerator is made of what its denominator is made of (``x / x.sum()``)."""
        if self.above is None:
            return False
        return bool(_roots(self.above, at) & _roots(self.guard.operand, at))

    def by_norm(self, at: Context) -> bool:
        """Whether the denominator is a norm."""
        node: ast.expr | None = self.guard.operand
        while isinstance(node, ast.Name):
            node = at.definition(node.id, node)
        operation = at.operation(node) if node is not None else None
        return operation is not None and operation[0] in NORMS

    def away(self, at: Context) -> bool:
        """Whether the denominator is bounded away from 0."""
        value = at.value(self.guard.operand)
        return at.least(value) > Guard.OVERFLOWS or value.hi < -Guard.OVERFLOWS

    def fix(self, at: Context) -> tuple[Fix | None, list[Evidence]]:
        """The upcast of both operands, and notes on the other statements that it touches.

        Where the quotient goes on as an activation it returns to its dtype; one that may exceed
        half's range itself cannot, and the fix is unsafe.
        """
        places = [self.guard.operand]
        if self.above is not None:
            value = at.value(self.above)
            if value.may_be_half and value.maybe_tensor:
                places.append(self.above)
        if any(isinstance(getattr(place, "ctx", None), ast.Store) for place in places):
            return None, []
        suffixes = dict.fromkeys(places, ".float()")
        names = ", ".join(dict.fromkeys(at.text(place) for place in places))
        title = f"divide in float32: upcast {names}"
        level, reason = Applicability.SAFE, None
        if not ends_in_term(self.node, at):
            within = self.above if self.vanishing(at) else None
            owner = owner_of(self.node, within, at) if within is not None else None
            if owner is not None:
                suffixes[self.node] = f".to({owner}.dtype)"
                title += ", and return to its dtype"
            else:
                level, reason = Applicability.UNSAFE, TAKES_NO_FLOAT
        edits = at.append(suffixes)
        if edits is None:
            return None, []
        statement = at.statement(self.node)
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
    name = (at.operation(node) or ("",))[0].rstrip("_")
    if name == "reciprocal" and operands:
        return None, operands[0]
    return (operands[0], operands[1]) if name in QUOTIENTS and len(operands) > 1 else None


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


def ends_in_term(node: ast.expr, at: Context) -> bool:
    """Whether a value ends in a loss or a metric, which may be float32."""
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


def owner_of(node: ast.expr, within: ast.expr, at: Context) -> str | None:
    """A name inside an expression that has the dtype of ``node``."""
    dtype = at.value(node).dtype
    for part in ast.walk(within):
        if isinstance(part, (ast.Name, ast.Attribute)):
            name = dotted(part)
            if name and at.value(part).dtype == dtype and at.is_tensor(part):
                return name
    return None


class Upcast:
    """Upcasts of the operand of a function, and the way back to its dtype."""

    @staticmethod
    def named(places: Sequence[ast.expr], at: Context) -> str:
        """The places in a title; one of several lines is not spelled out."""
        texts = (at.text(place) for place in places)
        return ", ".join(dict.fromkeys("the operand" if "\n" in t else t for t in texts))

    @staticmethod
    def of(places: list[ast.expr], node: ast.expr, at: Context, *, fits: bool = True) -> Fix | None:
        """``.float()`` on places; ``fits``: the result of ``node`` is in half's range.

        Where the result goes on as an activation it returns to its dtype.
        """
        suffixes = dict.fromkeys(places, ".float()")
        title = f"compute in float32: upcast {Upcast.named(places, at)}"
        level, reason = Applicability.SAFE, None
        if at.value(node).dtype != "float32" and not ends_in_term(node, at):
            owners = (owner_of(node, place, at) for place in places)
            owner = next((name for name in owners if name), None) if fits else None
            if owner is not None:
                suffixes[node] = f".to({owner}.dtype)"
                title += ", and return to its dtype"
            else:
                level, reason = Applicability.UNSAFE, TAKES_NO_FLOAT
        edits = at.append(suffixes)
        return Fix(title, level, edits, reason) if edits is not None else None
