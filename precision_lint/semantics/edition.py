"""A file from edit to edit: statements of the module whose text stays keep their trees.

With their trees stays what was found out about their functions from the text alone: nodes, parents,
names, calls.  Of what depends on other statements only interpretations are kept, and used where all
that they asked for is answered as before.
"""

from __future__ import annotations

import ast
from collections.abc import Collection
from dataclasses import dataclass, replace

from precision_lint.semantics.index import Function, Index, collect
from precision_lint.semantics.interp import Interpreter
from precision_lint.semantics.module import Module
from precision_lint.semantics.names import Names
from precision_lint.semantics.program import Program
from precision_lint.source import Failure, Source, parse

_BLOCKS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
"""Statements that share no row with others."""


@dataclass(frozen=True)
class _Text:
    """A text that was parsed, without carriage returns and form feeds."""

    source: Source
    body: list[ast.stmt]

    def row(self, place: int) -> int:
        """The row in which a statement of the module begins."""
        return _first_row(self.body[place])

    def starts(self, place: int) -> bool:
        """Whether a statement begins a row of its own, and none before it ends there."""
        row, previous = self.row(place), self.body[place - 1] if place else None
        if previous is not None and (previous.end_lineno or previous.lineno) >= row:
            return False
        at = self.source.lines[row - 1]
        decorated = getattr(self.body[place], "decorator_list", None)
        return not decorated or self.source.text[at : at + 1] == "@"


class Edition:
    """What the latest text of a file was made into; for one thread at a time."""

    def __init__(self) -> None:
        self._text: _Text | None = None
        self._top: Function | None = None
        self._nodes: frozenset[type[ast.AST]] = frozenset()
        self._parts: dict[ast.stmt, Index] = {}
        self._located: dict[ast.stmt, list[ast.AST]] = {}
        self._bound: dict[str, str] = {}
        self._stars: list[str] = []
        self._module: Module | None = None
        self._kept: dict[Function, Interpreter] = {}
        """Interpretations of functions whose text is the same."""

    def parse(self, source: Source) -> ast.Module | Failure:
        """The syntax tree of the next text, with the statements that the last one had already."""
        before, self._text = self._text, None
        if "\r" in source.text or "\f" in source.text or "\0" in source.text:
            return parse(source)
        body = self._spliced(before, source) if before is not None else None
        if body is None:
            tree = parse(source)
            if isinstance(tree, Failure):
                self._text = before  # as good as ever when the text parses again
                return tree
            body = tree.body
        self._text = _Text(source, body)
        return ast.Module(list(body), [])

    def index(self, tree: ast.Module, nodes: Collection[type[ast.AST]]) -> Index:
        """The index of the tree that was parsed last, as ``build`` makes it."""
        if self._top is None or self._nodes != frozenset(nodes):
            self._top, self._nodes, self._parts = Function(tree, None, None), frozenset(nodes), {}
        top = self._top
        vars(top).clear()  # what was found out about the last text
        top.node, top.cls, top.parent = tree, None, None
        parts: dict[ast.stmt, Index] = {}
        index = Index(tree, Names(), top, [], {}, {}, {}, {})
        for statement in reversed(tree.body):
            part = self._parts.get(statement)
            if part is None:
                part = Index(ast.Module([], []), Names(), top, [], {}, {}, {}, {})
                collect(statement, part, self._nodes)
            parts[statement] = part
            index.add(part)
        self._parts = parts
        index.resolve_aliases()
        bound, before = index.names.bound, self._bound
        renamed = {n for n in bound.keys() | before.keys() if bound.get(n) != before.get(n)}
        here = set(index.functions) if index.names.stars == self._stars else set()
        self._bound, self._stars = bound, index.names.stars
        for function in list(self._kept):
            if function not in here or not renamed.isdisjoint(function.names):
                del self._kept[function]
        return index

    def module(self, index: Index, path: str, program: Program | None) -> Module:
        """The module of the text that was parsed last: one object as long as the program is one."""
        module = self._module
        if module is None or module.path != path or module.program is not program:
            module = self._module = Module(index, path, program, self._kept)
        else:
            module.open(index)
        return module

    def _spliced(self, before: _Text, source: Source) -> list[ast.stmt] | None:
        """The statements of a text: those of the last text, but where the two differ."""
        old, new = before.source, source
        head = _alike(old.text, new.text)
        if head == len(old.text) == len(new.text):
            return before.body
        room = min(len(old.text), len(new.text)) - head
        tail = _alike(old.text[::-1], new.text[::-1], room)
        changed = new.text.count("\n", 0, head) + 1  # the first row that differs
        body = before.body
        first = last = 0
        for place in range(len(body)):
            if before.row(place) >= changed:
                break
            if before.starts(place):
                first = place
        for last in range(first, len(body) + 1):
            if last == len(body):
                break
            at = old.lines[before.row(last) - 1]
            if at > len(old.text) - tail and before.starts(last):
                break
        row = before.row(first) if first else 1
        start = old.lines[row - 1]
        end = len(old.text)
        if last < len(body):
            end = old.lines[before.row(last) - 1]
        text = new.text[start : end + len(new.text) - len(old.text)]
        tree = parse(replace(source, text="\n" * (row - 1) + text))
        if isinstance(tree, Failure):
            return None  # told of the whole text
        rows = len(new.lines) - len(old.lines)
        if rows:
            for statement in body[last:]:
                self._move(statement, rows)
        between = self._matched(before, first, last, tree.body, new)
        kept = [*body[:first], *between, *body[last:]]
        self._located = {s: self._located[s] for s in kept if s in self._located}
        return kept

    def _matched(
        self, before: _Text, first: int, last: int, body: list[ast.stmt], source: Source
    ) -> list[ast.stmt]:
        """Statements of a new text, some of which are among those in a part of the last text."""
        known: dict[str, list[ast.stmt]] = {}
        for statement in before.body[first:last]:
            if isinstance(statement, _BLOCKS):
                known.setdefault(_written(statement, before.source), []).append(statement)
        found: list[ast.stmt] = []
        for statement in body:
            same = known.get(_written(statement, source)) if known else None
            if same and isinstance(statement, _BLOCKS):
                self._move(same[0], statement.lineno - same[0].lineno)
                found.append(same.pop(0))
            else:
                found.append(statement)
        return found

    def _move(self, statement: ast.stmt, rows: int) -> None:
        """Move a statement down."""
        if statement not in self._located:
            found = [node for node in ast.walk(statement) if hasattr(node, "lineno")]
            self._located[statement] = found
        for node in self._located[statement]:
            node.lineno += rows  # type: ignore[attr-defined]
            node.end_lineno += rows  # type: ignore[attr-defined]


def _first_row(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(d.lineno for d in decorators)])


def _written(statement: ast.stmt, source: Source) -> str:
    """The rows of a statement."""
    end = statement.end_lineno or statement.lineno
    stop = source.lines[end] if end < len(source.lines) else len(source.text)
    return source.text[source.lines[_first_row(statement) - 1] : stop].rstrip("\n")


def _alike(one: str, other: str, most: int | None = None) -> int:
    """How many characters two texts begin with alike."""
    low, high = 0, min(len(one), len(other)) if most is None else most
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
