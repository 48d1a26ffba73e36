"""Logarithms of what is 0 in half, and gradients that overflow there."""

from __future__ import annotations

import ast
from typing import Any

from precision_lint.dataflow.graph import peel
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.tensors import Applied, hazard
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import FLOAT16, LOW, MODES, OTHER
from precision_lint.domains.values import DETACHED, Tensor, number
from precision_lint.hazards.places import made_at, operand_node, upcast_places
from precision_lint.hazards.rounding import RECIPROCAL
from precision_lint.hazards.zeros import REFERENCE, Guard, Least, guard_of, least

LOGARITHMS = ("log", "log2", "log10")


@hazard(*LOGARITHMS)
def zero_before_log(it: Interpreter, applied: Applied) -> None:
    """``log`` of a guarded or unguarded value that is 0, or nearly, in float16."""
    value = applied.tensor(0)
    if value is None or not any(_low(one) for one in _parts(value)):
        return
    reference = least(value, REFERENCE)
    if reference.bound <= 0:
        return  # float32 has the same zero
    for fate, modes, found in _fates(value, applied):
        _emit(it, applied, value, fate, modes, found)


def _parts(value: Tensor) -> list[Tensor]:
    """A value, its guard and what that guards."""
    found = [value]
    guard = guard_of(value)
    while guard is not None:
        found += [guard.made, *([guard.base] if isinstance(guard.base, Tensor) else [])]
        guard = guard_of(guard.base)
    return found


def _low(value: Tensor) -> bool:
    return bool(dtypes.modes_of(value.dtypes, LOW))


def _fates(value: Tensor, applied: Applied) -> list[tuple[str, int, Least]]:
    """What happens, in which modes."""
    zero = gradient = 0
    first: dict[str, Least] = {}
    for mode in range(len(MODES)):
        if not any(_is(one, mode, FLOAT16) for one in _parts(value)):
            continue
        found = least(value, mode)
        if found.bound <= 0:
            zero |= 1 << mode
            first.setdefault("zero", found)
        elif found.bound < RECIPROCAL and not applied.result.flags & DETACHED:
            gradient |= 1 << mode
            first.setdefault("gradient", found)
    result = []
    if zero:
        result.append(("zero", zero, first["zero"]))
    if gradient:
        result.append(("gradient", gradient, first["gradient"]))
    return result


def _is(value: Tensor, mode: int, dtype: int) -> bool:
    one = value.dtypes[mode]
    return bool(one & dtype) and not one & OTHER


def _emit(
    it: Interpreter, applied: Applied, value: Tensor, fate: str, modes: int, found: Least
) -> None:
    guard = found.guard
    base = found.base
    kind = "log-guard" if guard is not None else "log-unguarded"
    if _complement(base) is not None:
        kind = "log-complement"
    elif isinstance(base, Tensor) and base.op in ("rand", "rand_like"):
        kind = "log-noise"
    operand = operand_node(applied.node, it.module, 0)
    places = upcast_places(it, base, _guarded(guard, it) or operand)
    it.emit(
        kind,
        applied.node,
        modes,
        value.assumptions | found.assumptions,
        about=value,
        operation=applied.name,
        fate=fate,
        epsilon=guard.epsilon if guard is not None else 0.0,
        clamped=guard is not None and guard.made.op != "add",
        epsilon_at=made_at(it, guard.source) if guard is not None else None,
        base=base.op if isinstance(base, Tensor) else "",
        base_at=made_at(it, base),
        upcast=places,
        known=isinstance(base, Tensor) and base.op not in ("input", "argument"),
    )


def _guarded(guard: Guard | None, it: Interpreter) -> ast.AST | None:
    """The expression that a guard guards, in this file."""
    if guard is None or guard.made.home is not it.module:
        return None
    operands = guard.made.operands
    index = 0 if peel(operands[0]) is guard.base else 1
    return operand_node(guard.made.node, it.module, index)


def _complement(base: Any) -> Tensor | None:
    """The probability ``p`` of ``1 - p``."""
    base = peel(base)
    if isinstance(base, Tensor) and base.op in ("sub", "rsub") and len(base.operands) >= 2:
        if number(base.operands[0]) == 1:
            inner = peel(base.operands[1])
            if isinstance(inner, Tensor) and inner.op in ("sigmoid", "softmax", "hardsigmoid"):
                return inner
    return None

