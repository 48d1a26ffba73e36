"""Runs the machine over every function's trace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.objects import ancestry
from precision_lint.dataflow.protocol import FINISHED
from precision_lint.domains.values import Closure
from precision_lint.typestate.machine import Machine
from precision_lint.typestate.states import State

SCALED = frozenset({
    "scale", "unscale", "step", "update", "framework-backward", "framework-unscale", "backward",
})  # fmt: skip


def follow(it: Interpreter, trace: list[Any]) -> None:
    """Follow a trace that has to do with scaled gradients."""
    _follow(it, trace, set())


def _follow(it: Interpreter, trace: list[Any], seen: set[Any]) -> None:
    start = _start(it, trace)
    if not _speaks(trace) and start.scaled is None:
        return
    if Machine(it, trace, start).budget > 0:
        return
    # too much at once: what it calls is followed by itself
    outer = trace[0].blocks[0] if len(trace) == 1 and trace[0].kind == "call" else trace
    for call in _calls(outer):
        function = getattr(call.objects[0], "function", call.node)
        if function not in seen:
            seen.add(function)
            _follow(it, [call], seen)


def _calls(trace: list[Any]) -> Iterator[Any]:
    """The outermost calls in a trace."""
    for step in trace:
        if step.kind == "call":
            yield step
        else:
            for block in step.blocks:
                yield from _calls(block)


HOOKS = frozenset({"on_after_backward"})
"""Methods that Lightning calls between a backward that it scaled and its own unscaling."""
FRAMEWORK = ("LightningModule", "Callback")


def _start(it: Interpreter, trace: list[Any]) -> State:
    """The state in which a function begins: in a framework's hook gradients are scaled in float16."""
    called = trace[0].objects[0] if trace and trace[0].kind == "call" else None
    function = called.function if isinstance(called, Closure) else None
    if function is None or function.name not in HOOKS or function.cls is None:
        return State()
    bases = [one.rpartition(".")[2] for one in ancestry(it, function.cls) if isinstance(one, str)]
    if not any(base in FRAMEWORK for base in bases):
        return State()
    return State(
        scaled=it.place(function.node, function.module), framework=True, waiting=True, level=1
    )


def _speaks(trace: list[Any]) -> bool:
    return any(step.kind in SCALED or any(map(_speaks, step.blocks)) for step in trace)


FINISHED.append(follow)
