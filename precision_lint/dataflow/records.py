"""Named tuples and namespaces, which hold what they were called with; attributes by names that are values."""

from __future__ import annotations

import ast
from typing import Final

from precision_lint.dataflow import objects
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.domains import dtypes
from precision_lint.domains.joining import join, unknown
from precision_lint.domains.values import (
    NONE,
    ClassValue,
    Instance,
    Scalar,
    Sequence,
    Tensor,
    Value,
    text,
)
from precision_lint.syntax.program import Class

NAMED_TUPLE: Final = "typing.NamedTuple"
NAMESPACES: Final = frozenset({"types.SimpleNamespace", "argparse.Namespace"})
MAKERS: Final = NAMESPACES | {"collections.namedtuple", NAMED_TUPLE}
ITEMS: Final = "named items"
"""What the names of a named tuple are kept under, in its class's facts."""


def made(
    it: Interpreter, name: str, arguments: list[Value], keywords: dict[str, Value], node: ast.AST
) -> Value:
    """``namedtuple("Point", "x y")`` is a class; ``SimpleNamespace(x=1)`` an object."""
    if name in NAMESPACES:
        result = Instance(
            _class(it, node, "Namespace"), {}, objects.new_root(dtypes.V_ANY, node, it)
        )
        result.attributes.update(keywords)
        return result
    names = _names(arguments[1] if len(arguments) > 1 else keywords.get("field_names"))
    if names is None:
        return unknown()
    cls = _class(it, node, text(arguments[0] if arguments else None) or "Record")
    cls.facts["ancestry"] = [cls, NAMED_TUPLE]
    cls.facts[ITEMS] = names
    return ClassValue(cls)


def _class(it: Interpreter, node: ast.AST, name: str) -> Class:
    """The class of what a call makes."""
    known: dict[ast.AST, Class] = it.module.facts.setdefault("records", {})
    if node not in known:
        written = ast.ClassDef(name, [], [], [], [])
        known[node] = Class(ast.copy_location(written, node), it.module, name)
    return known[node]


def _names(given: Value | None) -> list[str] | None:
    """Names as a string, a list of strings or of pairs."""
    said = text(given)
    if said is not None:
        return said.replace(",", " ").split()
    if not isinstance(given, Sequence) or given.items is None:
        return None
    firsts = [
        one.items[0] if isinstance(one, Sequence) and one.items else one for one in given.items
    ]
    names = [text(one) for one in firsts]
    return None if None in names else [one for one in names if one is not None]


def is_named_tuple(it: Interpreter, value: Value) -> bool:
    """Whether an object can be unpacked into its attributes."""
    return isinstance(value, Instance) and objects.is_a(it, value.cls, NAMED_TUPLE)


def fill(it: Interpreter, value: Instance, names: list[str]) -> None:
    """Let the attributes of a named tuple be its items, too."""
    if is_named_tuple(it, value):
        items = [value.attributes.get(name) or unknown() for name in names]
        value.attributes.update(zip(names, items, strict=True))
        value.items = Sequence(tuple(items), None, "tuple")


def replaced(it: Interpreter, value: Instance, keywords: dict[str, Value], node: ast.AST) -> Value:
    """A copy of an object with other attributes: ``dataclasses.replace``, ``_replace``."""
    known = {k: v for k, v in value.attributes.items() if isinstance(k, str)}
    copy = Instance(value.cls, {**known, **keywords}, objects.new_root(dtypes.V_ANY, node, it))
    if isinstance(value.items, Sequence):
        fill(it, copy, list(known))
    return copy


# names that are values


def made_up(name: Value | None) -> str:
    """What stands for attributes whose names are put together, by how they begin (``f"layer{i}"``)."""
    begins = name.operands[0] if isinstance(name, Scalar) and name.op == "format" else None
    return f"{text(begins) or ''}*"


def store_named(it: Interpreter, owner: Instance, name: Value | None, value: Value) -> None:
    """``setattr(owner, name, value)``; where the name may be any, what others hold may be replaced."""
    known = text(name)
    if known is None:
        known = made_up(name)
        if known == "*":
            _replaced_by(it, owner, value)
        old = it.variables.get(objects.slot(owner.attributes, known), owner.attributes.get(known))
        value = value if old is None else join(old, value)
    objects.store(it, owner, known, value)


def _replaced_by(it: Interpreter, owner: Instance, value: Value) -> None:
    """An attribute that is not known is stored: flags and counts may be others then, tensors this one."""
    for name, first in list(owner.attributes.items()):
        before = it.variables.get(objects.slot(owner.attributes, name), first)
        if isinstance(before, Scalar) and before.kind in ("bool", "int"):
            objects.store(it, owner, name, Scalar(None, before.kind))
        elif isinstance(before, Tensor) and isinstance(value, Tensor):
            objects.store(it, owner, name, join(before, value))


def hide(it: Interpreter, owner: Instance, name: Value | None, value: Value) -> None:
    """``owner.__dict__[name] = value``: a model that is kept so is no part, and not cast with its owner.

    Of one that nobody was seen to build, that says nothing.
    """
    if isinstance(value, Instance) and value.root.node is None:
        return
    if isinstance(value, Instance) and objects.was_cast(it, value) is None:
        built = objects.weights_of(it, value)[0][dtypes.CODE]
        apart = objects.Cast(dtypes.everywhere(built), it.clock, None)  # whatever casts the rest
        it.weights = {**it.weights, (value.root, value.path): apart}
    store_named(it, owner, name, value)
    owner.attributes[objects.HIDDEN, text(name) or made_up(name)] = NONE


def load_made_up(it: Interpreter, owner: Instance, name: Value) -> Value | None:
    """An attribute by a name that is put together; None: nothing was stored by one like it.

    Of a name that may be any, nothing is known but the kind of object: another one was stored, too.
    """
    some = made_up(name)
    value = it.variables.get(objects.slot(owner.attributes, some), owner.attributes.get(some))
    if value is None or (some == "*" and isinstance(value, Tensor)):
        return None
    return objects.held(it, owner, some, value)
