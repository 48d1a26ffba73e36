"""Schedules of noise in half: one minus their products is 0 in the first steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from precision_lint.dataflow.graph import behind, is_op, is_square, peel
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.tensors import Applied, hazard
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import LOW
from precision_lint.domains.values import Sequence, Tensor, number
from precision_lint.hazards.overflow import report
from precision_lint.hazards.places import operand_node, upcast_places


@hazard("cumprod")
def schedule(it: Interpreter, applied: Applied) -> None:
    """A cumulative product of ``1 - beta`` in half, also where that was cast after it was computed."""
    value = made = peel(applied.tensor(0))
    if is_op(made, "cast"):
        made = peel(made.operands[0])
    if isinstance(value, Tensor) and is_op(made, "sub") and number(made.operands[0]) == 1:
        modes = dtypes.modes_of(applied.seen.get(0, value.dtypes), LOW)
        whole = operand_node(applied.node, it.module, 0)
        places = upcast_places(it, value, whole) if value is made else ()
        report(it, "half-schedule", applied, value, modes, 0, table=False, upcast=places)


@hazard("sub")
def finished_schedule(it: Interpreter, applied: Applied) -> None:
    """One minus a finished table of products that was cast to half, whatever it is cast to then."""
    if number(applied.values[0]) == 1:
        _report_table(it, applied, applied.tensor(1), lambda one: one.op == "cumprod")


@hazard("sqrt", "rsqrt")
def cosine_schedule(it: Interpreter, applied: Applied) -> None:
    """The root of one minus a cosine schedule in half; nobody takes it of a window."""
    rest = peel(applied.tensor(0))
    if isinstance(rest, Tensor) and rest.op == "sub" and number(rest.operands[0]) == 1:
        _report_table(it, applied, rest.operands[1], _is_cosine_schedule)


def _report_table(
    it: Interpreter, applied: Applied, given: Any, is_table: Callable[[Tensor], bool]
) -> None:
    """Report a table whose digits near 1 half has lost: what is picked of it has been half since."""
    value, modes = peel(given), _half_since(given, is_table)
    if modes and isinstance(value, Tensor):
        report(it, "half-schedule", applied, value, modes, 0, table=True, upcast=())


def _half_since(given: Any, is_table: Callable[[Tensor], bool], depth: int = 12) -> int | None:
    """The modes in which a value is half on the way from a table to it; None: it comes from none."""
    value = peel(given)
    if not isinstance(value, Tensor) or not depth:
        return None
    if is_table(value):
        return 0
    parts: Any = value.operands if value.op == "join" else value.operands[:1]
    if parts and isinstance(parts[0], Sequence):  # ``cat([ones, table[:-1]])``
        parts = parts[0].items or (parts[0].element,)
    for one in parts:
        found = _half_since(one, is_table, depth - 1)
        if found is not None:
            return found | dtypes.modes_of(value.dtypes, LOW)
    return None


def _is_cosine_schedule(value: Tensor) -> bool:
    """``cos(...) ** 2`` of numbers that are counted: it starts at 1."""
    root = is_square(value)
    if not is_op(root, "cos"):
        return False
    return any(one.op in ("linspace", "arange") for one in behind(peel(root), 12))
