"""One file through the rules: prefilter, parse, candidates, findings."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from precision_lint.api import (
    Applicability,
    Confidence,
    Diagnostic,
    Finding,
    Fix,
    Position,
    Rule,
    Severity,
)
from precision_lint.project.amp import Project
from precision_lint.semantics import describe as explain
from precision_lint.semantics import events
from precision_lint.semantics.context import Context
from precision_lint.semantics.describe import Description
from precision_lint.semantics.edition import Edition
from precision_lint.semantics.index import Function, Index, build
from precision_lint.semantics.module import Again, Module
from precision_lint.semantics.program import Program
from precision_lint.slices import Editor
from precision_lint.source import Failure, Source, may_hold_tensors, parse

Rules = Sequence[type[Rule]]
_WORD = re.compile(rb"\w+")


@functools.lru_cache(maxsize=64)
def _prefilter(patterns: tuple[str, ...]) -> re.Pattern[bytes]:
    return re.compile("|".join(f"(?:{p})" for p in patterns).encode(), re.MULTILINE)


@dataclass(frozen=True)
class _Wanted:
    """What a rule's pattern looks for: whole words, parts of words, and the rest of it."""

    words: frozenset[bytes]
    within: re.Pattern[bytes] | None
    rest: re.Pattern[bytes] | None

    @staticmethod
    @functools.lru_cache(maxsize=256)
    def of(pattern: str) -> _Wanted:
        words: set[bytes] = set()
        within, rest = [], []
        for part in _alternatives(pattern):
            if match := re.fullmatch(r"\\b\(\?:([\w|]+)\)\\b", part, re.ASCII):
                words |= {*match[1].encode().split(b"|")}
            elif re.fullmatch(r"(?:\w|\||\[\w+\]|\(\?i?:|\)|\\b)+", part, re.ASCII):
                within.append(part)
            else:
                rest.append(part)
        return _Wanted(
            frozenset(words),
            _prefilter(tuple(within)) if within else None,
            _prefilter(tuple(rest)) if rest else None,
        )


def _alternatives(pattern: str) -> list[str]:
    """What a pattern's outermost ``|`` are between."""
    parts, depth = [""], 0
    for token in re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", pattern, re.DOTALL):
        depth += (token == "(") - (token == ")")
        if token == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    return parts


def _triggered(rules: Rules, data: bytes) -> list[type[Rule]]:
    """The rules whose pattern matches; most ask for words, which are collected once."""
    words = frozenset(_WORD.findall(data))
    text = b"\n".join(words)

    @functools.cache
    def matches(pattern: re.Pattern[bytes], inside: bytes) -> bool:
        return pattern.search(inside) is not None

    def wants(wanted: _Wanted) -> bool:
        return (
            not wanted.words.isdisjoint(words)
            or (wanted.within is not None and matches(wanted.within, text))
            or (wanted.rest is not None and matches(wanted.rest, data))
        )

    return [rule for rule in rules if wants(_Wanted.of(rule.triggers.pattern))]


def relevant(data: bytes, rules: Rules) -> bool:
    """Whether any rule could find anything in these bytes."""
    if not may_hold_tensors(data):
        return False
    return _prefilter(tuple(rule.triggers.pattern for rule in rules)).search(data) is not None


def lint(
    source: Source,
    rules: Rules,
    project: Project,
    program: Program | None = None,
    path: str = "",
    edition: Edition | None = None,
) -> list[Diagnostic]:
    """All findings of ``rules`` in one file, of any confidence, in order of place.

    ``path`` is the file's name in ``program``; without one, nothing of other files is known.
    ``edition`` is what is kept of the file's last text.

    A rule that crashes gives one internal diagnostic (MP003) and the other rules go on; a file
    that does not parse gives its syntax error (MP002).
    """
    data = source.text.encode("utf8", "surrogatepass")
    tree = edition.parse(source) if edition is not None else parse(source)
    if isinstance(tree, Failure):
        return [tree.diagnostic()]
    active = _triggered(rules, data)
    if not active or not may_hold_tensors(data):
        return []
    if program is None:  # else its files were read
        project = project.with_file(source.filename, data)
    asking = active if edition is None else rules  # what is typed may trigger another rule
    nodes = {ast.With, ast.AsyncWith}.union(*(r.triggers.nodes for r in asking))
    index = edition.index(tree, nodes) if edition is not None else build(tree, nodes)
    editor = Editor(source, tree)
    try:
        found = _judged(active, index, source, project, program, path, editor, edition)
    except Again:
        found = _judged(active, index, source, project, program, path, editor, None)
    for cls in index.classes.values() if edition is None else ():
        cls.close()
    found.sort(key=lambda d: (d.start, d.end, d.code))
    return found


