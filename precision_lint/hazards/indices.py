"""Indices of what is stored: tensors and lists, which pick items, or slices and numbers."""

from __future__ import annotations

from typing import Any

from precision_lint.dataflow.graph import is_certain
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.objects import is_module
from precision_lint.dataflow.tensors import Applied
from precision_lint.domains import assumptions as assume
from precision_lint.domains.dtypes import BOOLEAN, INTEGER
from precision_lint.domains.values import Scalar, Sequence, Special, Symbol, Tensor, Unknown


def picks(index: Any) -> bool:
    """Whether an index is a tensor or a list: a slice or a number casts what is written."""
    return any(_is_pick(one) for one in _parts_of(index))


def _parts_of(index: Any) -> list[Any]:
    """The indices of each dimension; a list that holds a slice is one of them, as a tuple is."""
    parts = (index.items or (index.element,)) if isinstance(index, Sequence) else ()
    sliced = any(isinstance(one, Special) and one.kind == "slice" for one in parts)
    if parts and (sliced or index.kind == "tuple"):
        return [one for part in parts for one in _parts_of(part)]
    return [index]


def _is_pick(index: Any) -> bool:
    if isinstance(index, Sequence):
        return bool(index.items if index.items is not None else (index.element,))
    if isinstance(index, Tensor):
        return index.rank != 0 and not _is_count(index)
    return isinstance(index, Unknown) and not _is_loose_item(index.symbol)


def _is_loose_item(symbol: Symbol) -> bool:
    """Whether it is a number, for all that is known: a loop has it from something unknown, as a whole or as one
    of several, and nothing uses it as a tensor or calls its methods."""
    pending: Symbol | None = symbol
    while pending is not None and not pending.uses & (Symbol.TENSOR | Symbol.METHODS):
        if pending.label == "*":
            return True
        pending = pending.owner if pending.label.isdigit() else None
    return False


def _is_count(index: Tensor) -> bool:
    """Whether it is a number of Python's: arithmetic of one with what nothing shows to be a tensor."""
    if index.op not in ("add", "sub", "mul", "floor_divide", "remainder", "neg"):
        return False
    pending, found = [index], False
    while pending:
        for one in pending.pop().operands:
            if isinstance(one, Scalar):
                found = found or one.value is None
            elif isinstance(one, Tensor) and one.op == index.op:
                pending.append(one)
            elif isinstance(one, Tensor) and (one.symbol is None or is_certain(one)):
                return False
    return found


def index_kind(it: Interpreter, applied: Applied) -> int:
    """The assumption that an index is a tensor with dimensions, where nothing shows it."""
    index = applied.values[1] if applied.name == "index_put" and len(applied.values) > 1 else None
    parts = [one for one in _parts_of(index) if _is_pick(one)]
    return assume.KIND if parts and not any(_has_dimensions(it, one) for one in parts) else 0


def _has_dimensions(it: Interpreter, index: Any) -> bool:
    """Whether an index is surely a tensor, or what a model is given, and not one item of it."""
    symbol = index.symbol if isinstance(index, (Unknown, Tensor)) else None
    if symbol is None:
        return not isinstance(index, Tensor) or _picks_rows(index)
    if symbol.uses & (Symbol.TENSOR | Symbol.INTEGER) or _of_tensors(symbol.compared):
        return True
    function = it.function
    inside = function is not None and function.cls is not None and is_module(it, function.cls)
    return inside and symbol.owner is None


def _of_tensors(compared: tuple[str, Any, Any] | None) -> bool:
    """Whether a comparison is one of tensors: of what was cast, which no number is, or is used as one."""
    symbols = [one.symbol for one in (compared or ())[1:] if isinstance(one, Unknown)]
    return any(one.uses & Symbol.TENSOR or ("cast of", "") in one.attributes for one in symbols)


def _picks_rows(index: Tensor) -> bool:
    """Whether it holds integers or a mask, and was not itself picked by a number."""
    if index.op == "bitwise_not":
        return True  # of a mask
    if any(one & ~(INTEGER | BOOLEAN) for one in index.dtypes):
        return False
    return index.rank > 0 or index.op not in ("index", "element")
