"""The files of a project through the interpreter, and what that gives through the rules.

Each file is interpreted by itself, together with what it imports: that gives facts, which are
plain data.  A file's findings then follow from the facts about it of all files that were
interpreted, for a function is called from elsewhere, too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from precision_lint import analysis, assumed, registry, source
from precision_lint.api import Confidence, Diagnostic, Position, Rule
from precision_lint.domains import dtypes
from precision_lint.events import AS_WRITTEN, Event, Function, Link, Place, Sign, Variant, differing
from precision_lint.precision.confidence import NOBODY, Callers
from precision_lint.precision.modes import Force, Strength, force
from precision_lint.project.code import Code
from precision_lint.source import Failure, Source

Cut = tuple[str, str, int]
"""A bound that was reached (``Program.count``), the function's qualified name, and how often."""
FRAMES = 8000
"""How deep the analysis may recurse."""
VARIANTS = 24
"""Ways in which one event comes about that are looked at."""


@contextmanager
def deep_recursion() -> Iterator[None]:
    # a sum of 600 terms is a tree 600 levels deep, and a level takes several frames
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, FRAMES))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


@dataclass(frozen=True)
class Facts:
    """What the interpretation of one file gave: of itself, and of files that it calls.

    events: by file, as JSON.  signs: places that show a mode.  called: functions with known
    callers.
    """

    events: Mapping[str, str] = field(default_factory=dict)
    signs: tuple[Sign, ...] = ()
    called: frozenset[Function] = frozenset()
    rests: frozenset[str] = frozenset()
    """Files on whose contents all of this rests; not kept with it."""
    failure: str = ""
    """Why the interpreter itself failed."""
    cut: tuple[Cut, ...] = ()
    """What was not followed to its end."""
    parsed: bool = False
    """Whether the file's text parses."""

    def encode(self) -> str:
        """Lines of JSON: what is no event, and the events of each file."""
        head = {
            "files": list(self.events),
            "signs": [
                [
                    s.mode,
                    s.text,
                    list(s.place),
                    s.script,
                    s.inside,
                    s.flag,
                    s.bound,
                    s.around,
                    s.closed,
                    sorted(s.classes),
                ]
                for s in self.signs
            ],
            "called": _by_file(self.called),
            "cut": self.cut,
            "parsed": self.parsed,
        }
        return "\n".join([json.dumps(head), *self.events.values()])

    @classmethod
    def decode(cls, text: str) -> Facts | None:
        """What ``encode`` wrote; None for what it did not."""
        first, *lines = text.split("\n")
        try:
            head = json.loads(first)
            signs = tuple(
                Sign(
                    mode,
                    said,
                    Place(*place),
                    script,
                    inside,
                    flag,
                    bound,
                    around=around,
                    closed=closed,
                    classes=frozenset((path, name) for path, name in classes),
                )
                for (
                    mode,
                    said,
                    place,
                    script,
                    inside,
                    flag,
                    bound,
                    around,
                    closed,
                    classes,
                ) in head["signs"]
            )
            called = frozenset(
                (path, name) for path, names in head["called"].items() for name in names
            )
            cut = tuple((what, function, times) for what, function, times in head["cut"])
            events = dict(zip(head["files"], lines, strict=True))
            parsed = head["parsed"] is True
            return cls(events, signs, called, cut=cut, parsed=parsed)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None


