"""A file's syntax tree by place: nodes, their parents and statements, names that are taken."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from precision_lint.events import Place
from precision_lint.syntax.program import FunctionNode


class Tree:
    """Finds the nodes that events speak of."""

    def __init__(self, path: str, tree: ast.Module) -> None:
        self.path = path
        self.tree = tree

    @cached_property
    def _index(self) -> tuple[dict[tuple[int, int, int, int], ast.AST], dict[int, ast.AST]]:
        nodes: dict[tuple[int, int, int, int], ast.AST] = {}
        parents: dict[int, ast.AST] = {}
        pending: list[ast.AST] = [self.tree]
        while pending:
            node = pending.pop()
            for child in ast.iter_child_nodes(node):
                parents[id(child)] = node
                pending.append(child)
            key = _key(node)
            if key is not None:
                known = nodes.get(key)
                if known is None or isinstance(known, ast.stmt):
                    nodes[key] = node  # of a statement and its expression, the expression
        return nodes, parents

    def node(self, place: Place) -> ast.AST | None:
        """The node at a place of this file."""
        if place.path != self.path:
            return None
        return self._index[0].get((place.row, place.column, place.end_row, place.end_column))

    def expression(self, place: Place) -> ast.expr | None:
        """The expression at a place."""
        node = self.node(place)
        return node if isinstance(node, ast.expr) else None

    def place(self, node: ast.AST) -> Place:
        """Where a node stands."""
        key = _key(node)
        assert key is not None
        return Place(self.path, *key)

    def parent(self, node: ast.AST) -> ast.AST | None:
        return self._index[1].get(id(node))

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


def _key(node: ast.AST) -> tuple[int, int, int, int] | None:
    row = getattr(node, "lineno", None)
    if row is None:
        return None
    end_row: int | None = getattr(node, "end_lineno", None)
    end_column: int | None = getattr(node, "end_col_offset", None)
    column: int = getattr(node, "col_offset", 0)
    return row, column, end_row or row, column if end_column is None else end_column
