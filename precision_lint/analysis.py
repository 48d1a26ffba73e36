"""One file through the engine and the rules: events, their confidence, words and fixes."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from precision_lint.api import (
    Applicability,
    Confidence,
    Diagnostic,
    Event,
    Evidence,
    Finding,
    Fix,
    Link,
    Place,
    Position,
    Rule,
    Severity,
)
from precision_lint.context import Context
from precision_lint.domains.dtypes import AMPBF, CODE, HALFBF
from precision_lint.precision.confidence import (
    NOBODY,
    Callers,
    Verdict,
    counting,
    judge,
    with_modes,
)
from precision_lint.precision.modes import MODES, Force
from precision_lint.source import Source

IN_BFLOAT16 = 1 << AMPBF | 1 << HALFBF
Rules = Sequence[type[Rule]]
Judged = tuple[Event, Verdict, Rules]
"""An event, how sure it is, and the rules that listen to it."""
Words = dict[tuple[object, ...], list[Finding]]
"""What rules say of the ways in which events come about."""
NAMES = {CODE: "code", **{number: name for name, number in MODES.items()}}
"""Modes as findings name them."""


def judged(
    events: Iterable[Event],
    path: str,
    rules: Rules,
    force: Force,
    superseded: Callers = NOBODY,
) -> list[Judged]:
    """The events in one file that come to a finding; path: the file's name in its events."""
    listeners: dict[str, list[type[Rule]]] = {}
    for rule in rules:
        for kind in rule.listens:
            listeners.setdefault(kind, []).append(rule)
    found: list[Judged] = []
    for event in events:
        if path in (event.path, event.place.path) and event.kind in listeners:
            verdict = judge(event, force, superseded)
            if verdict is not None:
                verdict = with_modes(event, verdict, force, superseded)
                shown = as_counts(event, verdict, superseded)
                shown = shown if shown.path == event.path else event
                found.append((shown, verdict, listeners[event.kind]))
    return found


def stated(
    events: Iterable[Event],
    path: str,
    rules: Rules,
    force: Force,
    superseded: Callers = NOBODY,
    now: Iterable[Judged] = (),
) -> dict[str, list[Judged]]:
    """For each mode that may be stated: the events as they are judged then, if it makes one more likely.

    now: the events as they are judged in the modes that are in force.
    """
    kinds = {kind for rule in rules for kind in rule.listens}
    sure = {
        _key(event) for event, verdict, _ in now if verdict.confidence is not Confidence.POSSIBLE
    }
    here = (e for e in events if path in (e.path, e.place.path))
    dim = [e for e in here if e.kind in kinds and _key(e) not in sure]
    found: dict[str, list[Judged]] = {}
    for name, mode in MODES.items():
        under = force.under((name,))
        for event in dim:
            verdict = judge(event, under, superseded) if event.modes & 1 << mode else None
            if verdict is not None and verdict.confidence is not Confidence.POSSIBLE:
                found[name] = judged(events, path, rules, under, superseded)
                break
    return found


def _key(event: Event) -> tuple[object, ...]:
    return event.kind, event.place, event.facts.get("key")


def diagnostics(
    source: Source,
    tree: ast.Module,
    path: str,
    events: Iterable[Judged],
    torch_version: tuple[int, ...] | None = None,
    torch_pinned: tuple[int, ...] | None = None,
    words: Words | None = None,
) -> list[Diagnostic]:
    """All findings of rules in one file, of any confidence, in order of place.

    words: what rules said of these events before; it is added to.
    """
    words = {} if words is None else words
    at = Context(source, tree, path, torch_version, torch_pinned)
    found: list[tuple[Event, type[Rule], Diagnostic]] = []
    for event, verdict, rules in events:
        for rule in rules:
            try:
                wide = bool(verdict.modes & ~IN_BFLOAT16)
                key = (*_key(event), id(verdict.variant), wide, rule)
                if key not in words:
                    words[key] = list(rule().check(event, at))
                for finding in words[key]:
                    found.append((event, rule, _diagnostic(rule, at, event, finding, verdict)))
            except Exception as error:
                found.append((event, rule, _crash(rule, at, event, error)))
    kept = _without_superseded(found)
    kept.sort(key=lambda d: (d.start, d.end, d.code))
    return kept


def as_counts(event: Event, verdict: Verdict, superseded: Callers) -> Event:
    """The event with the facts of the way that counts, of the modes that do, and the places of a cure of all
    ways."""
    variants = list(counting(event, superseded))
    facts = {**event.facts, **verdict.variant.facts}
    if not verdict.modes & ~IN_BFLOAT16 and "bfloat16" not in facts.values():
        facts = {name: "bfloat16" if one == "float16" else one for name, one in facts.items()}
    if "upcast" in facts:
        each = (one.facts.get("upcast", event.facts["upcast"]) for one in variants)
        facts["upcast"] = tuple(dict.fromkeys(place for places in each for place in places))
    if "at_origin" in facts:
        facts["at_origin"] = all(
            one.facts.get("at_origin", event.facts["at_origin"]) for one in variants
        )
    return replace(event, facts=facts)


