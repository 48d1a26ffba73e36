"""Runs the machine over every function's trace."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, Final

from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.objects import MODULES, ancestry
from precision_lint.dataflow.protocol import FINISHED
from precision_lint.domains import assumptions as assume
from precision_lint.domains.values import Closure, Special
from precision_lint.syntax.program import Module, dotted
from precision_lint.typestate.frameworks import left_to_trainer
from precision_lint.typestate.machine import Machine
from precision_lint.typestate.states import STEPPED, State
from precision_lint.typestate.traces import once

SCALED: Final = frozenset({
    "scale", "unscale", "step", "update", "framework-backward", "framework-unscale", "backward",
    "autograd-read",
})  # fmt: skip


def follow(it: Interpreter, trace: list[Any]) -> None:
    """Follow a trace that has to do with scaled gradients."""
    _follow(it, trace, set(), root=True)


def _follow(it: Interpreter, trace: list[Any], seen: set[Any], root: bool = False) -> None:
    start = _start(it, trace)
    if not _speaks(trace) and start.scaled is None:
        return
    own = _function(trace[0]) if len(trace) == 1 else None
    if _is_whole(it, trace, start, own, root):
        return
    # too much at once: what it calls is followed by itself
    for call in _calls(trace[0].blocks[0] if own is not None else trace):
        function = _function(call)
        if function not in seen:
            seen.add(function)
            _follow(it, [call], seen)


def _is_whole(it: Interpreter, trace: list[Any], start: State, own: Any, root: bool) -> bool:
    """Follow a trace in one, if that is not too much; what was followed for a caller before is reported."""
    program = it.program
    if not root and own in program.parted:
        for report in program.parted[own]:
            report()
        return own not in program.long
    called = {_function(step) for step in once(trace, set()) if step.kind == "call"}
    if called & program.long:
        program.count("typestate")
        return False
    machine = Machine(it, trace, start)
    if root:
        _left_stepped(machine)
        left_to_trainer(machine)
    whole = machine.budget > 0
    if not whole:
        program.long.add(own)
    if not root or not whole:
        program.parted[own] = machine.reports
    return whole


def _left_stepped(machine: Machine) -> None:
    """A scaler that outlives a function steps in it, and nothing in the file updates it."""
    step = machine.calls["step"][-1] if machine.calls["step"] else None
    if (
        step is None
        or machine.reports
        or machine.calls["update"]
        or step.place.path != machine.home.path
    ):
        return
    scaler, optimizer = step.objects[:2]
    lasts = isinstance(scaler, Special) and "given" in scaler.fields
    method = getattr(step.node, "func", None)
    name = dotted(method.value) if isinstance(method, ast.Attribute) else None
    if not lasts or machine.key(scaler) in machine.made or not name or _has_parents(machine):
        return
    if any(_may_be_of(owner, name) for owner in _updated(machine.home)):
        return
    ends = machine.ends.next | machine.ends.returns
    left = [s for s in ends if s.of(machine.key(optimizer)) == STEPPED and not s.lost]
    if left:
        machine.report("update-order", step.place, left, assume.AGAIN, how="second-step")


def _updated(module: Module) -> list[str]:
    """The dotted names of what is updated anywhere in a file."""
    return [owner for owner, names in module.methods_called().items() if "update" in names]


def _may_be_of(owner: str, name: str) -> bool:
    """Whether two dotted names may be of one object: an attribute of one name, or any variables."""
    (holder, _, last), (other, _, own) = owner.rpartition("."), name.rpartition(".")
    return bool(holder) == bool(other) and (last == own or not other)


def _has_parents(machine: Machine) -> bool:
    """Whether the function is a method of a class with bases that nobody saw, which may do the rest."""
    cls = machine.function.cls if machine.function is not None else None
    line = ancestry(machine.it, cls) if cls is not None else []
    named = sum(len(one.node.bases) for one in line if not isinstance(one, str))
    seen = [one for one in line if not isinstance(one, str) or one in MODULES]
    return named > len(seen) - 1 if line else False


def _function(step: Any) -> Any:
    """The function that a step of a trace calls; None: it is no call."""
    return getattr(step.objects[0], "function", step.node) if step.kind == "call" else None


def _calls(trace: list[Any]) -> Iterator[Any]:
    """The outermost calls in a trace."""
    for step in trace:
        if step.kind == "call":
            yield step
        else:
            for block in step.blocks:
                yield from _calls(block)


HOOKS: Final = frozenset({"on_after_backward"})
"""Methods that Lightning calls between a backward that it scaled and its own unscaling."""
FRAMEWORK: Final = ("LightningModule", "Callback")


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
    return any(step.kind in SCALED for step in once(trace, set()))


FINISHED.append(follow)
