"""Branches that ask the same: what one of them left is known where another one asks again.

Behind a branch a variable stands for the values of both arms.  Where the same test is asked again, and
nothing that it reads has changed, the variable is what the arm of that outcome left.  What a region
computes that a flag switches on is the same: where the flag is off, nothing of it was computed in half.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from precision_lint.dataflow.interpreter import Asked, Interpreter, Region, asked_by
from precision_lint.domains.values import (
    IN_BFLOAT16,
    IN_FLOAT16,
    REGIONAL,
    RegionValue,
    Scalar,
    Symbol,
    Tensor,
    Unknown,
    Value,
)
from precision_lint.syntax.program import Function, Module, blocks

PURE: Final = frozenset({"isinstance", "hasattr", "getattr", "bool", "callable"})
MARKS: Final = IN_FLOAT16 | IN_BFLOAT16 | REGIONAL
MOST: Final = 400
"""Variables that are remembered in one analysis."""


class Choice(NamedTuple):
    """A variable, its value behind a branch, and the values that the arms left."""

    name: Any
    joined: Value
    first: Value
    second: Value


def left(it: Interpreter, asked: Asked, first: dict[Any, Value], second: dict[Any, Value]) -> None:
    """Remember what the arms of a branch left in variables whose values were joined."""
    if asked.key not in _repeated(_scope(it)) or not _lasts(_scope(it), asked):
        return
    for name, joined in it.variables.items():
        one, other = first.get(name), second.get(name)
        if one is not None and other is not None and one is not other:
            _keep(it, asked, Choice(name, joined, one, other))


def _keep(it: Interpreter, asked: Asked, choice: Choice) -> None:
    known = it.choices.setdefault((it.function, asked.key), {})
    if len(known) < MOST:
        if not asked.holds:
            choice = choice._replace(first=choice.second, second=choice.first)
        known[choice.name] = choice


def recall(it: Interpreter, test: ast.expr, holds: bool) -> None:
    """Give the variables the values that they have where a test comes out so."""
    if not it.choices:
        return
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) is holds:
        for part in test.values:
            recall(it, part, holds)
    asked = asked_by(test, holds)
    for name, choice in it.choices.get((it.function, asked.key), {}).items():
        if it.variables.get(name) is choice.joined:
            it.variables[name] = choice.first if asked.holds else choice.second


def computed(it: Interpreter, region: RegionValue, before: dict[Any, Value]) -> None:
    """Remember what a region computed that a test of this function switches on."""
    function, asked = region.asked or (None, None)
    if asked is None or function is not it.function or not _lasts(_scope(it), asked):
        return
    for name, value in it.variables.items():
        if before.get(name) is not value:
            plain = _unmarked(value)
            if plain is not value:
                _keep(it, asked, Choice(name, value, value, plain))


def _unmarked(value: Value) -> Value:
    """A value as it is where the region around it is off."""
    if isinstance(value, Tensor) and value.flags & MARKS:
        return value.but(flags=value.flags & ~MARKS)
    if isinstance(value, Unknown) and value.symbol.flags & MARKS:
        old = value.symbol
        made = Symbol(old.label, old.vector, old.assumptions, old.node, old.home)
        made.uses, made.flags = old.uses, old.flags & ~MARKS
        return Unknown(made)
    return value


def _scope(it: Interpreter) -> Function | Module:
    return it.function if it.function is not None else it.module


def _repeated(scope: Function | Module) -> frozenset[str]:
    """Tests that more than one branch of a function asks."""
    known: frozenset[str] | None = scope.facts.get("repeated")
    if known is None:
        counted = Counter(_tests(scope.tree.body if isinstance(scope, Module) else scope.body))
        known = scope.facts["repeated"] = frozenset(
            key for key, times in counted.items() if times > 1
        )
    return known


def _tests(body: list[ast.stmt]) -> Iterator[str]:
    """The tests of the branches of a block, with those that they put together."""
    for node in body:
        if isinstance(node, ast.If):
            pending: list[ast.expr] = [node.test]
            while pending:
                asked = asked_by(pending.pop())
                yield asked.key
                if isinstance(asked.test, ast.BoolOp):
                    pending += asked.test.values
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for block in blocks(node):
                yield from _tests(block)


def _lasts(scope: Function | Module, asked: Asked) -> bool:
    """Whether a test comes out alike wherever a function asks it."""
    known = getattr(asked.test, "lasts", None)
    if known is None:
        changing = _changing(scope)
        known = asked.test.lasts = changing.isdisjoint(_read(asked.test)) and all(  # type: ignore[attr-defined]
            isinstance(one.func, ast.Name) and one.func.id in PURE
            for one in ast.walk(asked.test)
            if isinstance(one, ast.Call)
        )
    return bool(known)


def _read(test: ast.expr) -> set[str]:
    return {
        one.attr if isinstance(one, ast.Attribute) else one.id
        for one in ast.walk(test)
        if isinstance(one, (ast.Attribute, ast.Name))
    }


def _changing(scope: Function | Module) -> frozenset[str]:
    """Names, also of attributes, that a function binds in loops or more than once."""
    known: frozenset[str] | None = scope.facts.get("changing")
    if known is None:
        node = scope.tree if isinstance(scope, Module) else scope.node
        known = scope.facts["changing"] = frozenset(_bound_again(node))
    return known


def _bound_again(function: ast.AST) -> Iterator[str]:
    once: set[str] = set()
    nodes = [(function, False)]
    while nodes:
        node, looped = nodes.pop()
        name = _bound_by(node)
        if name is not None:
            if looped or name in once:
                yield name
            once.add(name)
        looped = looped or isinstance(node, (ast.For, ast.AsyncFor, ast.While))
        nodes += [(child, looped) for child in ast.iter_child_nodes(node)]


def _bound_by(node: ast.AST) -> str | None:
    """The name, or the last one of a dotted name, that a node binds."""
    if isinstance(node, ast.arg):
        return node.arg
    if not isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
        return None
    while isinstance(node, ast.Subscript):
        node = node.value
    return getattr(node, "attr", None) or getattr(node, "id", None)


# inside a region


def around(it: Interpreter, test: ast.expr, value: Value | None) -> Asked:
    """A test of a branch that is entered, with its value where that may stay the same object."""
    asked = asked_by(test)
    named = isinstance(asked.test, (ast.Name, ast.Attribute))
    if not named or not isinstance(value, (Scalar, Unknown)):
        return asked
    return asked._replace(value=value, scope=_scope(it))


def holds_inside(it: Interpreter, switch: Asked | None) -> tuple[tuple[Value, bool], ...]:
    """What is true wherever the region is on that is opened here: its switch, and the tests around."""
    asked = [*it.branches, *([switch] if switch is not None else [])]
    found = [(x.value, x.holds) for x in asked if x.value is not None and _lasts(x.scope, x)]
    return tuple(dict.fromkeys((*it.region.holds, *found)))


def answer(region: Region, value: Value) -> bool | None:
    """The truth of a value that decides whether the region around is on."""
    return next((holds for one, holds in region.holds if one is value), None)
