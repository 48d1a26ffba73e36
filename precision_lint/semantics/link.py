"""The summaries of a project's files linked into a program.

Calls are resolved through imports, classes, attributes and what is passed as an argument, and
autocast regions carried along them.  What cannot be resolved leads nowhere; every loop is bounded.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from precision_lint.semantics.program import Caller, Flow, Key, Names, Program
from precision_lint.semantics.summary import (
    Call,
    ClassFacts,
    FunctionFacts,
    Lexical,
    Origin,
    Summary,
)
from precision_lint.semantics.wide_backward import TESTS

ROUNDS = 5
"""How often arguments are followed into functions; each round passes one more call."""
DEPTH = 8
"""Origins of origins that are followed."""
HOPS = 4
"""Calls between a region and a function that the evidence names."""
CALLERS = 12
"""Call sites in other files that are kept for each function."""
WRAPPED = ("module", "_orig_mod")
"""Attributes by which wrappers of a model hold it."""
MANY = 24
"""Classes that a value may be an instance of before it counts as unknown."""


class Thing(NamedTuple):
    """What an origin leads to: a class, an instance of one, a function, or a method."""

    kind: str
    key: Key


Things = tuple[Thing, ...]


def link(root: str, files: Iterable[str], summaries: Mapping[str, Summary]) -> Program:
    """The program that a project's files make."""
    program = Program(root, frozenset(files))
    for file, summary in summaries.items():
        program.names[file] = Names(
            dict(summary.imports),
            summary.stars,
            frozenset(f.name for f in summary.functions),
            frozenset(c.name for c in summary.classes),
            frozenset(summary.names),
        )
    wide = [(f, s.wide) for f, s in sorted(summaries.items()) if s.wide and not TESTS.search(f)]
    program.wide = wide[0] if wide else None
    return _Linker(program, summaries).run()


