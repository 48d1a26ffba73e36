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
    Instance,
    Sequence,
    Special,
    Tensor,
    Unknown,
    Value,
)
from precision_lint.events import Place
from precision_lint.syntax.program import Function, Module, dotted, scan, spelled
from precision_lint.typestate.states import conditions, is_simple, lasts, parts


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
        if isinstance(one, ast.Assign) and varies(one.value)
        for name in one.targets
        if isinstance(name, ast.Name)
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


def renewed_in(loop: Step) -> frozenset[str]:
    """Names, also of attributes, that may have another value in each iteration of a loop."""
    found = set(_stored(loop.node))
    owners: dict[str, list[tuple[Value, ast.AST]]] = {}
    for step in once(loop.blocks[0], set()):
        called = step.objects[0] if step.kind == "call" else None
        if isinstance(called, Closure):
            function = called.function
            stored = function.facts.get("stored")
            if stored is None:
                stored = function.facts["stored"] = frozenset(_stored(function.node))
            arguments = {
                one.arg for one in ast.walk(function.node.args) if isinstance(one, ast.arg)
            }
            if called.owner is not None and function.parameters:
                name = function.parameters[0].arg
                owners.setdefault(name, []).append((called.owner, step.node))
                arguments.discard(name)
            found |= stored | arguments - _passed_on(step, called)
    other = {name for name, calls in owners.items() if not _one_object(name, calls, found)}
    return frozenset(found | other)


def _one_object(name: str, calls: list[tuple[Value, ast.AST]], changing: set[str]) -> bool:
    """Whether a name is the same object in all methods that are called, and a loop keeps that."""
    objects = {(one.root, one.path) for one, _ in calls if isinstance(one, Instance)}
    owners = {(dotted(getattr(node, "func", node)) or "").rpartition(".")[0] for _, node in calls}
    parts = {part for one in owners for part in one.split(".")}
    return (
        len(objects) == 1 and changing.isdisjoint(parts) and (owners == {name} or name not in parts)
    )


def _stored(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        if isinstance(one, (ast.Name, ast.Attribute)) and isinstance(one.ctx, ast.Store):
            yield one.id if isinstance(one, ast.Name) else one.attr


def _passed_on(step: Step, called: Closure) -> set[str]:
    """Parameters that a call gives the variables of the same name."""
    if not isinstance(step.node, ast.Call):
        return set()
    names = [one.arg for one in called.function.parameters[called.owner is not None :]]
    given = [*zip(names, step.node.args, strict=False)]
    given += [(one.arg, one.value) for one in step.node.keywords if one.arg is not None]
    return {name for name, node in given if isinstance(node, ast.Name) and node.id == name}


def conditions_of(step: Step) -> Iterator[str]:
    """The conditions that the test of a branch is made of."""
    return conditions(step.node.test)  # type: ignore[attr-defined]


def asked_of(steps: Iterable[Step], tests: Iterable[Step]) -> dict[str, list[ast.expr]]:
    """By variable that is set on the way: the conditions on it alone."""
    found: dict[str, list[ast.expr]] = {spelled(s.node): [] for s in steps if s.kind == "set"}
    for step in tests if found else ():
        for part in parts(step.node.test):  # type: ignore[attr-defined]
            own = spelled(getattr(part, "left", part)) if is_simple(part) else ""
            if own in found:
                found[own].append(part)
    return found


def decisive(tests: Iterable[Step]) -> frozenset[str]:
    """The conditions of tests around a step that scales, or uses what it was scaled for."""
    return frozenset(
        key
        for step in tests
        if any(one.kind in TRAINING for one in once([step], set()))
        for key in conditions_of(step)
    )


TRAINING: Final = frozenset({"scale", "backward", "step", "plain-step"})


def asked_by_loops(
    tests: list[Step],
    loops: Mapping[int, tuple[int, ...]],
    changing: Mapping[int, frozenset[str]],
) -> frozenset[str]:
    """Conditions of tests in loops that come out alike in each iteration."""
    return frozenset(
        key
        for step in tests
        for key in conditions_of(step)
        for around in loops[id(step)]
        if lasts(key, changing.get(around, frozenset()))
    )


def asked_until(
    steps: list[Step], loops: Mapping[int, tuple[int, ...]], asked: frozenset[str]
) -> dict[str, int]:
    """By condition: the number of the last step that may ask it, which is the last of its loop."""
    last: dict[int, int] = {}
    for number, step in enumerate(steps):
        last.update(dict.fromkeys(loops[id(step)][:1], number))
    found: dict[str, int] = {}
    for number, step in enumerate(steps):
        if step.kind == "if":
            end = max(number, *(last[loop] for loop in loops[id(step)][:1]), 0)
            for key in asked.intersection(conditions_of(step)):
                found[key] = max(found.get(key, 0), end)
    return found
