"""Scalers that live shorter than the optimizer they step: their scale is forgotten each time."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, NamedTuple

from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.protocol import FINISHED, Step
from precision_lint.domains import assumptions as assume
from precision_lint.domains.dtypes import ALL_MODES
from precision_lint.domains.values import Closure, Special
from precision_lint.typestate.traces import bound_in


class Met(NamedTuple):
    """A step of one function, with the loops around it and whether a condition guards it."""

    step: Step
    loops: tuple[Step, ...]
    guarded: bool


def renewed(it: Interpreter, trace: list[Any]) -> None:
    """A scaler that a loop or a function makes anew for an optimizer from outside."""
    called = trace[0].objects[0] if len(trace) == 1 and trace[0].kind == "call" else None
    if not isinstance(called, Closure):
        return
    met = list(_met(trace[0].blocks[0], (), False))
    for made in met:
        scaler = made.step.objects[0] if made.step.kind == "new-scaler" else None
        if isinstance(scaler, Special) and scaler.fields.get("enabled") is not False:
            uses = [one for one in met if one.step.objects and one.step.objects[0] is scaler]
            _judge(it, called, made, scaler, uses)


def _judge(it: Interpreter, called: Closure, made: Met, scaler: Special, uses: list[Met]) -> None:
    steps = [one for one in uses if one.step.kind == "step"]
    kinds = {one.step.kind for one in uses}
    if made.guarded or not steps or "update" not in kinds or "load_state_dict" in kinds:
        return
    depth = len(made.loops)
    if any(one.loops[:depth] != made.loops for one in steps):
        return
    body: Any = made.loops[-1].node if made.loops else called.function.node
    if not made.loops and any(one.loops for one in steps):
        return  # it lasts as long as the training
    if not made.loops and called.function.cls is None:
        return  # a function that does one step with what it is given is a sketch
    bound = bound_in(body)
    if any(_root(one.step) in bound or _root(one.step) is None for one in steps):
        return  # so may the optimizer
    it.emit_at(
        "scaler-not-saved",
        made.step.place,
        ALL_MODES,
        scaler.assumptions & ~assume.FLAG | (0 if made.loops else assume.AGAIN),
        scaler=None,
        state=None,
        how="renewed",
    )


def _met(trace: list[Any], loops: tuple[Step, ...], guarded: bool) -> Iterator[Met]:
    """The steps of a function's own body, and of the functions in it where they are called."""
    for step in trace:
        yield Met(step, loops, guarded)
        called = step.objects[0] if step.kind == "call" else None
        inside = isinstance(called, Closure) and called.function.around is not None
        if step.kind == "call" and not inside:
            continue
        inner = (*loops, step) if step.kind == "loop" else loops
        below = guarded or step.kind in ("if", "match", "and", "or", "try")
        for number, block in enumerate(step.blocks):
            always = step.kind == "try" and number < 2  # its body, and what it ends with
            yield from _met(block, inner, guarded if always else below and step.kind != "loop")


def _root(step: Step) -> str | None:
    """The variable through which a step reaches its optimizer."""
    node: Any = step.node
    given = node.args[0] if isinstance(node, ast.Call) and node.args else None
    while isinstance(given, (ast.Attribute, ast.Subscript)):
        given = given.value
    return given.id if isinstance(given, ast.Name) else None


FINISHED.append(renewed)
