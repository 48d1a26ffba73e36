"""Models that the code builds and never casts: who makes others half beside them says nothing of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from precision_lint.dataflow import objects
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.layer_objects import has_no_weights, hold
from precision_lint.domains import dtypes
from precision_lint.domains.values import (
    PARAMETER,
    DtypeValue,
    Instance,
    Symbol,
    Tensor,
    Unknown,
    Value,
)
from precision_lint.events import Function
from precision_lint.syntax.program import Class, scan

MAKES_WEIGHTS = frozenset({"register_buffer", "register_parameter", "Parameter"})


def note(it: Interpreter, made: Value, given: Iterable[Value], named: Iterable[str]) -> None:
    """Note an object that is built; what it is given is held by it, perhaps."""
    values = [*given]
    hold(values)
    if isinstance(made, Instance) and not it.script and objects.is_module(it, made.cls):
        dtype = "dtype" in named or any(isinstance(one, DtypeValue) for one in values)
        kept = _keeps_one(made, values)
        if dtype or kept or _is_part(it) or made.root.made is not dtypes.MADE:
            made.root.alone = False
        around = it.function.qualname if it.function is not None else ""
        it.program.made.append((made, (it.module.path, around)))


def moved(it: Interpreter, owner: Instance, arguments: list[Value]) -> None:
    """Note what an object is moved to; after a cast to a dtype that is a device."""
    places = tuple([one.symbol for one in arguments if isinstance(one, Unknown)])
    if objects.was_cast(it, owner) is not None:
        for symbol in places:
            symbol.uses |= Symbol.DEVICE
    owner.root.moved += places


def _is_part(it: Interpreter) -> bool:
    """Whether what is built here goes with a module whose ``__init__`` runs; other objects cast nothing."""
    cls = it.function.cls if it.function is not None else None
    return bool(it.building) and (cls is None or objects.is_module(it, cls))


def _keeps_one(made: Instance, given: list[Value]) -> bool:
    """Whether an object holds a model that it was given, which may be half."""
    roots = {id(one.root) for one in given if isinstance(one, Instance)}
    return any(
        isinstance(one, Instance) and id(one.root) in roots for one in made.attributes.values()
    )


def classes(it: Interpreter) -> dict[Function, frozenset[Function]]:
    """The classes of which objects with weights were built, and where; nowhere if any of these may be cast."""
    places: dict[Function, set[Function]] = {}
    cast: set[Function] = set()
    for one, around in it.program.made:
        name = one.cls.module.path, one.cls.qualname
        places.setdefault(name, set()).add(around)
        moved = any(not symbol.uses & Symbol.DEVICE for symbol in one.root.moved)
        left = one.root.alone and not moved
        if not (left and _has_weights(it, one)):
            cast.add(name)
    none: frozenset[Function] = frozenset()
    return {name: none if name in cast else frozenset(some) for name, some in places.items()}


def _has_weights(it: Interpreter, made: Any) -> bool:
    values = made.attributes.values()
    if any(isinstance(one, Tensor) and one.flags & PARAMETER for one in values):
        return True
    if any(isinstance(one, Instance) and not has_no_weights(it, one, cast=True) for one in values):
        return True
    line = [one for one in objects.ancestry(it, made.cls) if isinstance(one, Class)]
    built = (one.methods.get("__init__") for one in line)
    return any(
        init is not None and not MAKES_WEIGHTS.isdisjoint(scan(init).names) for init in built
    )