def _by_file(functions: Iterable[Function]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path, name in sorted(functions):
        found.setdefault(path, []).append(name)
    return found


@dataclass(frozen=True)
class Told:
    """What is known of one file before its text is put into words.

    events: of each interpreted file that came here, as JSON.  roots: those files.  here, around:
    modes that the file itself, and others, show to be in force.  called: functions with known
    callers.  stated: the modes that the user states; None: nothing is stated.
    """

    events: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    here: Force = field(default_factory=Force)
    around: Force = field(default_factory=Force)
    called: Callers = NOBODY
    failure: str = ""
    stated: tuple[str, ...] | None = None
    cut: tuple[Cut, ...] = ()
    parsed: bool = False
    """Whether the file's text is known to parse."""
    callers: Mapping[str, frozenset[Function]] = field(default_factory=dict)
    """Files that call functions of this one and brought no event; their own functions with known callers."""

    @property
    def force(self) -> Force:
        return self.around.with_those_of(self.here).under(self.stated)

    @property
    def key(self) -> tuple[bytes, ...]:
        """All that findings depend on, to be digested."""
        modes = [
            [mode, int(strength), sign and [sign.text, list(sign.place)]]
            for mode, (strength, sign) in sorted(self.force.modes.items())
        ]
        called = sorted(sorted(one) for one in self.called.seen)
        rest = json.dumps([modes, called, sorted(self.force.made)])
        return (*(one.encode("utf8", "surrogatepass") for one in self.events), rest.encode())


def listened(rules: Iterable[type[Rule]] | None = None) -> tuple[str, ...]:
    """The kinds of events that rules listen to, by default all that are installed."""
    if rules is None:
        return registry.listened()
    return tuple(sorted({kind for rule in rules for kind in rule.listens}))


class Engine:
    """Interprets files of a project; remembers the last ones it loaded.

    kinds: of the events that are asked for; by default those that the installed rules listen to.
    """

    def __init__(self, code: Code, kinds: Iterable[str] | None = None) -> None:
        from precision_lint.dataflow.program import Program  # late: what is known needs none of it
        from precision_lint.hazards import operations

        self.code = code
        self.program = Program(code.layout, code.tree)
        self.program.wanted = operations.wanted(listened() if kinds is None else kinds)

    def facts(self, name: str) -> Facts:
        """What a file gives that is interpreted by itself."""
        program = self.program
        interpreter = program.interpreter
        program.devices, program.torch = self.code.devices(name), self.code.torch_of(name)[0]
        program.start_anew(name)  # its own top level counts as well
        program.called = set()
        program.limits.clear()
        program.parted.clear()
        program.long.clear()
        program.default_dtype = dtypes.V_FLOAT32
        interpreter.events, interpreter.signs, interpreter.kinds = {}, set(), set()
        try:
            program.analyse(name)
            interpreter.settle()
            events: dict[str, list[Any]] = {}
            for event in interpreter.events.values():
                if event.variants:
                    plain = _plain_event(event)
                    for path in {event.path, event.place.path}:
                        events.setdefault(path, []).append(plain)
            imported = dict(self._imported(name))
            signs = interpreter.signs.union(*imported.values())
            return Facts(
                {path: json.dumps(found) for path, found in sorted(events.items())},
                tuple(sorted(signs, key=lambda one: (one.place, one.mode, one.text))),
                frozenset(program.called),
                frozenset(program.rests(name)).union(imported),
                cut=tuple(
                    (what, function, times)
                    for (what, path, function), times in sorted(program.limits.items())
                    if path == name
                ),
                parsed=name in program.modules,
            )
        finally:
            interpreter.events, interpreter.signs = {}, set()
            program.evict()

    def _imported(self, name: str) -> Iterator[tuple[str, set[Sign]]]:
        """Loaded files that one imports, with the signs in their top level, if there are any."""
        seen, pending = {name}, [name]
        while pending:
            for other in self.program.imports.get(pending.pop(), ()):
                if other not in seen:
                    seen.add(other)
                    pending.append(other)
                    module = self.program.modules.get(other)
                    signs = module.facts.get("signs") if module is not None else None
                    if signs:
                        yield other, signs

    def forget(self, name: str) -> None:
        """Load a file anew, and those that import it."""
        for one in (name, *self.program.importers(name)):
            self.program.drop(one)


def told(
    name: str,
    facts: Mapping[str, Facts],
    imports: Callable[[str], Iterable[str]] = lambda _: (),
) -> Told:
    """What the facts of interpreted files say of one file.

    imports: what a file imports, directly or not.
    """
    return Together(facts, imports).told(name)


class Together:
    """The facts of all files that were interpreted.

    imports: what a file imports, directly or not.  suggested: signs besides those of the code.
    imported: whether any file imports one.  near: what a file names in its imports.  below: the files of
    a folder, and what they import.
    """

    def __init__(
        self,
        facts: Mapping[str, Facts],
        imports: Callable[[str], Iterable[str]] = lambda _: (),
        suggested: Iterable[Sign] = (),
        imported: Callable[[str], bool] = lambda _: False,
        near: Callable[[str], Iterable[str]] = lambda _: (),
        below: Callable[[str], Iterable[str]] = lambda _: (),
    ) -> None:
        self._facts = facts
        signs = {sign for found in facts.values() for sign in found.signs}.union(suggested)
        self._signs = Signs(signs, imports, imported, near, below)
        self._roots: dict[str, list[str]] = {}
        self._called: dict[str, dict[str, set[Function]]] = {}
        for root, found in sorted(facts.items()):
            for name in found.events:
                self._roots.setdefault(name, []).append(root)
            for function in found.called:
                of_file = self._called.setdefault(function[0], {})
                of_file.setdefault(root, set()).add(function)

    def told(self, name: str) -> Told:
        """What they say of one file."""
        roots = dict.fromkeys([name, *self._roots.get(name, ())])
        facts = [self._facts[root] for root in roots if root in self._facts]
        called: dict[str, set[Function]] = {}
        for root in roots:
            for caller, functions in self._called.get(root, {}).items():
                called.setdefault(caller, set()).update(functions)
        callers = {
            root: frozenset().union(*self._called.get(root, {}).values())
            for root in self._called.get(name, ())
            if root not in roots
        }
        own = self._facts.get(name)
        return Told(
            tuple(found.events[name] for found in facts if name in found.events),
            tuple(roots),
            self._signs.here(name),
            self._signs.around(name),
            Callers(tuple(frozenset(one) for _, one in sorted(called.items()))),
            own.failure if own is not None else "",
            cut=own.cut if own is not None else (),
            parsed=own is not None and own.parsed,
            callers=callers,
        )


class Signs:
    """The signs of all files that were interpreted."""

    def __init__(
        self,
        signs: Iterable[Sign],
        imports: Callable[[str], Iterable[str]],
        imported: Callable[[str], bool],
        near: Callable[[str], Iterable[str]],
        below: Callable[[str], Iterable[str]],
    ) -> None:
        self._by_file: dict[str, list[Sign]] = {}
        said: set[tuple[str, int]] = set()
        for sign in sorted(signs, key=lambda one: (one.place, one.mode, one.text)):
            if sign.setting is not None:  # one file that says so is enough
                if (sign.setting, sign.mode) in said:
                    continue
                said.add((sign.setting, sign.mode))
            program = sign.script and not imported(sign.place.path)
            found = replace(sign, script=False) if program else sign
            self._by_file.setdefault(sign.place.path, []).append(found)
        code = (path for path in self._by_file if path.endswith((".py", ".pyi", ".ipynb")))
        self._imports = {path: frozenset(imports(path)) for path in code}
        self._near = {path: frozenset(near(path)) for path in self._imports}
        self._imported = imported
        homes = {one.setting for found in self._by_file.values() for one in found if one.setting}
        self._below = {home: frozenset(below(home)) for home in homes}

    def here(self, name: str) -> Force:
        """The modes that a file itself shows."""
        return force(name, self._by_file.get(name, ()))

    def around(self, name: str) -> Force:
        """The modes that other files show."""
        importers = [path for path, found in self._imports.items() if name in found]
        others = (
            replace(sign, setting="") if name in self._below.get(sign.setting or "", ()) else sign
            for path, found in self._by_file.items()
            if path != name
            for sign in found
        )
        imported = bool(importers) or self._imported(name)
        near = frozenset(path for path, found in self._near.items() if name in found)
        return force(name, others, importers, imported, near)


def again(engine: Engine, name: str, known: Told, limit: int | None = None) -> Told:
    """What is known of a file whose text is another one now.

    limit: of the files that came to it, how many are interpreted again.
    """
    return _again(name, known, facts_of(engine, name, known, limit))


def facts_of(engine: Engine, name: str, known: Told, limit: int | None = None) -> dict[str, Facts]:
    """The facts of a file and of those that came to it, interpreted anew."""
    engine.forget(name)
    roots = [name, *(root for root in known.roots if root != name)]
    return {root: engine.facts(root) for root in roots[:limit]}


def _again(name: str, known: Told, facts: Mapping[str, Facts]) -> Told:
    new = told(name, facts)
    called = Callers((*new.called.seen, *known.called.seen))
    return replace(new, around=known.around, called=called, callers=known.callers)


def again_with_callers(engine: Engine, name: str, known: Told) -> tuple[Told, frozenset[Place]]:
    """The same, and where operands of other files differ in dtype, as far as files say that came to it."""
    facts = facts_of(engine, name, known)
    others = {other for found in facts.values() for other in found.events if other != name}
    events = [
        event
        for other in sorted(others)
        for event in merged([f.events[other] for f in facts.values() if other in f.events])
    ]
    differ = frozenset(event.place for event in events if event.kind == "dtype-mismatch")
    return _again(name, known, facts), differ


def lint(
    text: Source,
    code: Code,
    name: str,
    known: Told,
    rules: Sequence[type[Rule]],
    further: list[Diagnostic] | None = None,
) -> list[Diagnostic]:
    """All findings of rules in a text, of any confidence, and what is wrong with stated facts; of a
    text that does not parse, why.

    Files in their evidence are named as the project names them.  further: takes what is less than likely
    now, or no finding, and likely if a mode were stated that its ``modes`` name.
    """
    events = merged(known.events)
    judged = analysis.judged(events, name, rules, known.force, known.called)
    asked = further is not None and known.stated is None
    stated = (
        analysis.stated(events, name, rules, known.force, known.called, judged) if asked else {}
    )
    if not judged and not stated and known.parsed and not assumed.speaks(text.text):
        return []
    tree = source.parse(text)
    if isinstance(tree, Failure):
        return [tree.diagnostic()]
    words: analysis.Words = {}
    about = text, tree, name
    torch = code.torch_of(name)
    found = analysis.diagnostics(*about, judged, *torch, words=words)
    if further is not None:
        then = {
            mode: analysis.diagnostics(*about, ones, *torch, words=words)
            for mode, ones in stated.items()
        }
        further += _more(found, then)
    return [*found, *assumed.diagnostics(text, tree, events, name)]


def _more(
    found: Iterable[Diagnostic], then: Mapping[str, Iterable[Diagnostic]]
) -> list[Diagnostic]:
    """What would be likely in the modes of ``then``, each once, that is not among what is likely now."""
    possible = Confidence.POSSIBLE
    now = {(one.code, one.start, one.end) for one in found if one.confidence is not possible}
    more: dict[tuple[str, Position, Position], Diagnostic] = {}
    for mode, ones in then.items():
        for one in ones:
            key = (one.code, one.start, one.end)
            if one.confidence is not possible and key not in now:
                modes = (*(more[key].modes if key in more else ()), mode)
                more[key] = replace(one, evidence=(), fix=None, modes=modes)
    return list(more.values())


# plain data


def _plain_event(event: Event) -> list[Any]:
    variants = [
        [
            v.modes,
            v.assumptions,
            v.root,
            v.script,
            v.calls,
            v.regions,
            v.links,
            sorted(v.also),
            _plain_facts(v.facts),
            v.of_module,
        ]
        for v in event.variants
    ]
    return [event.kind, event.place, event.function, _plain_facts(event.facts), variants]


def _plain_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _plain(value) for name, value in facts.items()}


