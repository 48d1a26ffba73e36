"""Contexts of a function that differ in ranges and numbers alone: what they have in common.

A function is interpreted in a bounded number of contexts.  A call in a further one gives what a
context with the same dtypes gave, of which only kinds and dtypes are kept.
"""

from __future__ import annotations

import ast
from typing import Any, Final

from precision_lint.dataflow import objects
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.domains import assumptions as assume
from precision_lint.domains.dtypes import AMP16, ANY, FLOAT16, HALF16, OTHER, Dtypes
from precision_lint.domains.values import (
    INF,
    Array,
    DtypeValue,
    Instance,
    Scalar,
    Sequence,
    Tensor,
    Unknown,
    Value,
)

ITEMS: Final = 24
"""Items of a sequence that are looked at."""


def outline(it: Interpreter, value: Value | None) -> Any:
    """A hashable stand-in for the kind and the dtypes of a value."""
    if isinstance(value, Tensor):
        return ("tensor", _plain(value.dtypes), value.rank == 0)
    if isinstance(value, Unknown):
        return ("?", _plain(value.symbol.vector))
    if isinstance(value, Scalar):
        return (value.kind, value.value if value.kind in ("none", "bool") else None)
    if isinstance(value, Instance):
        weights, _ = objects.weights_of(it, value)
        return ("object", value.cls if isinstance(value.cls, str) else id(value.cls), weights)
    if isinstance(value, Sequence):
        if value.items is None:
            return ("[*]", outline(it, value.element))
        return ("[]", *[outline(it, item) for item in value.items[:ITEMS]])
    if isinstance(value, (DtypeValue, Array)):
        return (value.__class__, _plain(value.dtypes))
    return value.__class__


def outlined(it: Interpreter, value: Value, node: ast.AST, assumptions: int) -> Value | None:
    """What is left of a result where only kinds and dtypes count; None: nothing."""
    if isinstance(value, Tensor):
        return value.but(
            dtypes=_plain(value.dtypes), op="input", operands=(), node=node, home=it.module,
            lo=-INF, hi=INF, reach=0.0, symbol=None, data=None,
            assumptions=value.assumptions | assumptions,
        )  # fmt: skip
    if isinstance(value, Unknown):
        symbol = value.symbol
        vector = _plain(symbol.vector)
        return it.unknown(symbol.label, vector, symbol.assumptions | assumptions)
    if isinstance(value, Scalar):
        return value if value.kind in ("none", "bool") else Scalar(None, value.kind)
    if isinstance(value, DtypeValue):
        return DtypeValue(_plain(value.dtypes), node, it.module, value.assumptions | assumptions)
    if isinstance(value, Sequence):
        items = None
        if value.items is not None:
            items = tuple([_or_unknown(it, one, node, assumptions) for one in value.items])
        element = value.element
        if element is not None:
            element = _or_unknown(it, element, node, assumptions)
        return Sequence(items, element, value.kind)
    return None


def follow(values: list[Value]) -> bool:
    """Whether values may all have the dtype that a model's inputs have in half modes."""
    for one in values:
        vector: Dtypes = ()
        if isinstance(one, Tensor):
            vector = one.dtypes
        elif isinstance(one, Unknown):
            vector = one.symbol.vector
        if vector and not (
            vector[HALF16] & (FLOAT16 | OTHER) and vector[AMP16] & (FLOAT16 | OTHER)
        ):
            return False
    return True


def _or_unknown(it: Interpreter, value: Value, node: ast.AST, assumptions: int) -> Value:
    found = outlined(it, value, node, assumptions)
    return found if found is not None else it.unknown("", (ANY,) * 5, assume.CALL)


def _plain(vector: Dtypes) -> Dtypes:
    """A vector without the numbers of symbols."""
    if all(one <= ANY for one in vector):
        return vector
    return tuple([one & ANY for one in vector])
