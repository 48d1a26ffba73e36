"""Calls of models whose class is supposed: what comes of them rests on that."""

from __future__ import annotations

from typing import Any

from precision_lint.dataflow import calls, objects
from precision_lint.dataflow.interpreter import OPERATIONS, Interpreter
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.joining import unknown
from precision_lint.domains.values import Instance, Sequence, Table, Tensor, Value
from precision_lint.syntax.program import Function


def run(it: Interpreter, function: Function, owner: Value | None, *given: Any) -> Value:
    """``calls.run``; of a supposed class, and of what that calls, under an assumption; kernels are no torch."""
    if function.is_kernel:
        return unknown()
    if it.guessed or not isinstance(owner, Instance) or not owner.guessed:
        return calls.run(it, function, owner, *given)
    cast = objects.was_cast(it, owner)
    it.guessed, live = assume.NETWORK, it.live
    if cast is None:  # what half modes make of it is looked at where it is defined
        it.live &= ~dtypes.HALF_MODES
    try:
        found = calls.run(it, function, owner, *given)
    finally:
        it.guessed, it.live = 0, live
    return found if cast else _supposed(found)


def _supposed(value: Value) -> Value:
    if isinstance(value, Tensor):
        return value.but(assumptions=value.assumptions | assume.NETWORK)
    if isinstance(value, Sequence):
        items = tuple(map(_supposed, value.items)) if value.items is not None else None
        element = _supposed(value.element) if value.element is not None else None
        return Sequence(items, element, value.kind)
    if isinstance(value, Table):
        element = _supposed(value.element) if value.element is not None else None
        return Table({key: _supposed(one) for key, one in value.items.items()}, element)
    return value


OPERATIONS["run"] = run
