"""A file's syntax tree by place: nodes, their parents and statements, names that are taken."""

from __future__ import annotations

import ast
import sys
from bisect import bisect_right
from collections.abc import Iterator

from precision_lint.events import Place
from precision_lint.syntax.program import FunctionNode

Span = tuple[int, int, int, int]
"""First row and column, last row and column."""


def span_of(node: ast.AST) -> Span | None:
    """Where a node stands; None for what has no place of its own."""
    row = getattr(node, "lineno", None)
    if row is None:
        return None
    end_row: int | None = getattr(node, "end_lineno", None)
    end_column: int | None = getattr(node, "end_col_offset", None)
    column: int = getattr(node, "col_offset", 0)
    return row, column, end_row or row, column if end_column is None else end_column


class Children:
    """The nodes right below one, found by place: those that have one lie side by side."""

    def __init__(self, node: ast.AST) -> None:
        self.nodes = list(ast.iter_child_nodes(node))
        placed: list[tuple[tuple[int, int], tuple[int, int], int]] = []
        self._anywhere: list[ast.AST] = []
        for number, child in enumerate(self.nodes):
            span = span_of(child)
            if span is None or isinstance(node, (ast.JoinedStr, ast.FormattedValue)):
                self._anywhere.append(child)  # parts of f-strings had wrong places before 3.12
                continue
            decorators = getattr(child, "decorator_list", ())
            start = min([span[:2], *((one.lineno, one.col_offset) for one in decorators)])
            placed.append((start, span[2:], number))
        self._placed = sorted(placed)

    def around(self, span: Span) -> list[ast.AST]:
        """Those that may hold what stands at a span."""
        number = bisect_right(self._placed, (span[:2], (sys.maxsize, 0), 0)) - 1
        if number < 0 or self._placed[number][1] < span[2:]:
            return self._anywhere
        return [*self._anywhere, self.nodes[self._placed[number][2]]]


class Tree:
    """Finds the nodes that events speak of."""

    def __init__(self, path: str, tree: ast.Module) -> None:
        self.path = path
        self.tree = tree
        self._nodes: dict[Span, ast.AST] = {}
        self._parents: dict[int, ast.AST] = {}
        self._children: dict[int, Children] = {}
        """Of the nodes that were looked into."""

    def node(self, place: Place) -> ast.AST | None:
        """The node at a place of this file."""
        if place.path != self.path:
            return None
        span = (place.row, place.column, place.end_row, place.end_column)
        if not isinstance(self._nodes.get(span), ast.expr):
            self._look_into(span)
        if span not in self._nodes:
            self._look_into(None)
        return self._nodes.get(span)

    def _look_into(self, span: Span | None) -> None:
        """Meet what is below the nodes around a span; None: below all nodes."""
        pending: list[ast.AST] = [self.tree]
        while pending:
            node = pending.pop()
            children = self._children.get(id(node))
            if children is None:
                children = self._children[id(node)] = Children(node)
                for child in children.nodes:
                    self._meet(child, node)
            pending += children.nodes if span is None else children.around(span)

    def _meet(self, node: ast.AST, parent: ast.AST) -> None:
        self._parents[id(node)] = parent
        span = span_of(node)
        if span is not None:
            known = self._nodes.get(span)
            if known is None or isinstance(known, ast.stmt):
                self._nodes[span] = node  # of a statement and its expression, the expression

    def expression(self, place: Place) -> ast.expr | None:
        """The expression at a place."""
        node = self.node(place)
        return node if isinstance(node, ast.expr) else None

    def place(self, node: ast.AST) -> Place:
        """Where a node stands."""
        span = span_of(node)
        assert span is not None
        return Place(self.path, *span)

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The node around one; None for the module."""
        for span in (span_of(node), None):
            if id(node) not in self._parents and node is not self.tree:
                self._look_into(span)
        return self._parents.get(id(node))

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around one, innermost first."""
        parent = self.parent(node)
        while parent is not None:
            yield parent
            parent = self.parent(parent)

    def statement(self, node: ast.AST) -> ast.stmt | None:
        """The innermost statement around a node, or itself."""
        if isinstance(node, ast.stmt):
            return node
        return next((one for one in self.around(node) if isinstance(one, ast.stmt)), None)

    def function(self, node: ast.AST) -> ast.AST:
        """The function around a node, or the module."""
        inside = (one for one in self.around(node) if isinstance(one, FunctionNode))
        return next(inside, self.tree)

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The statements among which one stands."""
        parent = self.parent(statement)
        for name in ("body", "orelse", "finalbody"):
            found = getattr(parent, name, None)
            if isinstance(found, list) and any(one is statement for one in found):
                return found
        return [statement]

    def after(self, statement: ast.stmt) -> list[ast.stmt]:
        """The statements that follow one in its block."""
        block = self.block(statement)
        index = next(i for i, one in enumerate(block) if one is statement)
        return block[index + 1 :]

    def names(self, node: ast.AST) -> frozenset[str]:
        """Names that the function around a node uses, and those of the file."""
        used = {one.id for one in ast.walk(self.function(node)) if isinstance(one, ast.Name)}
        used |= {one.arg for one in ast.walk(self.function(node)) if isinstance(one, ast.arg)}
        return frozenset(used)

    def spelling(self, dotted: str) -> str | None:
        """How this file's imports spell a module; None: it is not imported."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name == dotted:
                        return alias.asname or alias.name
            elif isinstance(node, ast.ImportFrom) and not node.level:
                for alias in node.names:
                    if f"{node.module}.{alias.name}" == dotted:
                        return alias.asname or alias.name
        top, _, rest = dotted.partition(".")
        if rest:
            outer = self.spelling(top)
            return f"{outer}.{rest}" if outer is not None else None
        return None
