"""The trace of what code does to gradients, optimizers and scalers, as the interpreter meets it.

A trace is a list of steps in order of execution.  ``typestate`` reads it; here it is only recorded.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from types import NoneType
from typing import Any, Final, NamedTuple

from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.domains.values import (
    GRADIENT,
    Instance,
    Reference,
    Special,
    Table,
    Tensor,
    Unknown,
    Value,
    class_of,
)
from precision_lint.events import Place
from precision_lint.syntax.program import Function, bindings, every
from precision_lint.torchmodel import foreign


class Step(NamedTuple):
    """One thing that happens, or a structure of such things.

    kind: ``backward``, ``unscale``, ``step``, ``update``, ``zero``, ``read``, ``clip``, ``scrub``, ... or a
    control structure (``if``, ``loop``, ``unrolled``, ``try``, ``match``, ``with``, ``call``) or an exit
    (``return``, ``raise``, ``break``, ``continue``).  objects: the abstract objects it concerns.
    test: the condition of a branch, as a node.  blocks: the traces inside.
    """

    kind: str
    node: ast.AST
    place: Place
    objects: tuple[Value | None, ...] = ()
    blocks: tuple[list[Any], ...] = ()
    symbols: tuple[tuple[int, int], ...] = ()
    """At a call: the numbers of unknown objects in the callee, and those of the caller's."""
    given: tuple[tuple[str, Value], ...] = ()
    """At a call: the tensors that it passes, by parameter."""
    ways: tuple[list[Any], list[Any]] | None = None
    """At a call: the objects with weights in the callee, and the caller's; None: the same ones."""


PROTOCOL: Final = frozenset({"backward", "scale", "unscale_", "step"})
"""Methods that a call may hide which is not followed, beside ``update()`` without arguments."""
EXITS: Final = frozenset({"return", "raise", "break", "continue"})
QUIET: Final = EXITS | {"set", "present", "absent"}
"""Steps that matter only beside others."""


def note(it: Interpreter, kind: str, node: ast.AST, *objects: Value | None) -> None:
    """Record that something happens here."""
    it.trace.append(Step(kind, node, it.place(node), objects))


def stored(it: Interpreter, target: ast.expr, value: Value) -> None:
    """Record that a variable is set which a test asks: a flag or a counter that the function itself sets."""
    if isinstance(target, ast.Name) and it.function is not None:
        if target.id in _switches(it.function):
            note(it, "set", target, value)


def _switches(function: Function) -> frozenset[str]:
    """Variables that a function tests, and sets to a constant or counts up, and in no other way."""
    known: frozenset[str] | None = function.facts.get("switches")
    if known is None:
        nodes = list(every(function.node))
        tests = [one.test for one in nodes if isinstance(one, (ast.If, ast.While, ast.IfExp))]
        asked = {one.id for test in tests for one in every(test) if isinstance(one, ast.Name)}
        pairs = [pair for one in nodes for pair in bindings(one)]
        constant = {
            getattr(target, "id", "")
            for target, value in pairs
            if isinstance(value, ast.Constant) and isinstance(value.value, (int, NoneType))
        }
        followed = {id(target) for target, _ in pairs}
        followed |= {id(one.target) for one in nodes if isinstance(one, ast.AugAssign)}
        stores = [
            one for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
        ]
        other = {one.id for one in stores if id(one) not in followed}
        known = function.facts["switches"] = frozenset(asked & constant - other)
    return known


def hides_steps(function: Function) -> bool:
    """Whether a function calls methods of scalers, optimizers or losses itself, by their names."""
    known: bool | None = function.facts.get("hides steps")
    if known is None:
        calls = [one for one in every(function.node) if isinstance(one, ast.Call)]
        known = function.facts["hides steps"] = any(
            name in PROTOCOL or (name == "update" and not one.args)
            for one in calls
            if (name := getattr(one.func, "attr", ""))
        )
    return known


def handed(it: Interpreter, node: ast.AST, callee: Value, given: list[Value]) -> None:
    """Record that an optimizer or scaler is handed to something that nobody has seen."""
    if any(isinstance(one, Table) for one in given):
        for look in HANDED_OVER:
            look(it, node, given)
    if any(
        (isinstance(one, Special) and one.kind in HANDED)
        or (isinstance(one, Tensor) and one.op == "scaled")
        for one in given
    ):
        note(it, "unknown-call", node, callee, *given)
        for look in HANDED_OVER:
            look(it, node, given)
    leaves = _leaves_weights(callee)
    for one in given:
        if isinstance(one, Instance) and not one.path and not leaves:
            one.root.kept, one.root.number = True, 0
        # raw gradients are summed over machines; what was converted is looked at
        converted = isinstance(one, Tensor) and one.flags & GRADIENT and one.op != "grad"
        if converted and not _moves(callee):
            note(it, "read", node, one)


def _leaves_weights(callee: Value) -> bool:
    """Whether a call hands models to a framework, which runs them and casts none."""
    if isinstance(callee, Unknown):
        return class_of(callee.symbol.owner) in foreign.FRAMEWORKS
    return isinstance(callee, Reference) and callee.name in foreign.FRAMEWORKS


def _moves(callee: Value) -> bool:
    """Whether a call sends tensors to other machines and adds them up: linear in the loss scale."""
    return isinstance(callee, Reference) and callee.name.startswith("torch.distributed.")


SAVED: Final[list[Callable[[Interpreter, list[Value], ast.AST], None]]] = []
"""What to look for where something is saved (``hazards``)."""
RETURNED: Final[list[Callable[[Interpreter, Value, ast.AST], None]]] = []
"""What to look for in what a function gives back (``hazards``)."""
HANDED_OVER: Final[list[Callable[[Interpreter, ast.AST, list[Value]], None]]] = []
"""What to look for there (``hazards``)."""
HANDED: Final = frozenset({"scaler", "optimizer", "scaled", "parameters"})


def noted(
    it: Interpreter,
    kind: str,
    node: ast.AST,
    *blocks: list[Any],
    objects: tuple[Value | None, ...] = (),
) -> None:
    """Record a structure, where something happens inside it; ``objects``: a loop's element."""
    if any(blocks):
        it.trace.append(Step(kind, node, it.place(node), objects, blocks))


FINISHED: Final[list[Callable[[Interpreter, list[Any]], None]]] = []
"""What to look for in the trace of a function that was analysed by itself (``typestate``)."""


def tells(trace: list[Any]) -> bool:
    """Whether anything but exits happens in a trace."""
    return any(
        step.kind not in QUIET and (not step.blocks or any(map(tells, step.blocks)))
        for step in trace
    )