class _Linker:
    def __init__(self, program: Program, summaries: Mapping[str, Summary]) -> None:
        self.program = program
        self.functions: dict[Key, FunctionFacts] = {}
        self.classes: dict[Key, ClassFacts] = {}
        self.variables: dict[Key, Origin] = {}
        self.attributes: dict[Key, dict[str, list[tuple[Origin, str]]]] = {}
        for file, summary in summaries.items():
            for function in summary.functions:
                self.functions.setdefault((file, function.name), function)
            for cls in summary.classes:
                self.classes[file, cls.name] = cls
                stored = self.attributes[file, cls.name] = {}
                for name, origin, method in cls.attributes:
                    stored.setdefault(name, []).append((origin, method))
            for name, origin in summary.variables:
                self.variables[file, name] = origin
        self.parameters: dict[tuple[Key, str], Things] = {}
        self.bases: dict[Key, tuple[Key, ...]] = {}
        self.derived: dict[Key, list[Key]] = {}
        self.active: set[tuple[Key, Origin]] = set()
        self.memo: dict[Key, dict[Origin, Things]] = {}

    def run(self) -> Program:
        for key, cls in self.classes.items():
            found = [t.key for o in cls.bases for t in self.things(o, (key[0], "<module>"), "")]
            self.bases[key] = tuple(base for base in found if base in self.classes and base != key)
            for base in self.bases[key]:
                self.derived.setdefault(base, []).append(key)
        self.memo.clear()
        self.program.bases = {key: bases for key, bases in self.bases.items() if bases}
        edges = self.edges()
        self.program.drivers = self.drivers(edges)
        self.carry(edges)
        return self.program

    # what origins lead to

    def things(self, origin: Origin, at: Key, owner: str, depth: int = DEPTH) -> Things:
        """What an origin inside the function ``at`` leads to; empty: nothing of the project."""
        memo = self.memo.setdefault(at, {})
        known = memo.get(origin)
        if known is not None:
            return known
        if depth <= 0 or (at, origin) in self.active:
            return ()
        self.active.add((at, origin))
        found = tuple(dict.fromkeys(self._things(origin, at, owner, depth - 1)))
        self.active.discard((at, origin))
        found = found if len(found) <= MANY else ()
        if depth >= DEPTH - 2:
            memo[origin] = found
        return found

    def _things(self, origin: Origin, at: Key, owner: str, depth: int) -> Iterator[Thing]:
        file = at[0]
        match origin[0]:
            case "name":
                yield from self._symbol(self.program.resolve(origin[1], file), depth)
            case "here":
                yield from self._symbol((file, origin[1]), depth)
            case "self":
                if (file, owner) in self.classes:
                    yield Thing("instance", (file, owner))
            case "super":
                for base in self.bases.get((file, owner), ()):
                    yield Thing("instance", base)
            case "parameter":
                passed = self.parameters.get((at, origin[1]))
                yield from passed or self._default(at, origin[1], depth)
            case "any" | "tuple":
                for inner in origin[1]:
                    if inner:
                        yield from self.things(inner, at, owner, depth)
            case "attribute":
                for thing in self.things(origin[1], at, owner, depth):
                    yield from self._attribute(thing, origin[2], depth)
            case "call":
                for thing in self.things(origin[1], at, owner, depth):
                    if thing.kind == "class":
                        yield Thing("instance", thing.key)
                        continue
                    for function in self.entered(thing):
                        for returned in self._returns(function):
                            yield from self.things(returned, function, self._owner(function), depth)
            case "declared":
                for thing in self.things(origin[1], at, owner, depth):
                    if thing.kind == "class":
                        for key in (thing.key, *self._below(thing.key)):
                            yield Thing("instance", key)
            case "item":
                yield from self._item(origin[1], origin[2], at, owner, depth)

    def _default(self, at: Key, name: str, depth: int) -> Iterator[Thing]:
        """What a parameter is where no call in the project says more."""
        for parameter, origin in self.functions[at].defaults if at in self.functions else ():
            if parameter == name:
                yield from self.things(origin, (at[0], "<module>"), "", depth)

    def _item(self, origin: Origin, place: int, at: Key, owner: str, depth: int) -> Iterator[Thing]:
        """What is at a place of a tuple."""
        if origin[0] == "tuple":
            if place < len(origin[1]) and origin[1][place]:
                yield from self.things(origin[1][place], at, owner, depth)
        elif origin[0] == "call" and depth > 0:
            for thing in self.things(origin[1], at, owner, depth):
                for function in self.entered(thing) if thing.kind != "class" else ():
                    for returned in self._returns(function):
                        yield from self._item(
                            returned, place, function, self._owner(function), depth - 1
                        )

    def _returns(self, key: Key) -> tuple[Origin, ...]:
        facts = self.functions.get(key)
        return facts.returns if facts else ()

    def _owner(self, key: Key) -> str:
        facts = self.functions.get(key)
        return facts.owner if facts else ""

    def _symbol(self, key: Key | None, depth: int) -> Iterator[Thing]:
        if key is None:
            return
        file, name = key
        head, _, attribute = name.rpartition(".")
        if key in self.classes:
            yield Thing("class", key)
        elif key in self.functions:
            yield Thing("function", key)
        elif key in self.variables:
            yield from self.things(self.variables[key], (file, "<module>"), "", depth)
        elif head and depth > 0:
            for thing in self._symbol((file, head), depth - 1):
                yield from self._attribute(thing, attribute, depth)

    def _attribute(self, thing: Thing, name: str, depth: int) -> Iterator[Thing]:
        if thing.kind == "class" and name == "apply":  # an autograd.Function
            name = "forward"
        if thing.kind not in ("class", "instance"):
            return
        method = self.method(thing.key, name)
        if method is not None and self.functions[method].is_property:
            for returned in self._returns(method):
                yield from self.things(returned, method, self._owner(method), depth)
            return
        if method is not None:
            yield Thing("method", method)
        for cls in self.lineage(thing.key) if method is None else ():
            stored = self.attributes.get(cls, {}).get(name)
            if stored is not None:
                for origin, where in stored:
                    yield from self.things(origin, (cls[0], f"{cls[1]}.{where}"), cls[1], depth)
                return
        if thing.kind == "instance":
            below = [(sub[0], f"{sub[1]}.{name}") for sub in self._below(thing.key)]
            overrides = [key for key in below if key in self.functions]
            yield from (Thing("method", key) for key in overrides)
            if method is None and not overrides and name in WRAPPED:
                yield thing

    def _below(self, key: Key) -> list[Key]:
        found: list[Key] = []
        stack = list(self.derived.get(key, ()))
        while stack and len(found) < MANY:
            sub = stack.pop()
            if sub not in found:
                found.append(sub)
                stack += self.derived.get(sub, ())
        return found

    def lineage(self, key: Key) -> list[Key]:
        """A class and its bases in the project, nearest first."""
        found: list[Key] = []
        queue = deque([key])
        while queue and len(found) < MANY:
            cls = queue.popleft()
            if cls not in found:
                found.append(cls)
                queue.extend(self.bases.get(cls, ()))
        return found

    def method(self, cls: Key, name: str) -> Key | None:
        for owner in self.lineage(cls):
            key = owner[0], f"{owner[1]}.{name}"
            if key in self.functions:
                return key
        return None

    def entered(self, thing: Thing) -> list[Key]:
        """Functions that calling a thing runs."""
        if thing.kind in ("function", "method"):
            return [thing.key]
        names = ("__init__",) if thing.kind == "class" else ("__call__", "forward")
        found = [self.method(thing.key, name) for name in names]
        return [key for key in found if key is not None]

    # calls

    def edges(self) -> dict[Key, list[tuple[Key, Call]]]:
        """Calls by the function that they lead to, with the function that they are in."""
        found: dict[Key, list[tuple[Key, Call, Thing]]] = {}
        changed = list(self.functions)
        for _ in range(ROUNDS):
            for at in changed:
                self.memo.pop(at, None)
            passed: dict[tuple[Key, str], dict[Thing, None]] = {}
            for at in changed:
                facts = self.functions[at]
                found[at] = [
                    (key, call, thing)
                    for call in facts.calls
                    for thing in self.things(call.callee, at, facts.owner)
                    for key in self.entered(thing)
                    if key != at
                ]
                for key, call, thing in found[at]:
                    self._pass(call, at, facts.owner, key, thing, passed)
            renewed: dict[Key, None] = {}
            for place, things in passed.items():
                before = self.parameters.get(place, ())
                after = tuple(dict.fromkeys((*before, *things)))
                if len(after) > len(before) <= MANY:
                    self.parameters[place] = after
                    renewed[place[0]] = None
            changed = self._depending(renewed, found)
            if not changed:
                break
        edges: dict[Key, list[tuple[Key, Call]]] = {}
        objects: dict[Key, dict[str, set[Key]]] = {}
        for at, calls in found.items():
            for key, call, _ in calls:
                edges.setdefault(key, []).append((at, call))
                if call.text and call.callee[0] not in ("name", "here"):
                    objects.setdefault(at, {}).setdefault(call.text, set()).add(key)
        for (file, function), texts in objects.items():
            for text, keys in texts.items():
                if len(keys) == 1:
                    self.program.objects.setdefault(file, {})[function, text] = min(keys)
        return edges

    def _depending(
        self, renewed: Iterable[Key], calls: Mapping[Key, Sequence[tuple[Key, Call, Thing]]]
    ) -> list[Key]:
        """Functions that see what is passed to these: they, through ``self`` their classes, and
        who calls one that gives back what it is given."""
        found: dict[Key, None] = {}
        giving = set()
        for key in renewed:
            found[key] = None
            owner = key[0], self._owner(key)
            for cls in (owner, *self._below(owner)) if owner in self.classes else ():
                for name in self.classes[cls].methods:
                    found[cls[0], f"{cls[1]}.{name}"] = None
            if any(map(_mentions_parameter, self._returns(key))):
                giving.add(key)
        for at, made in calls.items() if giving else ():
            if any(key in giving for key, _, _ in made):
                found[at] = None
        return [key for key in found if key in self.functions]

    def _pass(
        self,
        call: Call,
        at: Key,
        owner: str,
        key: Key,
        thing: Thing,
        passed: dict[tuple[Key, str], dict[Thing, None]],
    ) -> None:
        parameters = self.functions[key].parameters
        if thing.kind != "function":
            parameters = parameters[1:]
        for place, origin in call.arguments:
            if isinstance(place, int):
                if place >= len(parameters):
                    continue
                name = parameters[place]
            else:
                name = place
            for found in self.things(origin, at, owner):
                passed.setdefault((key, name), {})[found] = None

    # regions

    def drivers(self, edges: Mapping[Key, Sequence[tuple[Key, Call]]]) -> dict[Key, int]:
        """Functions that a backward pass and autocast regions are run from, by which they are not
        in one themselves; each with the row where the first region opens, or a call leads to one.
        """
        opening = {key for key, facts in self.functions.items() if _opens(facts)}
        opening = self._above(opening, edges)
        training = {key for key, facts in self.functions.items() if facts.trains}
        rows: dict[Key, int] = {}
        for key in self._above(training, edges) & opening:
            facts = self.functions[key]
            if facts.region is None and key[1] != "<module>":
                rows[key] = facts.opens or sys.maxsize
        for key in opening:
            for at, call in edges.get(key, ()):
                if at in rows:
                    rows[at] = min(rows[at], call.span[0])
        return rows

    def _above(self, keys: set[Key], edges: Mapping[Key, Sequence[tuple[Key, Call]]]) -> set[Key]:
        """Functions and those that call them, up to where a layer is called."""
        found = set(keys)
        stack = list(keys)
        while stack:
            key = stack.pop()
            if key[1].endswith((".forward", ".__call__")):
                continue
            for at, _ in edges.get(key, ()):
                if at not in found:
                    found.add(at)
                    stack.append(at)
        return found

    def carry(self, edges: dict[Key, list[tuple[Key, Call]]]) -> None:
        """Carry the regions of callers into what they call; fills ``program.callers``."""
        flows: dict[Key, dict[str, Flow]] = {}
        out: dict[Key, list[tuple[Key, Call]]] = {}
        for key, sites in edges.items():
            for at, call in sites:
                out.setdefault(at, []).append((key, call))
        queue: deque[Key] = deque()
        for key, facts in self.functions.items():
            if facts.region is not None:
                flows[key] = {facts.region.state: _flow(facts.region, key[0])}
            elif not edges.get(key) and facts.name != "<module>":
                flows[key] = {"inherited": Flow("inherited")}
            else:
                flows[key] = {}
            queue.append(key)
        while queue:
            at = queue.popleft()
            for key, call in out.get(at, ()):
                facts = self.functions[key]
                if facts.region is not None:
                    continue
                entering = self.entering(call, at, flows)
                changed = False
                for flow in entering:
                    if flow.state not in flows[key]:
                        via = (*flow.via, (at[0], call.span, key[1]))[-HOPS:]
                        flows[key][flow.state] = replace(flow, via=via)
                        changed = True
                if changed:
                    queue.append(key)
        for key, sites in edges.items():
            foreign = [
                Caller(at[0], at[1], call.span, flow)
                for at, call in sites
                if at[0] != key[0]
                for flow in self.entering(call, at, flows) or [Flow("inherited")]
            ]
            if foreign:
                order = {"on": 0, "off": 1, "inherited": 2}
                foreign.sort(key=lambda c: (order[c.flow.state], c.file, c.span))
                kept = foreign[:CALLERS]
                last = foreign[-1]
                if last not in kept:  # an unknown caller must not fall under the table
                    kept[-1] = last
                self.program.callers[key] = tuple(kept)

    def _given(self, managers: tuple[Origin, ...], at: Key) -> Flow | None:
        """The region that the function opens which makes a context manager."""
        for manager in managers:
            for thing in self.things(manager, at, self._owner(at)):
                for key in self.entered(thing) if thing.kind != "class" else ():
                    facts = self.functions.get(key)
                    if facts is not None and facts.gives is not None:
                        return _flow(facts.gives, key[0])
        return None

    def entering(self, call: Call, at: Key, flows: dict[Key, dict[str, Flow]]) -> list[Flow]:
        """The states in which a call is made."""
        if call.region is not None:
            return [_flow(call.region, at[0])]
        given = self._given(call.managers, at)
        if given is not None:
            return [given]
        if at[1] == "<module>":
            return []  # a script's own trial call says nothing about training
        if call.span[0] < self.program.drivers.get(at, 0):
            return [Flow("off", "float32", file=at[0], span=call.span, opened=False)]
        return list(flows.get(at, {}).values())


def _mentions_parameter(origin: Origin) -> bool:
    return origin[:1] == ("parameter",) or any(
        _mentions_parameter(part) for part in origin if isinstance(part, tuple)
    )


def _opens(facts: FunctionFacts) -> bool:
    return facts.opens > 0 or (facts.region is not None and facts.region.state == "on")


def _flow(region: Lexical, file: str) -> Flow:
    return Flow(region.state, region.dtype, region.device, file, region.span)