def _judged(
    active: Rules,
    index: Index,
    source: Source,
    project: Project,
    program: Program | None,
    path: str,
    editor: Editor,
    edition: Edition | None,
) -> list[Diagnostic]:
    """What rules find in a file; raises Again where what is kept is of no use."""
    if program is not None:
        program.forget(keep=edition is not None)
    known = program if path else None
    module = edition.module(index, path, known) if edition else Module(index, path, known)
    found: list[Diagnostic] = []
    for rule in active:
        place: Any = None
        seen: dict[Function, Context] = {}
        try:
            for place, function in _candidates(rule, index, module):
                at = seen.get(function)
                if at is None:
                    at = Context(rule, source, module, project, function, editor)
                    seen[function] = at
                found += [_diagnostic(rule, source, f) for f in rule().check(place, at)]
        except Exception as error:
            found.append(_crash(rule, source, place, error))
    module.close()
    return found


def contexts(
    source: Source, project: Project, program: Program | None = None, path: str = ""
) -> Callable[[int], Context] | Failure:
    """A function from a row of a file to the analysis of the function there."""
    tree = parse(source)
    if isinstance(tree, Failure):
        return tree
    project = project.with_file(source.filename, source.text.encode("utf8", "surrogatepass"))
    if program is not None:
        program.forget()
    module = Module(build(tree, {ast.With, ast.AsyncWith}), path, program if path else None)
    editor = Editor(source, tree)

    def at(row: int) -> Context:
        inside = [
            function
            for function in module.index.functions
            if not isinstance(function.node, ast.Module)
            and function.node.lineno <= row <= (function.node.end_lineno or 0)
        ]
        function = max(inside, key=lambda f: getattr(f.node, "lineno", 0), default=module.index.top)
        return Context(Rule, source, module, project, function, editor)

    return at


def describe(
    source: Source, row: int, project: Project, program: Program | None = None, path: str = ""
) -> Description | Failure:
    """What the analysis knows at a row of a file."""
    at = contexts(source, project, program, path)
    return at if isinstance(at, Failure) else explain.describe(at(row), row)


def _candidates(rule: type[Rule], index: Index, module: Module) -> Iterator[tuple[Any, Function]]:
    triggers = rule.triggers
    if triggers.calls:
        functions, methods, words = _named(triggers.calls)
        for last in words:
            for call, function in index.calls.get(last, ()):
                qualified = module.qualify(call.func)
                if (
                    qualified in functions
                    if qualified is not None
                    else last in methods and isinstance(call.func, ast.Attribute)
                ):
                    yield call, function
        # from torch import einsum as contract
        renamed = {
            local for local, home in index.names.bound.items()
            if home in functions and home.rpartition(".")[2] != local
        }  # fmt: skip
        for local in sorted(renamed):
            for call, function in index.calls.get(local, []):
                if isinstance(call.func, ast.Name):
                    yield call, function
    for kind in triggers.nodes:
        for node, function in index.candidates.get(kind, []):
            yield node, function
    if triggers.events & events.PROTOCOL:
        for violation, function in module.typestate.violations():
            if violation.kind in triggers.events:
                yield violation, function
    if events.PROMOTION in triggers.events:
        creating = {
            id(function): function
            for last in events.CREATIONS
            for _, function in index.calls.get(last, [])
        }
        for function in creating.values():
            for event in module.analysis(function).events:
                yield event, function


@functools.lru_cache(maxsize=256)
def _named(names: frozenset[str]) -> tuple[frozenset[str], frozenset[str], list[str]]:
    """Of the names of callables: functions, methods, and the last words of both in order."""
    functions = frozenset(name for name in names if not name.startswith("Tensor."))
    methods = frozenset(name[7:] for name in names if name.startswith("Tensor."))
    return functions, methods, sorted({name.rpartition(".")[2] for name in names})


def _diagnostic(rule: type[Rule], source: Source, finding: Finding) -> Diagnostic:
    fix = finding.fix
    if (
        fix
        and fix.applicability is Applicability.SAFE
        and finding.confidence is Confidence.POSSIBLE
    ):
        reason = "the pattern alone does not show that these are tensors, or half"
        fix = Fix(fix.title, Applicability.UNSAFE, fix.edits, reason)
    return Diagnostic(
        rule.code,
        rule.name,
        finding.message,
        source.filename,
        finding.start,
        finding.end,
        finding.severity,
        finding.confidence,
        finding.evidence,
        fix,
    )


def _crash(rule: type[Rule], source: Source, node: Any, error: Exception) -> Diagnostic:
    inner = getattr(node, "node", node)
    row = getattr(inner, "lineno", 1)
    column = getattr(inner, "col_offset", 0) + 1
    place = Position(row, column)
    return Diagnostic(
        "MP003",
        "rule-crash",
        f"rule {rule.code} ({rule.name}) crashed with {type(error).__name__}: "
        f"{' '.join(str(error).split())[:200]}; report it, and --ignore {rule.code} meanwhile",
        source.filename,
        place,
        place,
        Severity.ERROR,
        Confidence.CERTAIN,
        internal=True,
    )
