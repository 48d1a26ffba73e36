"""What the tests of a trace tell of the ways through it."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from precision_lint.dataflow.protocol import Step
from precision_lint.domains.values import Closure, Instance, Value
from precision_lint.syntax.program import Function, dotted, every, spelled
from precision_lint.typestate.conditions import conditions, is_simple, lasts, parts
from precision_lint.typestate.traces import once


class Ways:
    """Which conditions tell the ways through a trace apart, and where they may be asked.

    steps: all of the trace, in order; tests: the branches among them that matter.  loops: by step, the
    loops around it.  number: tells an object from others.
    """

    def __init__(
        self,
        steps: list[Step],
        tests: list[Step],
        loops: Mapping[int, tuple[int, ...]],
        number: Callable[[Instance], int],
    ) -> None:
        followed = {getattr(s.node, "id", "") for s in steps if s.kind == "set"}
        renewed = {id(s): renewed_in(s) for s in steps if s.kind == "loop"}
        self.changing = {loop: names - followed for loop, (names, _) in renewed.items()}
        """By loop: names that may have another value in each iteration."""
        self.others = {loop: {number(one) for one in found} for loop, (_, found) in renewed.items()}
        """By loop: objects of methods that may be other ones in each iteration."""
        counted = Counter(key for s in tests for key in conditions_of(s))
        self.often = frozenset(key for key, times in counted.items() if times > 1)
        """Conditions that more than one test asks."""
        self.training = self.often & decisive(tests)
        """Those of them that decide whether losses are scaled, or optimizers step."""
        self.asked = self.often | asked_by_loops(tests, loops, self.changing)
        """The same, with those that a loop asks in each iteration; others tell nothing of the way."""
        self.simple = asked_of(steps, tests)
        """Conditions on variables that are set on the way, by the variable."""
        self.asked |= {
            key for some in self.simple.values() for one in some for key in conditions(one)
        }
        self.switches = enabled_by([s for s in steps if s.kind == "scale"])
        """Scalers that multiply losses, and what says whether each is enabled."""
        self.asked |= {key for _, test in self.switches for key in conditions(test)}
        self.until = asked_until(steps, loops, self.asked)
        """By condition: the number of the last step that may ask it, which is the last of its loop."""
        self.meant: dict[Function, list[ast.expr]] = {}

    def switches_in(self, function: Function) -> list[ast.expr]:
        """The same, where all mean the same in a function as where the scalers are made."""
        known = self.meant.get(function)
        if known is None:
            own = {one.arg for one in function.parameters[:1] if function.cls is not None}
            inside = list(every(function.node))
            meant = [
                test
                for made, test in self.switches
                if any(one is made for one in inside)
                or own.issuperset(one.id for one in every(test) if isinstance(one, ast.Name))
            ]
            known = self.meant[function] = meant if len(meant) == len(self.switches) else []
        return known

    def kept(self, now: int) -> tuple[set[str], ...]:
        """Conditions that are worth knowing behind a step, then fewer of them."""
        again = {key for key, last in self.until.items() if last > now}
        return again, again & self.often, again & self.training

    def forget(self) -> None:
        """Tell no ways apart from here on."""
        self.asked = frozenset()


def enabled_by(scales: list[Step]) -> list[tuple[ast.Call, ast.expr]]:
    """Where each scaler is made that multiplies a loss, and its switch (``GradScaler(enabled=use_amp)``).

    Nothing, if one has none."""
    made = [getattr(step.objects[0], "node", None) for step in scales]
    calls = [one for one in made if isinstance(one, ast.Call)]
    given = [(one, k.value) for one in calls for k in one.keywords if k.arg == "enabled"]
    return given if len(given) == len(scales) else []


def renewed_in(loop: Step) -> tuple[frozenset[str], list[Instance]]:
    """Names, also of attributes, and objects of methods that may be other ones in each iteration of a loop."""
    found = set(_stored(loop.node))
    methods: list[tuple[Value, str, ast.AST]] = []
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
                methods.append((called.owner, name, step.node))
                arguments.discard(name)
            found |= stored | arguments - _passed_on(step, called)
    unknown = {name for owner, name, _ in methods if not isinstance(owner, Instance)}
    others = [
        owner
        for owner, _, node in methods
        if isinstance(owner, Instance)
        and not found.isdisjoint((dotted(getattr(node, "func", node)) or "").split(".")[:-1])
    ]
    return frozenset(found | unknown), others


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
