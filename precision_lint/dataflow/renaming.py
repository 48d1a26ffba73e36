"""A function's result in terms of the objects of another caller."""

from __future__ import annotations

from collections.abc import Mapping

from precision_lint.domains import dtypes
from precision_lint.domains.values import Sequence, Symbol, Table, Tensor, Unknown, Value


def renamed(value: Value, names: Mapping[int, int]) -> Value:
    """A value with other numbers of unknown objects and unknown dtypes, by those it has."""
    if isinstance(value, Tensor):
        return _tensor(value, names)
    if isinstance(value, Sequence):
        return _sequence(value, names)
    if isinstance(value, Table):
        items = {key: renamed(item, names) for key, item in value.items.items()}
        element = None if value.element is None else renamed(value.element, names)
        return value.__class__(items, element)
    if isinstance(value, Unknown) and value.symbol.number in names:
        symbol = value.symbol
        fresh = Symbol(symbol.label, symbol.vector, symbol.assumptions)
        fresh.number = names[symbol.number]
        return Unknown(fresh)
    return value


def _tensor(value: Tensor, names: Mapping[int, int]) -> Tensor:
    if all(one <= dtypes.ANY for one in value.dtypes):
        return value
    moved = [
        names.get(one >> 8, one >> 8) << 8 | one & dtypes.ANY if one > dtypes.ANY else one
        for one in value.dtypes
    ]
    return value.but(dtypes=tuple(moved))


def _sequence(value: Sequence, names: Mapping[int, int]) -> Sequence:
    if value.items is not None:
        return Sequence(tuple([renamed(item, names) for item in value.items]), None, value.kind)
    ends = value.ends
    if ends is not None:
        before, behind = [[renamed(one, names) for one in part] for part in (ends[0], ends[2])]
        ends = (before, renamed(ends[1], names), behind)
    element = None if value.element is None else renamed(value.element, names)
    return Sequence(None, element, value.kind, ends)
