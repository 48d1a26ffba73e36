"""Edits through LibCST, on the lines of one statement at a time.

A slice is the source lines of one statement, at any depth; ``changes`` says what becomes of it.
Everything outside of its lines cannot change.

Every method returns the edits, or None where the shape of the code does not allow a clean one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from precision_lint import changes
from precision_lint.api import Edit
from precision_lint.changes import Change, Place

if TYPE_CHECKING:
    from precision_lint.source import Source

Edits = tuple[Edit, ...]
SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr)
BLOCKS = ("body", "orelse", "finalbody", "handlers")


class Slice:
    """One statement's lines, of which expressions are to be changed."""

    def __init__(self, source: Source, statement: ast.stmt) -> None:
        decorators = getattr(statement, "decorator_list", [])
        first = min([statement.lineno, *(d.lineno for d in decorators)])
        lines = source.lines
        last = statement.end_lineno or statement.lineno
        self.source = source
        self.start = lines[first - 1]
        self.text = source.text[self.start : lines[last] if last < len(lines) else None]
        self._above = first - (2 if changes.indented(self.text) else 1)

    def place(self, node: ast.expr) -> Place:
        """The place of an ``ast`` expression of this statement."""
        start = self.source.position(self.source.offset(node.lineno, node.col_offset))
        end = self.source.position(
            self.source.offset(node.end_lineno or 0, node.end_col_offset or 0)
        )
        above = self._above
        return start.row - above, start.column - 1, end.row - above, end.column - 1

    def edits(self, make: Callable[[], Edit | None]) -> Edits | None:
        """An edit of the slice as one of the file; None: it cannot be made."""
        try:
            made = make()
        except RecursionError:
            return None
        if made is None:
            return None
        return (Edit(self.start + made.start, self.start + made.end, made.text),)


def indent_unit(text: str) -> str:
    """What one level of indentation is in a file: a tab or a number of spaces."""
    match = re.search(r"^[^\n#]*:[ \t]*(?:#[^\n]*)?\r?\n([ \t]+)\S", text, re.MULTILINE)
    if match is None:
        return "    "
    return "\t" if match.group(1)[0] == "\t" else " " * min(len(match.group(1)), 4)


