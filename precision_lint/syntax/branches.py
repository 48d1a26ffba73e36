"""Where a statement may go so that it runs exactly when another one does."""

from __future__ import annotations

import ast
from typing import Final

from precision_lint.syntax.tree import Tree

LEAVING: Final = frozenset({ast.Return, ast.Raise, ast.Continue, ast.Break})
LOOPS = (ast.For, ast.AsyncFor, ast.While)
ARMS = (ast.match_case, ast.ExceptHandler)


def shared_block(tree: Tree, first: ast.stmt, second: ast.stmt) -> tuple[ast.stmt, ast.stmt] | None:
    """The two statements of one block that hold two others: the innermost such block."""
    around = [first, *(n for n in tree.around(first) if isinstance(n, ast.stmt))]
    inner: ast.AST | None = second
    while isinstance(inner, ast.stmt):
        block = tree.block(inner)
        for outer in around:
            if outer in block:
                return outer, inner
        inner = tree.parent(inner)
        if isinstance(inner, ARMS):
            inner = tree.parent(inner)
    return None


def exclude_each_other(tree: Tree, first: ast.stmt, second: ast.stmt) -> bool:
    """Whether two statements are in two branches of a test, or the branch of one leaves in front of
    the other."""
    shared = shared_block(tree, first, second)
    if shared is None:
        return False
    if shared[0] is shared[1]:
        return isinstance(shared[0], (ast.If, ast.Match))
    block = tree.block(shared[0])
    late = block.index(shared[0]) > block.index(shared[1])
    return _leaves(tree, second if late else first, block)


def _leaves(tree: Tree, statement: ast.stmt, block: list[ast.stmt]) -> bool:
    """Whether what is around a statement leaves before what follows it in a block further out."""
    kinds: set[type] = set()
    node: ast.AST | None = statement
    while node not in block:
        if isinstance(node, ast.stmt):
            kinds |= {type(tree.block(node)[-1])} & LEAVING
        node = tree.parent(node) if node is not None else None
        if isinstance(node, LOOPS):
            kinds -= {ast.Break, ast.Continue}
        elif isinstance(node, (ast.With, ast.AsyncWith, ast.Try)):
            kinds.discard(ast.Raise)
        elif not isinstance(node, (ast.If, ast.Match, *ARMS)):
            return False
    return bool(kinds)


def meets_both(tree: Tree, first: ast.stmt, second: ast.stmt) -> bool:
    """Whether who comes to the second of two statements comes to the first as well: it is in a block
    around that, and nothing leaves on the way to it."""
    shared = shared_block(tree, first, second)
    if shared is None or shared[0] is not first:
        return False
    block = tree.block(first)
    between = block[block.index(shared[1]) : block.index(first)]
    return not any(type(node) in LEAVING for one in between for node in ast.walk(one))


def always_meets(after: list[ast.stmt], wanted: list[ast.stmt]) -> bool:
    """Whether each way through a block comes to one of some statements."""
    for one in after:
        if one in wanted or (isinstance(one, ast.With) and always_meets(one.body, wanted)):
            return True
        if isinstance(one, ast.If) and always_meets(one.body, wanted):
            if always_meets(one.orelse, wanted):
                return True
        if any(type(node) in LEAVING for node in ast.walk(one)):
            return False
    return False


def conditions(tree: Tree, statement: ast.stmt, outer: ast.stmt) -> list[ast.If] | None:
    """The ``if`` statements from ``outer`` down to a statement; None: it is below something else."""
    found: list[ast.If] = []
    node: ast.AST | None = statement
    while node is not outer:
        parent = tree.parent(node) if node is not None else None
        if not isinstance(parent, ast.If) or node not in parent.body:
            return None
        found.insert(0, parent)
        node = parent
    return found


def is_plain(test: ast.expr) -> bool:
    """Whether a condition is a setting, which is the same wherever it is asked."""
    while isinstance(test, ast.Attribute):
        test = test.value
    return isinstance(test, ast.Name)


def guarded(tests: list[ast.expr], lines: tuple[str, ...], indent: str) -> list[str]:
    """Lines that run only where settings hold."""
    if not tests:
        return list(lines)
    header = f"if {' and '.join(map(ast.unparse, tests))}:"
    return [header, *(f"{indent}{line}" for line in lines)]


def read(lines: str) -> set[str]:
    """The names that lines of code read."""
    return {one.id for one in ast.walk(ast.parse(lines)) if isinstance(one, ast.Name)}


def bound(statements: list[ast.stmt]) -> set[str]:
    """The names that statements assign."""
    nodes = (node for statement in statements for node in ast.walk(statement))
    return {n.id for n in nodes if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}


def skips(statements: list[ast.stmt]) -> list[ast.stmt]:
    """Where an iteration ends under a condition that does not count iterations: its last statements."""
    found: list[ast.stmt] = []
    for one in statements:
        if isinstance(one, ast.If) and not one.orelse and isinstance(one.body[-1], ast.Continue):
            if not any(isinstance(node, ast.Mod) for node in ast.walk(one.test)):
                found.append(one.body[-1])
    return found


def leaving(statements: list[ast.stmt]) -> ast.stmt | None:
    """The last statement of some that ends the iteration under a condition."""
    found = None
    for statement in statements:
        if isinstance(statement, ast.If) and not statement.orelse:
            if isinstance(statement.body[-1], (ast.Continue, ast.Return)):
                found = statement
    return found
