"""Tensors whose dtype a branch decides, as operands of operations that do not promote."""

from __future__ import annotations

from typing import Any, Final

from precision_lint.dataflow.graph import peel
from precision_lint.dataflow.interpreter import Decision, Interpreter
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import LOW, WIDE
from precision_lint.domains.values import Tensor
from precision_lint.hazards.zeros import transparent
from precision_lint.torchmodel.operations import operation

KEEPS: Final = frozenset(
    {"clone", "neg", "dropout", "index", "view", "element", "unbind", "output"}
)
"""Operations besides views that have the dtype of their first operand, and little else of it."""


def arms(it: Interpreter, value: Any) -> tuple[Tensor, ...]:
    """What a tensor may be here, by the arm of the branch that decided its dtype; none: no branch did.

    Where the code at hand runs only if the same test came out one way, the other arm is left out; where
    it depends on something of that test, nothing is known.
    """
    decision = _decision(value)
    if decision is None:
        return _choices(value)
    asked = decision.asked
    for around in it.branches[::-1]:
        if around.key == asked.key:
            return (decision.first if around.holds is asked.holds else decision.second,)
        if not around.names.isdisjoint(asked.names):
            return ()
    return decision.first, decision.second


def _choices(value: Any) -> tuple[Tensor, ...]:
    """A cast to a dtype that is half or float32 by the code's choice (``float16 if fast else float32``)."""
    value = peel(value)
    while isinstance(value, Tensor) and value.op != "cast" and transparent(value):
        value = peel(value.operands[0])
    if not isinstance(value, Tensor) or value.op != "cast":
        return ()
    code, *modes = value.dtypes
    parts = code & LOW, code & WIDE
    if code > dtypes.ANY or code & ~(LOW | WIDE) or not all(parts):
        return ()
    return tuple(value.but(dtypes=(part, *modes)) for part in parts)


def _decision(value: Any) -> Decision | None:
    """What decided the dtype of a tensor, behind its views."""
    for _ in range(16):
        value = peel(value)
        if not isinstance(value, Tensor) or not value.operands:
            return None
        if value.op == "join":
            return value.data if isinstance(value.data, Decision) else None
        known = operation(value.op)
        if value.op not in KEEPS and (known is None or not known.view):
            return None
        value = value.operands[0]
    return None
