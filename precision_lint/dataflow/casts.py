"""Casts of modules to another dtype, and what they say of how a project is run."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.objects import (
    DRIVES,
    HIDDEN,
    TRAINS,
    Cast,
    Weights,
    ancestry,
    of_own_parts,
    part,
    weights_of,
)
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import Dtypes
from precision_lint.domains.values import Instance, Sequence, Table, Value
from precision_lint.events import Function as Names
from precision_lint.syntax.program import Class, Function, every, scan
from precision_lint.syntax.stated import Stated

PARTS: Final = 200
"""Objects that are looked at for the classes that a model is made of."""
HALVES: Final = ((dtypes.FLOAT16, dtypes.HALF16), (dtypes.BFLOAT16, dtypes.HALFBF))


def _hands_on(node: ast.AST) -> bool:
    """``super().method()``"""
    owner = getattr(getattr(node, "func", None), "value", None)
    return isinstance(owner, ast.Call) and getattr(owner.func, "id", "") == "super"


def _teaches(it: Interpreter) -> bool:
    """Whether code that trains runs a model without gradients: it is not the one that is trained."""
    return it.no_grad and it.function is not None and not scan(it.function).names.isdisjoint(TRAINS)


def _steps(function: Function) -> bool:
    """Whether a function itself trains or evaluates, batch by batch; who builds a model calls ``eval``, too."""
    names = scan(function).names
    if not names.isdisjoint(DRIVES - {"eval"}):
        return True
    return "eval" in names and any(isinstance(one, ast.For) for one in every(function.node))


def show_cast(
    it: Interpreter,
    vector: Dtypes,
    node: ast.AST,
    known: bool = False,
    classes: frozenset[Names] = frozenset(),
    model: Instance | None = None,
) -> None:
    """Note that a model is run in half; what ``super().half()`` hands on says nothing of it.

    Who casts one model says nothing of the others of a project: in other files, only what is called from
    here counts, unless the function at hand trains or evaluates what it casts.  known: the code builds it, or
    another library does, so that what it runs is known.  classes: those of the project that it is made of.
    model: the object, of which the classes are known once it is seen what becomes of it.
    """
    if _hands_on(node) or _teaches(it):
        return
    written = vector[dtypes.CODE]
    for dtype, mode in HALVES:
        if written & dtype and not written & dtypes.OTHER:
            said = f"a model is made {dtypes.NAMES[dtype]} here"
            runs = _steps(it.function) if it.function is not None else it.module.trains()
            said_so = isinstance(node, Stated)
            bound = not said_so and (known or not runs)
            flag = written != dtype
            inside = not said_so and of_own_parts(it)
            sign = it.sign(mode, said, node, None, inside, flag, bound, classes=classes)
            if model is not None:
                it.halved.append((sign, model, classes_of(it, model)))


def settle(it: Interpreter) -> None:
    """At the end of an analysis: which classes run in half, of what was cast, and called or handed out.

    What was cast back does not, in whole or in part, and what is only saved.
    """
    for sign, model, classes in it.halved:
        dtype = next(one for one, mode in HALVES if mode == sign.mode)
        casts = [weights_of(it, model)[0]] + [
            entry.dtypes
            for (root, path), entry in it.weights.items()
            if root is model.root and path[: len(model.path)] == model.path
        ]
        used = model.root.out or model.root.kept
        if used and all(one[dtypes.CODE] == dtype for one in casts):
            it.signs.add(replace(sign, classes=classes))
    it.halved.clear()


def handed_out(value: Value) -> None:
    """Note an object that a function gives back."""
    items: Iterable[Value] = value.items or () if isinstance(value, Sequence) else (value,)
    if isinstance(value, Table):
        items = value.items.values()
    for one in items:
        if isinstance(one, Instance):
            one.root.out = True


def classes_of(it: Interpreter, owner: Instance) -> frozenset[Names]:
    """The classes of an object and of its parts, and their bases, by file and qualified name."""
    found: set[Names] = set()
    waiting: list[Any] = [owner]
    seen: set[int] = set()
    while waiting and len(seen) < PARTS:
        one = waiting.pop()
        if isinstance(one, Instance) and id(one.attributes) not in seen:
            seen.add(id(one.attributes))
            line = ancestry(it, one.cls) if isinstance(one.cls, Class) else ()
            found |= {(x.module.path, x.qualname) for x in line if isinstance(x, Class)}
            waiting += [*one.attributes.values(), one.items]
        elif isinstance(one, Sequence):
            waiting += one.items or (one.element,)
        elif isinstance(one, Table):
            waiting += one.items.values()
    return frozenset(found)


def cast_module(
    it: Interpreter, owner: Instance, vector: Dtypes, node: ast.AST, assumptions: int = 0
) -> None:
    """``module.half()``, ``module.to(dtype)``: in place, for everything below."""
    it.clock += 1
    library = owner.cls if isinstance(owner.cls, str) else ""
    known = not library or not library.startswith("torch.")
    show_cast(it, vector, node, known, model=owner)
    run = dtypes.run_in(vector)
    assumptions |= assume.BRANCH if run != vector else 0
    made = Cast(run, it.clock, it.place(node), assumptions)
    rest = _left(it, owner, vector)
    it.weights = {**it.weights, **rest, (owner.root, owner.path): made}


def _left(it: Interpreter, owner: Instance, vector: Dtypes) -> Weights:
    """What the code builds and then casts a part of to half is not cast as a whole: the rest stays as made."""
    root = owner.root
    narrow = vector[dtypes.CODE] in (dtypes.FLOAT16, dtypes.BFLOAT16)
    if not owner.path or root.made is not dtypes.MADE or not narrow:
        return {}
    if any((root, owner.path[:length]) in it.weights for length in range(len(owner.path))):
        return {}
    return {(root, ()): Cast(dtypes.V_FLOAT32, 0, None)}


def cast_some(it: Interpreter, owner: Instance, vector: Dtypes) -> None:
    """``parameter.data = ...`` for those of an object: each has this dtype, or the one that it had."""
    before, place = weights_of(it, owner)
    joined = dtypes.join(before, vector)
    if joined != before:
        it.clock += 1
        it.weights = {**it.weights, (owner.root, owner.path): Cast(joined, it.clock, place)}


def with_parts(owner: Instance) -> list[Instance] | None:
    """The objects that an object is made of, the innermost first, and itself; None where there are many, or
    one is part of another one like it."""
    found = list[Instance]()
    waiting: list[tuple[Instance, tuple[Any, ...]]] = [(owner, ())]
    while waiting:
        one, around = waiting.pop(0)
        if len(found) == FEW or any(one.attributes is outer for outer in around):
            return None
        found.append(one)
        parts = parts_of(one, one.attributes)
        waiting += [(part, (*around, one.attributes)) for part in parts]
    return found[::-1]


FEW: Final = 24
"""Parts of a model that a function is applied to, or that are looked at, one by one."""


def parts_of(owner: Instance, attributes: dict[Any, Value]) -> list[Instance]:
    """The objects that an object holds as its parts, by attributes and as items."""
    held = [(k, v) for k, v in attributes.items() if (HIDDEN, k) not in owner.attributes]
    if isinstance(owner.items, Sequence):
        held += [(str(number), one) for number, one in enumerate(owner.items.items or ())]
    return [part(owner, name, one) for name, one in held if isinstance(one, Instance)]