class Editor:
    """Makes the edits of fixes in one file."""

    def __init__(self, source: Source, tree: ast.Module) -> None:
        self.source = source
        self.tree = tree
        self.unit = indent_unit(source.text)
        """One level of this file's indentation."""

    # expressions

    def _replace(self, statement: ast.stmt, wanted: Mapping[ast.expr, Change]) -> Edits | None:
        piece = Slice(self.source, statement)
        placed = tuple((piece.place(node), change) for node, change in wanted.items())
        return piece.edits(lambda: changes.edit(piece.text, placed))

    def append(self, statement: ast.stmt, suffixes: Mapping[ast.expr, str]) -> Edits | None:
        """Put a method call such as ``.float()`` behind expressions of one statement."""
        return self._replace(statement, {n: changes.Suffix(text) for n, text in suffixes.items()})

    def upcast(
        self,
        statement: ast.stmt,
        text: str,
        whole: Sequence[ast.expr],
        casts: Sequence[ast.expr],
        others: Mapping[ast.expr, str] | None = None,
    ) -> Edits | None:
        """Put a method call behind expressions, and in the place of those that some end in.

        others: expressions that get another one.
        """
        wanted: dict[ast.expr, Change] = {node: changes.Suffix(text) for node in whole}
        wanted |= dict.fromkeys(casts, changes.method(text))
        wanted |= {node: changes.Suffix(other) for node, other in (others or {}).items()}
        return self._replace(statement, wanted)

    def rewrite(self, statement: ast.stmt, texts: Mapping[ast.expr, str]) -> Edits | None:
        """Replace expressions of one statement; ``_`` in a text is the expression it replaces."""
        return self._replace(statement, {n: changes.template(text) for n, text in texts.items()})

    def move(
        self, statement: ast.stmt, call: ast.Call, places: Sequence[ast.expr], text: str
    ) -> Edits | None:
        """Take a method call off its receiver and put it behind expressions inside of that."""
        wanted: dict[ast.expr, Change] = {place: changes.Suffix(text) for place in places}
        wanted[call] = changes.method("")
        return self._replace(statement, wanted)

    def replace(self, statement: ast.stmt, texts: Mapping[ast.expr, str]) -> Edits | None:
        """Put other expressions in the place of expressions of one statement."""
        return self._replace(statement, {n: changes.other(text) for n, text in texts.items()})

    def exchange(self, statement: ast.stmt, suffixes: Mapping[ast.expr, str]) -> Edits | None:
        """Put another method call, or none, in the place of those that some expressions end in."""
        return self._replace(statement, {n: changes.method(text) for n, text in suffixes.items()})

    def add_keyword(
        self, statement: ast.stmt, call: ast.Call, name: str, value: str
    ) -> Edits | None:
        """Add ``name=value`` as the last argument of a call."""
        return self._replace(statement, {call: changes.keyword(name, value)})

    def put(self, node: ast.expr, text: str) -> Edits | None:
        """Other source in the place of an expression; one with comments inside stays."""
        start, end = self.offset(node), self.end(node)
        if "#" in self.source.text[start:end]:
            return None
        return (Edit(start, end, text),)

    def add_entry(
        self, statement: ast.stmt, entries: ast.Dict, key: str, value: str
    ) -> Edits | None:
        """Add ``"key": value`` as the last entry of a dict; None where a comment ends it."""
        inside = self.source.text[self.offset(entries) : self.end(entries)]
        if "#" in inside or not entries.keys:
            return None
        return self._replace(statement, {entries: changes.entry(key, value)})

    # statements

    def without_autocast(
        self,
        statement: ast.stmt,
        call: ast.expr,
        operands: Sequence[ast.expr],
        header: str,
        name: str | None,
        casts: Sequence[ast.expr] = (),
    ) -> Edits | None:
        """Run one call with its operands in float32 under ``header`` (a ``with`` line).

        casts: those of the operands that end in a cast to half, which gives way.

        The whole statement goes under it if ``name`` is None; otherwise the call moves to a
        statement of its own, bound to ``name``, in front.
        """
        if not isinstance(statement, SIMPLE) or not self._alone(statement):
            return None
        if name is not None and not _unconditional(statement, call):
            return None
        piece = Slice(self.source, statement)
        upcast = tuple((piece.place(node), node in casts) for node in operands)
        place, text, unit = piece.place(call), piece.text, self.unit
        return piece.edits(
            lambda: changes.under_autocast_off(text, place, upcast, header, name, unit)
        )

    def _alone(self, statement: ast.stmt) -> bool:
        """Whether a statement has its lines for itself."""
        before = self.source.text[self.source.lines[statement.lineno - 1] : self.offset(statement)]
        rest = self.source.text[self.end(statement) :].split("\n", 1)[0].strip()
        return not before.strip() and (not rest or rest.startswith("#"))

    def offset(self, node: ast.stmt | ast.expr) -> int:
        return self.source.offset(node.lineno, node.col_offset)

    def end(self, node: ast.stmt | ast.expr) -> int:
        return self.source.offset(node.end_lineno or 0, node.end_col_offset or 0)

    def indentation(self, statement: ast.stmt) -> str:
        return self.source.text[self.source.lines[statement.lineno - 1] : self.offset(statement)]

    def outdent(self, moved: Sequence[ast.stmt], indent: str) -> Edits | None:
        """Bring consecutive statements to an indentation."""
        inner = self.indentation(moved[0])
        if indent.strip() or inner.strip() or not inner.startswith(indent):
            return None
        extra, lines, text = len(inner) - len(indent), self.source.lines, self.source.text
        edits = []
        for row in range(moved[0].lineno, (moved[-1].end_lineno or 0) + 1):
            start = lines[row - 1] + len(indent)
            if text[start : start + extra] == inner[len(indent) :]:
                edits.append(Edit(start, start + extra, ""))
            elif text[lines[row - 1] :].split("\n", 1)[0].strip():
                return None
        return tuple(edits)

    def insert_before(self, statement: ast.stmt, *lines: str) -> Edits | None:
        """New lines in front of a statement, at its indentation."""
        indent = self.indentation(statement)
        if indent.strip():
            return None
        decorators = getattr(statement, "decorator_list", [])
        first = min([statement.lineno, *(d.lineno for d in decorators)])
        place = self.source.lines[first - 1]
        return (Edit(place, place, "".join(f"{indent}{line}\n" for line in lines)),)

    def insert_after(self, statement: ast.stmt, *lines: str) -> Edits | None:
        """New lines behind a statement, at its indentation."""
        indent = self.indentation(statement)
        if indent.strip() or not self._alone(statement):
            return None
        row = statement.end_lineno or statement.lineno
        if row < len(self.source.lines):
            place = self.source.lines[row]
            return (Edit(place, place, "".join(f"{indent}{line}\n" for line in lines)),)
        place = len(self.source.text)
        return (Edit(place, place, "".join(f"\n{indent}{line}" for line in lines)),)

    def remove(self, statement: ast.stmt, siblings: Sequence[ast.stmt]) -> Edits | None:
        """Delete a statement; its comment stays, and an emptied block gets ``pass``."""
        if not self._alone(statement):
            return None
        start, end = self.offset(statement), self.end(statement)
        if len(siblings) == 1:
            return (Edit(start, end, "pass"),)
        row = statement.end_lineno or statement.lineno
        line_end = self.source.lines[row] if row < len(self.source.lines) else None
        rest = self.source.text[end:line_end]
        if rest.strip():  # a comment: keep it, on a line of its own
            return (Edit(start, end + len(rest) - len(rest.lstrip()), ""),)
        first = self.source.lines[statement.lineno - 1]
        if line_end is None:
            return (Edit(max(first - 1, 0), end, ""),)
        return (Edit(first, line_end, ""),)

    def import_line(self, line: str) -> Edits:
        """Add an import in front of the first one of the module (``__future__`` stays first)."""
        for statement in self.tree.body:
            future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
            if isinstance(statement, (ast.Import, ast.ImportFrom)) and not future:
                return self.insert_before(statement, line) or ()
        return ()


def _unconditional(statement: ast.stmt, call: ast.expr) -> bool:
    """Whether a call may run first: exactly once, and nothing it depends on is bound here."""
    if any(isinstance(n, (ast.NamedExpr, ast.Await, ast.Yield)) for n in ast.walk(statement)):
        return False
    path: list[ast.AST] = []

    def find(node: ast.AST) -> bool:
        if node is call:
            return True
        for child in ast.iter_child_nodes(node):
            if find(child):
                path.append(node)
                return True
        return False

    find(statement)
    lazy = (ast.Lambda, ast.IfExp, ast.BoolOp, ast.ListComp, ast.SetComp, ast.DictComp,
            ast.GeneratorExp, ast.NamedExpr, ast.Await, ast.Yield)  # fmt: skip
    return not any(isinstance(node, lazy) for node in path)
