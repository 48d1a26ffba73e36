"""What steps of a trace say: their objects, the loops around them, what a loop binds."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from precision_lint.dataflow.graph import alternatives
from precision_lint.dataflow.operators import owners_of
from precision_lint.dataflow.protocol import Step
from precision_lint.domains.values import (
    IN_BFLOAT16,
    IN_FLOAT16,
    Closure,
    Sequence,
    Special,
    Tensor,
    Unknown,
    Value,
)
from precision_lint.events import Place
from precision_lint.syntax.program import Function, Module, bindings, scan

COVERING: Final = {"unscale": 1, "step": 1, "plain-step": 0, "zero": 0}
"""Steps that a loop over optimizers does to each, and which of their objects the optimizer is."""


def looked_up(loop: ast.AST, steps: Iterable[Step]) -> Iterator[Step]:
    """Calls in a loop whose optimizer is an item by what the loop binds: ``optimizers[name]``."""
    target = getattr(loop, "target", None)
    bound = {one.id for one in ast.walk(target) if isinstance(one, ast.Name)} if target else set()

    def varies(node: ast.AST) -> bool:
        return isinstance(node, ast.Subscript) and any(
            isinstance(one, ast.Name) and one.id in bound for one in ast.walk(node.slice)
        )

    items = {
        name.id
        for one in ast.walk(loop)
        for name, value in bindings(one)
        if isinstance(name, ast.Name) and varies(value)
    }
    for step in steps:
        if step.kind not in ("step", "unscale") or not isinstance(step.node, ast.Call):
            continue
        given = step.node.args[0] if step.node.args else None
        if given is not None and (varies(given) or getattr(given, "id", "") in items):
            yield step


def region_of(loss: Value | None) -> int:
    """In which half dtypes the regions said to be that a loss was computed in."""
    flags = loss.flags if isinstance(loss, Tensor) else 0
    if isinstance(loss, Unknown):
        flags = loss.symbol.flags
    return flags & (IN_FLOAT16 | IN_BFLOAT16)


def rests_on(step: Step) -> int:
    scaler = step.objects[0] if step.objects else None
    return scaler.assumptions if isinstance(scaler, Special) else 0


def is_on(step: Step) -> bool:
    """Whether the scaler of a step is not switched off."""
    scaler = step.objects[0] if step.objects else None
    return not (isinstance(scaler, Special) and scaler.fields.get("enabled") is False)


def function_of(trace: list[Step]) -> Function | None:
    """The function that a trace is of."""
    called = trace[0].objects[0] if trace and trace[0].kind == "call" else None
    return called.function if isinstance(called, Closure) else None


def beside(
    steps: list[Step], loops: Mapping[int, tuple[int, ...]], step: Step, place: Place
) -> bool:
    """Whether a backward at a place is in the same loops as a step, not in front of them."""
    backs = [one for one in steps if one.kind == "backward" and one.place == place]
    return all(loops.get(id(one)) == loops.get(id(step)) for one in backs)


def place_of(path: str, node: Any) -> Place:
    return Place(path, node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)


def written(step: Step) -> tuple[Place, Place, Place]:
    """Where a step, its scaler and its optimizer are written."""
    node: Any = step.node
    owner = getattr(node.func, "value", node)
    given = node.args[0] if node.args else node
    path = step.place.path
    return step.place, place_of(path, owner), place_of(path, given)


def divided_elsewhere(home: Module) -> bool:
    """Whether another function of a file unscales for those that step."""
    known = home.facts.get("unscales")
    if known is None:
        known = home.facts["unscales"] = any(
            "step" not in names and any("unscale" in name for name in names)
            for names in (scan(one).names for one in home.all_functions())
        )
    return bool(known)


def clipped_owners(step: Step) -> list[Value]:
    """Whose parameters are clipped."""
    value = step.objects[0] if step.objects else None
    if isinstance(value, Sequence) and value.items is None:
        value = value.element
    found = []
    for one in alternatives(value):
        data = one.data if isinstance(one, Tensor) else one
        found += owners_of(data if isinstance(data, Special) else one)
    return found


def is_part(one: Any, whole: Any) -> bool:
    """Whether one object is another, or held by it."""
    if one == whole:
        return True
    if not (isinstance(one, tuple) and isinstance(whole, tuple) and one[:2] == whole[:2]):
        return False
    return bool(one[0] == "object" and one[2][: len(whole[2])] == whole[2])


def once(trace: list[Step], seen: set[int]) -> Iterable[Step]:
    """The steps of a trace and of all structures in it; those of a callee once."""
    for step in trace:
        yield step
        for block in step.blocks:
            if step.kind == "call":
                if id(block) in seen:
                    continue
                seen.add(id(block))
            yield from once(block, seen)


def nesting(
    trace: list[Step], loops: tuple[int, ...], seen: set[int]
) -> Iterable[tuple[int, tuple[int, ...]]]:
    """Each step with the loops around it; those of a callee where it is called first."""
    for step in trace:
        yield id(step), loops
        inner = (*loops, id(step)) if step.kind in ("loop", "unrolled") else loops
        for block in step.blocks:
            if step.kind != "call" or id(block) not in seen:
                if step.kind == "call":
                    seen.add(id(block))
                yield from nesting(block, inner, seen)


def deciding(
    trace: list[Step], around: frozenset[int], seen: set[int]
) -> Iterable[tuple[int, frozenset[int]]]:
    """Each step with the tests around it; those of a callee where it is called first."""
    for step in trace:
        yield id(step), around
        for block in step.blocks:
            if step.kind != "call" or id(block) not in seen:
                if step.kind == "call":
                    seen.add(id(block))
                decides = step.kind not in ("call", "loop", "unrolled", "with")
                yield from deciding(block, around | {id(step)} if decides else around, seen)


def passed_by(
    tests: Mapping[int, frozenset[int]], step: Step, calls: Mapping[str, list[Step]]
) -> bool:
    """Whether a test decides that gradients are divided, and none that they are scaled or a step comes.

    The scalers are on, whatever the test says.
    """
    around = tests[id(step)]
    scalers = [one.objects[0] if one.objects else None for one in calls["scale"]]
    on = all(isinstance(one, Special) and one.fields.get("enabled") is True for one in scalers)
    return (
        on
        and all(tests[id(one)] <= around for one in calls["scale"])
        and all(around < tests[id(one)] for one in calls["unscale"])
    )


def optimizers(trace: list[Step], made: str) -> Iterable[Value]:
    """The optimizers that a scaler unscales or steps, and those that steps of kind ``made`` make."""
    for step in once(trace, set()):
        if (
            step.kind in ("unscale", "step")
            and len(step.objects) > 1
            and step.objects[1] is not None
        ):
            yield step.objects[1]
        elif step.kind == made and step.objects[0] is not None:
            yield step.objects[0]


def bound_in(node: ast.AST) -> frozenset[str]:
    """Names that a loop, or a function's body, binds: conditions on them are new in each iteration."""
    return frozenset(
        one.id
        for one in ast.walk(node)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    )
