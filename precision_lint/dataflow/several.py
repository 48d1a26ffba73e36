"""One of several functions, layers or libraries, where a branch or a loop decides which; each of a list."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Final

from precision_lint.dataflow.containers import element_of
from precision_lint.dataflow.interpreter import Asked, Interpreter
from precision_lint.dataflow.protocol import noted
from precision_lint.dataflow.tensors import operate
from precision_lint.domains.joining import join, perhaps
from precision_lint.domains.values import BOTTOM, RegionValue, Special, Value
from precision_lint.torchmodel import operations


def each(it: Interpreter, value: Special, what: Callable[[Value], Value], node: ast.AST) -> Value:
    """What something gives of whichever it is."""
    trace, blocks = it.trace, []
    found: Value = BOTTOM
    for one in value.fields["options"]:
        it.trace = []
        found = join(found, what(one))
        blocks.append(it.trace)
    it.trace = trace
    function, asked = value.fields.get("asked", (None, None))
    if asked is None or function is not it.function:
        noted(it, "match", node, *blocks)
    else:  # whichever the branch decided
        choice = ast.IfExp(asked.test, asked.test, asked.test)
        noted(it, "if", ast.copy_location(choice, node), *blocks[:: 1 if asked.holds else -1])
    return found


def call_either(
    it: Interpreter,
    callee: Special,
    arguments: list[Value],
    keywords: dict[str, Value],
    node: ast.AST,
) -> Value:
    """Calling one of several functions, whichever it is."""
    return each(it, callee, lambda one: it.call(one, list(arguments), dict(keywords), node), node)


def perhaps_made(
    it: Interpreter,
    callee: Special,
    arguments: list[Value],
    keywords: dict[str, Value],
    node: ast.AST,
) -> Value:
    """What a class of context managers makes that a branch replaces by ``nullcontext``."""
    asked: Asked | None = callee.fields.get("asked")
    around = it.branches
    it.branches = around if asked is None else [*around, asked]
    made = it.call(callee["of"], arguments, keywords, node)
    it.branches = around
    if isinstance(made, RegionValue):
        made = perhaps(made)
        made.asked = (it.function, asked) if asked is not None else None
    return made


EACH: Final = "torch._foreach_"
"""Functions that do something to each tensor of a list."""


def each_of_list(it: Interpreter, name: str, arguments: list[Value], node: ast.AST) -> None:
    """``torch._foreach_clamp_min_(tensors, least)``"""
    known = operations.of_function("torch." + name[len(EACH) :]) if name.startswith(EACH) else None
    if known is not None:
        parts = [element_of(it, one, node) or one for one in arguments]
        operate(it, known, parts, {}, node, name.endswith("_"))