def _without_superseded(
    found: list[tuple[Event, type[Rule], Diagnostic]],
) -> list[Diagnostic]:
    """One finding a defect: a more specific rule replaces a general one whose code meets its own,
    unless only that is more than possible, and of several that say the same the surest is kept."""
    gone: dict[tuple[str, int], list[Diagnostic]] = {}
    for _, rule, diagnostic in found:
        for code in rule.supersedes:
            for row in range(diagnostic.start.row, diagnostic.end.row + 1):
                gone.setdefault((code, row), []).append(diagnostic)
    seen: set[tuple[str, Position, Position]] = set()
    kept = []
    for _, _, diagnostic in sorted(found, key=lambda one: -one[2].confidence.rank):
        key = (diagnostic.code, diagnostic.start, diagnostic.end)
        rows = range(diagnostic.start.row, diagnostic.end.row + 1)
        specific = (one for row in rows for one in gone.get((diagnostic.code, row), ()))
        if key in seen or any(_hides(one, diagnostic) for one in specific):
            continue
        seen.add(key)
        kept.append(diagnostic)
    return kept


def _hides(specific: Diagnostic, general: Diagnostic) -> bool:
    """Whether two findings say the same of the same code, and the more specific one is sure enough."""
    if specific.start >= general.end or general.start >= specific.end:
        return False
    possible = Confidence.POSSIBLE
    return specific.confidence is not possible or general.confidence is possible


def _diagnostic(
    rule: type[Rule], at: Context, event: Event, finding: Finding, verdict: Verdict
) -> Diagnostic:
    start, end = _span(at, finding.place or event.place)
    fix = finding.fix
    if fix is not None and fix.applicability is Applicability.SAFE:
        reason = _doubt(at, fix, verdict)
        fix = Fix(fix.title, Applicability.UNSAFE, fix.edits, reason) if reason else fix
    return Diagnostic(
        rule.code,
        rule.name,
        finding.message,
        at.source.filename,
        start,
        end,
        finding.severity or rule.severity,
        verdict.confidence,
        _with_edits(at, start, end, tuple(_evidence(at, event, finding, verdict)), fix),
        fix,
        modes=tuple(name for number, name in NAMES.items() if verdict.modes & 1 << number),
        assumptions=verdict.assumed,
    )


def _doubt(at: Context, fix: Fix, verdict: Verdict) -> str:
    """Why a safe fix of a rule must be judged here; empty: it need not."""
    if verdict.confidence is Confidence.POSSIBLE:
        return "the code does not show that these are tensors, or half"
    asserted = at.assertions.behind(fix.edits)
    if asserted is not None:
        said = at.quoted(at.tree.place(asserted), "an assertion")
        return f"{said} may not hold after it"
    return ""


def _with_edits(
    at: Context, start: Position, end: Position, evidence: tuple[Evidence, ...], fix: Fix | None
) -> tuple[Evidence, ...]:
    """Evidence that names every line which a fix changes."""
    named = set(range(start.row, end.row + 1))
    for one in evidence:
        if one.start is not None and one.filename is None:
            named.update(range(one.start.row, (one.end or one.start).row + 1))
    added = []
    for edit in fix.edits if fix is not None else ():
        first, last = at.source.position(edit.start), at.source.position(edit.end)
        if first.row not in named and "import" not in edit.text:
            named.update(range(first.row, last.row + 1))
            added.append(Evidence("the fix changes this line", first, last))
    return (*evidence, *added)


def _evidence(at: Context, event: Event, finding: Finding, verdict: Verdict) -> Iterator[Evidence]:
    """The places that a finding rests on: what it names, how the code is run, how it got there."""
    for link in (*finding.related, *verdict.variant.links):
        yield _linked(at, link)
    if verdict.sign is not None:
        yield _linked(at, Link(verdict.sign.text, verdict.sign.place))
    named = {finding.place or event.place, *(link.place for link in finding.related)}
    for place in verdict.variant.regions[:1]:
        if place not in named:
            yield _linked(at, Link("the autocast region opens here", place))
    for place in verdict.variant.calls[:2]:
        yield _linked(at, Link("called from here", place))


def _linked(at: Context, link: Link) -> Evidence:
    if link.place.path == at.path:
        start, end = _span(at, link.place)
        return Evidence(link.text, start, end)
    row, column = link.place.row, link.place.column + 1
    return Evidence(link.text, Position(row, column), None, link.place.path, link.cause)


def _span(at: Context, place: Place) -> tuple[Position, Position]:
    source = at.source
    return (
        source.position(source.offset(place.row, place.column)),
        source.position(source.offset(place.end_row, place.end_column)),
    )


def _crash(rule: type[Rule], at: Context, event: Event, error: Exception) -> Diagnostic:
    place = Position(event.place.row, event.place.column + 1)
    return Diagnostic(
        "MP003",
        "rule-crash",
        f"rule {rule.code} ({rule.name}) crashed with {type(error).__name__}: "
        f"{' '.join(str(error).split())[:200]}; report it, and --ignore {rule.code} meanwhile",
        at.source.filename,
        place,
        place,
        Severity.ERROR,
        Confidence.CERTAIN,
        internal=True,
    )
