"""Batches that processors make for models: features in float32 whatever the model's dtype, and ids."""

from __future__ import annotations

import ast
from typing import Any, Final

from precision_lint.dataflow.building import asked_dtype
from precision_lint.dataflow.graph import behind
from precision_lint.dataflow.interpreter import OPERATIONS, Interpreter
from precision_lint.dataflow.methods import ATTRIBUTES, METHODS
from precision_lint.dataflow.tensors import cast
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.joining import unknown
from precision_lint.domains.values import (
    Batch,
    Scalar,
    Special,
    Table,
    Tensor,
    Unknown,
    Value,
    text,
)
from precision_lint.torchmodel.foreign import IDS, PROCESSED, SENSED, UNCAST

Arguments = list[Value]
Keywords = dict[str, Value]
WITH_TEXT: Final = "with text"
"""What says of features that the processor was given text as well."""


def processed(it: Interpreter, label: str, keywords: Keywords, node: ast.AST) -> Value | None:
    """What a processor or tokenizer gives that is asked for tensors; None: it is not."""
    if text(keywords.get("return_tensors")) != "pt":
        return None
    if label in IDS:
        return Tensor(dtypes.V_INTEGER, "processed", (), node, it.module)
    told = keywords.get("text")
    with_text = told is not None and not (isinstance(told, Scalar) and told.kind == "none")
    made: dict[str, Value] = {
        name: Tensor(
            dtypes.everywhere(dtype), "processed", (), node, it.module,
            assumptions=assume.LIBRARY, data=WITH_TEXT if with_text else None,
        )
        for name, dtype in PROCESSED.items()
    }  # fmt: skip
    if SENSED.isdisjoint(
        keywords
    ):  # a tokenizer gives no features: they are there if they are asked for
        return _batch({k: v for k, v in made.items() if PROCESSED[k] == dtypes.INTEGER}, made)
    return _batch(made, made)


def _batch(items: dict[str, Value], asked: dict[str, Value]) -> Batch:
    """A batch of items, and of others that are known by name."""
    rest = unknown()
    rest.symbol.attributes.update({("entry", name): value for name, value in asked.items()})
    return Batch(items, rest)


def _named(value: Batch) -> dict[str, Value]:
    """All that is known of a batch by name."""
    rest = value.element
    found = rest.symbol.attributes if isinstance(rest, Unknown) else {}
    asked = {
        key[1]: one for key, one in found.items() if isinstance(key, tuple) and key[0] == "entry"
    }
    return {**asked, **value.items}


def features(values: list[Value], cls: str) -> Tensor | None:
    """The features of a processor among values, as they came; None: there are none, or the model casts them.

    cls: the model's class, empty where it is unknown.
    """
    for value in values:
        if isinstance(value, Tensor) and value.assumptions & assume.LIBRARY:
            made = next((one for one in behind(value, 8) if one.op == "processed"), None)
            casts = made is not None and made.data == WITH_TEXT and not cls.startswith(UNCAST)
            if made is not None and not casts:
                return value
    return None


def _attribute(it: Interpreter, value: Batch, name: str, node: ast.AST) -> Value:
    found = _named(value).get(name)
    return found if found is not None else Special("method", node, it.module, of=value, name=name)


def _method(
    it: Interpreter, value: Batch, name: str, arguments: Arguments, keywords: Keywords, node: Any
) -> Value:
    if name != "to":
        result: Value = METHODS[Table](it, value, name, arguments, keywords, node)
        return result
    vector = asked_dtype(it, arguments, keywords)
    if vector is None:
        return value
    asked = {
        key: cast(it, one, vector, node)
        if isinstance(one, Tensor) and one.dtypes[dtypes.CODE] & dtypes.FLOATS
        else one
        for key, one in _named(value).items()
    }
    return _batch({key: asked[key] for key in value.items}, asked)


ATTRIBUTES[Batch] = _attribute
METHODS[Batch] = _method
OPERATIONS["processed"] = processed
OPERATIONS["features"] = features
