"""``DataLoader``: what iterating one gives is collated of what its data set gives by index."""

from __future__ import annotations

import ast
from typing import Final

from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.libraries import TORCH
from precision_lint.dataflow.objects import find_method
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.values import (
    Array,
    Closure,
    Instance,
    Reference,
    Scalar,
    Sequence,
    Table,
    Tensor,
    Value,
)

ORDER: Final = (
    "dataset",
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
)


def loader(
    it: Interpreter, name: str, arguments: list[Value], keywords: dict[str, Value], node: ast.AST
) -> Value:
    """A loader of a data set of the project: an unknown object whose elements are known."""
    given = {**dict(zip(ORDER, arguments, strict=False)), **keywords}
    made = it.unknown("DataLoader", dtypes.LOADED, assume.BATCH)
    dataset = given.get("dataset")
    if not isinstance(dataset, Instance) or "collate_fn" in given:
        return made
    method = find_method(it, dataset.cls, "__getitem__")
    if method is not None:
        index = Scalar(None, "int", 0)
        item = it.call(Closure(method, dataset), [index], {}, node)
        made.symbol.attributes["*"] = _collated(it, item, node)
    return made


def _collated(it: Interpreter, item: Value, node: ast.AST) -> Value:
    """A batch of items, as ``default_collate`` makes it."""
    if isinstance(item, Sequence) and item.items is not None:
        return Sequence(tuple([_collated(it, one, node) for one in item.items]), None, "list")
    if isinstance(item, Table) and item.items:
        return Table({key: _collated(it, one, node) for key, one in item.items.items()}, None)
    if isinstance(item, Array):
        return it.call(Reference("torch.as_tensor"), [item], {}, node)
    if isinstance(item, Tensor) and not item.dtypes[dtypes.CODE] & dtypes.OTHER:
        return item.but(op="element", operands=(item,), rank=-1)
    if isinstance(item, Scalar) and item.kind in ("int", "float", "bool"):
        kinds = {"int": dtypes.V_INTEGER, "float": dtypes.V_FLOAT64, "bool": dtypes.V_BOOLEAN}
        return Tensor(kinds[item.kind], "tensor", (item,), node, it.module, item.lo, item.hi)
    return it.unknown("batch", dtypes.LOADED, assume.BATCH)


TORCH["torch.utils.data.DataLoader"] = TORCH["torch.utils.data.dataloader.DataLoader"] = loader
