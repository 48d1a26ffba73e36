"""Layers, losses and containers of ``torch.nn``, and objects of classes that derive from one."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Final

from precision_lint.dataflow import objects
from precision_lint.dataflow.creation import beside_weights
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.tensors import dtype_of
from precision_lint.domains.joining import join_all, unknown
from precision_lint.domains.values import (
    Closure,
    DtypeValue,
    Instance,
    Scalar,
    Sequence,
    Special,
    Table,
    Tensor,
    Value,
    counts,
)
from precision_lint.syntax.program import Class
from precision_lint.torchmodel import layers

SIZES: Final = (
    "in_features", "out_features", "in_channels", "out_channels", "num_embeddings", "embedding_dim",
    "num_features", "num_channels", "num_groups", "input_size", "hidden_size", "embed_dim",
    "num_heads", "d_model",
)  # fmt: skip
"""Parameters of layers that are numbers."""


def hold(values: Iterable[Value]) -> None:
    """Note that something holds the scalers among these."""
    for one in values:
        if isinstance(one, Special) and one.kind == "scaler":
            one.fields["held"] = True
        elif isinstance(one, Sequence):
            hold(one.items or ())
        elif isinstance(one, Table):
            hold(one.items.values())


def make_layer(
    it: Interpreter,
    layer: layers.Layer,
    arguments: list[Value],
    keywords: dict[str, Value],
    node: ast.AST,
) -> Value:
    """A layer, loss or container of ``torch.nn``."""
    root = objects.new_root(objects.as_made(it), node, it)
    if layer.container:
        hold((*arguments, *keywords.values()))
        return Instance(layer.name, {}, root, items=_items(it, layer, arguments, keywords))
    given = dict(zip(layer.parameters, arguments, strict=False))
    given.update(keywords)
    counts(given[name] for name in SIZES if name in given)
    if "dtype" in given:
        asked = dtype_of(it, given["dtype"])
        if asked is not None:
            root.made = asked
    elif beside_weights(given.get("device")):
        root.made = it.program.default_dtype
    copied = given.get(COPIED.get(layer.name, ""))
    if isinstance(copied, Instance):
        root.made = objects.weights_of(it, copied)[0]
    return Instance(layer.name, {}, root, arguments=given)


COPIED: Final = {"TransformerEncoder": "encoder_layer", "TransformerDecoder": "decoder_layer"}
"""Layers that are made of copies of another one, by the parameter that is given it."""


def init_layer(
    it: Interpreter,
    owner: Instance,
    arguments: list[Value],
    keywords: dict[str, Value],
    node: ast.AST,
) -> None:
    """The ``__init__`` of the layer that a class derives from."""
    layer = layers.layer(objects.layer_of(it, owner.cls))
    made = make_layer(it, layer, arguments, keywords, node) if layer is not None else None
    if isinstance(made, Instance):
        owner.arguments = made.arguments
        if made.items is not None:
            owner.items = made.items
        if "dtype" in made.arguments:
            owner.root.made = made.root.made


def as_layer(it: Interpreter, value: Instance) -> Instance | None:
    """An object as the layer that its class derives from; None: that is none."""
    base = objects.layer_of(it, value.cls)
    if not base:
        return None
    return Instance(
        base, value.attributes, value.root, value.path, value.arguments, None, value.also
    )


def _items(
    it: Interpreter, layer: layers.Layer, arguments: list[Value], keywords: dict[str, Value]
) -> Sequence | Table:
    """What a container of modules holds."""
    first = arguments[0] if arguments else next(iter(keywords.values()), None)
    if layer.name in ("ModuleDict", "ParameterDict") or (
        isinstance(first, Table) and layer.name == "Sequential"
    ):
        if isinstance(first, Table):
            if layer.name != "Sequential":
                return first
            inside = tuple(first.items.values())
            if first.element is None:
                return Sequence(inside, None, "list")
            return Sequence(None, join_all([*inside, first.element]), "list")
        return Table({}, None)
    if layer.name == "Sequential":
        return Sequence(tuple(arguments), None, "list")
    if isinstance(first, Sequence):
        return Sequence(first.items, first.element, "list")
    if isinstance(first, Special) and first.kind == "generator":
        return Sequence(None, first.fields["element"], "list")
    if isinstance(first, Instance) and isinstance(first.items, Sequence):
        return first.items
    return Sequence((), None, "list") if first is None else Sequence(None, unknown(), "list")


def has_no_weights(it: Interpreter, owner: Instance, cast: bool) -> bool:
    """Whether a loss or a layer of torch has nothing in it that a cast of it would change.

    cast: the code says in which dtype it is called, so that this holds of the project's own classes too.
    """
    if isinstance(owner.cls, Class):
        bases = [one for one in objects.ancestry(it, owner.cls) if isinstance(one, str)]
        parts = owner.attributes.values()
        return (
            cast and set(bases) <= set(objects.MODULES) and all(_is_plain(it, one) for one in parts)
        )
    layer = layers.layer(owner.cls)
    if layer is None or layer.container or layer.weights or layer.buffers:
        return False
    return not any(isinstance(one, Tensor) for one in owner.arguments.values())


def _is_plain(it: Interpreter, value: Value) -> bool:
    """Whether a value is no tensor, and holds none."""
    if isinstance(value, Instance):
        return has_no_weights(it, value, cast=True)
    return isinstance(value, (Scalar, DtypeValue, Closure))