def _plain(value: Any) -> Any:
    """A fact of an event with what kind of tuple it is."""
    if isinstance(value, Place):
        return {"place": list(value)}
    if isinstance(value, (tuple, list)):
        return {"tuple": [_plain(one) for one in value]}
    return value


def _fact(value: Any) -> Any:
    if isinstance(value, dict):
        if "place" in value:
            return Place(*value["place"])
        return tuple(_fact(one) for one in value["tuple"])
    return value


def merged(texts: Iterable[str]) -> list[Event]:
    """The events of several interpretations, each with all ways in which it comes about."""
    found: dict[tuple[Any, ...], Event] = {}
    for text in texts:
        for kind, place, function, facts, variants in json.loads(text):
            known = {name: _fact(value) for name, value in facts.items()}
            key = (kind, tuple(place), known.get("key"))
            event = found.get(key)
            if event is None:
                event = found[key] = Event(kind, Place(*place), function, known)
            room = VARIANTS - len(event.variants)
            own = [differing(known, event.facts, modes) for modes in (0, AS_WRITTEN)]
            event.variants += [
                _variant(one, own[one[0] & AS_WRITTEN]) for one in variants[: max(room, 0)]
            ]
    return list(found.values())


def _variant(plain: list[Any], other: Mapping[str, Any]) -> Variant:
    """A variant of an event, of which another interpretation has the ``other`` facts."""
    modes, assumptions, root, script, calls, regions, links, also, facts, of_module = plain
    return Variant(
        modes,
        assumptions,
        (root[0], root[1]),
        script,
        tuple(Place(*one) for one in calls),
        tuple(Place(*one) for one in regions),
        tuple(Link(text, Place(*place)) for text, place, _ in links),
        {(path, name) for path, name in also},
        {**other, **{name: _fact(value) for name, value in facts.items()}},
        of_module,
    )


__all__ = [
    "Engine",
    "Facts",
    "Strength",
    "Together",
    "Told",
    "again",
    "lint",
    "merged",
    "told",
]
