"""Assertions about dtypes in the function that a fix changes: it may make them fail.

Names that a changed statement assigns are followed through assignments, up to a cast.  An assertion
behind it that compares what is left of them with a dtype is one that may fail.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property

from precision_lint.api import Edit
from precision_lint.slices import Editor
from precision_lint.syntax.program import FunctionNode
from precision_lint.syntax.tree import Tree

CASTS = frozenset({"half", "float", "double", "bfloat16"})
DTYPES = frozenset({"dtype", "float64", "float32", "float16", *CASTS})
"""Attributes that stand for a dtype."""
OTHER = frozenset({"shape", "size", "device", "ndim", "dim", "numel", "requires_grad"})
"""Attributes of a tensor that do not follow its dtype."""

CLOSE = frozenset({"torch.testing.assert_close", "testing.assert_close", "assert_close"})
"""Names of the function that compares dtypes unasked."""


class Assertions:
    """The assertions about dtypes in one file."""

    def __init__(self, tree: Tree, editor: Editor) -> None:
        self._tree = tree
        self._editor = editor

    @cached_property
    def _by_function(self) -> list[tuple[ast.AST, list[ast.stmt]]]:
        """Each function that has any, or the module, with its assertions."""
        if not any(word in self._editor.source.text for word in (".dtype", "assert_close")):
            return []
        found: dict[int, tuple[ast.AST, list[ast.stmt]]] = {}
        for node in ast.walk(self._tree.tree):
            if isinstance(node, ast.stmt) and _asserted(node):
                scope = self._tree.function(node)
                found.setdefault(id(scope), (scope, []))[1].append(node)
        return list(found.values())

    def behind(self, edits: Iterable[Edit]) -> ast.stmt | None:
        """An assertion about the dtype of something that edits change; None: there is none."""
        lines = {edit for edit in edits if edit.start == edit.end and edit.text.endswith("\n")}
        inside = [edit for edit in edits if edit not in lines]
        for scope, assertions in self._by_function:
            if not any(self._meets(scope, edit) for edit in inside):
                continue
            changed = [one for one in _statements(scope) if self._changes(one, inside)]
            names = _following(scope, {name for one in changed for name in _bound(one)})
            first = min((one.lineno for one in changed), default=0)
            for one in assertions:
                read = any(_reads(part, names) for part in _asserted(one))
                if one in changed or (read and one.lineno > first):
                    return one
        return None

    def _meets(self, node: ast.AST, edit: Edit) -> bool:
        """Whether an edit touches a node."""
        if not isinstance(node, ast.stmt):
            return True  # the module
        return edit.end > self._editor.offset(node) and edit.start <= self._editor.end(node)

    def _changes(self, statement: ast.stmt, edits: Iterable[Edit]) -> bool:
        """Whether edits may change the dtype of what a statement assigns."""
        touching = [edit for edit in edits if self._meets(statement, edit)]
        body: list[ast.stmt] = getattr(statement, "body", [])
        if body:
            return any(edit.end <= self._editor.offset(body[0]) for edit in touching)
        value: ast.expr | None = getattr(statement, "value", None)
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and _casts(value):
            last = self._editor.end(value.func.value)
            touching = [edit for edit in touching if edit.end > last]
        back = value is not None and any(
            edit.start >= self._editor.end(value) and edit.text.endswith(".dtype)")
            for edit in touching
        )
        return bool(touching) and not back


def _asserted(node: ast.stmt) -> list[ast.expr]:
    """The parts of a statement that it compares with dtypes, and raises an error if they differ."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        name, keywords = _dotted(node.value.func), node.value.keywords
        if name in CLOSE and not any(keyword.arg == "check_dtype" for keyword in keywords):
            return node.value.args[:2]
        given = [*node.value.args, *(keyword.value for keyword in keywords)]
        own = name.rpartition(".")[2].lstrip("_").startswith(("assert", "check"))
        return given if own and any(map(_names_dtype, given)) else []
    if isinstance(node, ast.Assert) or (isinstance(node, ast.If) and _raises(node)):
        compared = (one for one in ast.walk(node.test) if isinstance(one, ast.Compare))
        return [one for one in compared if _names_dtype(one)]
    return []


def _raises(node: ast.If) -> bool:
    return isinstance(node.body[-1], ast.Raise)


def _names_dtype(node: ast.expr) -> bool:
    return any(isinstance(one, ast.Attribute) and one.attr in DTYPES for one in ast.walk(node))


def _casts(node: ast.expr | None, names: Collection[str] = ()) -> bool:
    """Whether an expression ends in a cast to a dtype that does not follow those of names."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    given = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "dtype")]
    named = [one for one in given if isinstance(one, ast.Attribute) and one.attr in DTYPES]
    return node.func.attr in CASTS or any(not _reads(one, names) for one in named)


def _statements(scope: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a function, without those of functions inside of it."""
    pending = list(ast.iter_child_nodes(scope))
    while pending:
        node = pending.pop()
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, (FunctionNode, ast.ClassDef, ast.expr)):
            pending += ast.iter_child_nodes(node)


def _bound(statement: ast.stmt) -> Iterator[str]:
    """What a statement assigns, as it is written; of a ``with``, what is assigned inside of it."""
    if isinstance(statement, (ast.With, ast.AsyncWith)):
        for inner in _statements(statement):
            yield from _bound(inner)
    targets = [*getattr(statement, "targets", ()), getattr(statement, "target", None)]
    while targets:
        target = targets.pop()
        if isinstance(target, (ast.Tuple, ast.List)):
            targets += target.elts
        elif name := _dotted(target):
            yield name


def _following(scope: ast.AST, names: set[str]) -> set[str]:
    """Names, and those that are assigned what follows from them."""
    before = -1
    while names and len(names) > before:
        before = len(names)
        for one in _statements(scope):
            value = getattr(one, "value", None)
            if isinstance(one, (ast.Assign, ast.AnnAssign)) and not _casts(value, names):
                names |= set(_bound(one)) if value is not None and _reads(value, names) else set()
    return names


def _reads(node: ast.AST, names: Collection[str]) -> bool:
    """Whether the dtype of an expression may follow that of one of some names."""
    if isinstance(node, ast.Attribute) and node.attr in OTHER:
        return False
    return _dotted(node) in names or any(
        _reads(child, names) for child in ast.iter_child_nodes(node)
    )


def _dotted(node: ast.AST | None) -> str:
    """A name, or an attribute of one, as it is written; empty for anything else."""
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return node.id if isinstance(node, ast.Name) else ""
