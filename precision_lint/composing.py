"""What several fixes of one run come to together: one region for neighbours, no cast that is undone.

Only what a fix has just written is changed.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator, Sequence

from precision_lint.api import Edit
from precision_lint.source import Failure, Source, parse

__all__ = ["composed"]


def composed(before: Source, after: Source, written: Iterable[Edit]) -> Source:
    """The text after some edits, without what they make unnecessary for each other."""
    if not any("autocast" in edit.text or ".to(" in edit.text for edit in written):
        return after
    trees = parse(before), parse(after)
    if isinstance(trees[0], Failure) or isinstance(trees[1], Failure):
        return after
    old = {ast.dump(node) for node in ast.walk(trees[0]) if isinstance(node, ast.stmt)}
    edits = [*_regions(trees[1], after, old), *_casts(trees[1], after, old)]
    return after.edited(edits) if edits and not after.refuses(edits) else after


def _regions(tree: ast.Module, source: Source, old: set[str]) -> Iterator[Edit]:
    """Deletions of new ``with`` lines below a region that switches autocast off just so."""
    for block in _blocks(tree):
        for first, second in itertools.pairwise(block):
            if not isinstance(first, ast.With) or not isinstance(second, ast.With):
                continue
            header = _header(second)
            if header is None or header != _header(first) or ast.dump(second) in old:
                continue
            start, body = second.lineno, second.body[0]
            if start != (first.end_lineno or 0) + 1 or body.lineno != start + 1:
                continue
            if body.col_offset != first.body[0].col_offset or not _same_cell(source, first, second):
                continue
            line = Edit(source.lines[start - 1], source.lines[start], "")
            if "#" not in source.text[line.start : line.end]:
                yield line


def _blocks(tree: ast.Module) -> Iterator[Sequence[ast.stmt]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield block


def _header(node: ast.With) -> str | None:
    """The region that a statement opens, if it is one that switches autocast off."""
    call = node.items[0].context_expr
    if len(node.items) > 1 or node.items[0].optional_vars or not isinstance(call, ast.Call):
        return None
    off = any(
        k.arg == "enabled" and isinstance(k.value, ast.Constant) and k.value.value is False
        for k in call.keywords
    )
    named = isinstance(call.func, ast.Attribute) and call.func.attr == "autocast"
    return ast.dump(call) if off and named else None


def _same_cell(source: Source, first: ast.stmt, second: ast.stmt) -> bool:
    places = (source.position(source.lines[node.lineno - 1]) for node in (first, second))
    return len({source.in_cell(place)[0] for place in places}) == 1


def _casts(tree: ast.Module, source: Source, old: set[str]) -> Iterator[Edit]:
    """Deletions of new casts back to half of what every use brings up again."""
    for function in ast.walk(tree):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        uses: dict[str, list[ast.Name]] = {}
        upcast: set[ast.AST] = set()
        for node in ast.walk(function):
            if isinstance(node, ast.Name):
                uses.setdefault(node.id, []).append(node)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr == "float" and not node.args:
                    upcast.add(node.func.value)
            elif isinstance(node, ast.Attribute) and node.attr in ("device", "shape"):
                upcast.add(node.value)  # the same of any dtype
        for statement in ast.walk(function):
            if not isinstance(statement, ast.Assign) or ast.dump(statement) in old:
                continue
            target, cast = statement.targets[0], statement.value
            if not isinstance(target, ast.Name) or not _narrows(cast):
                continue
            others = [use for use in uses[target.id] if use is not target]
            if others and all(use in upcast for use in others):
                yield _without(source, cast)


def _narrows(node: ast.expr) -> bool:
    """Whether an expression ends in ``.to(x.dtype)``."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "to"
        and len(node.args) == 1
        and not node.keywords
        and isinstance(node.args[0], ast.Attribute)
        and node.args[0].attr == "dtype"
    )


def _without(source: Source, cast: ast.expr) -> Edit:
    """The deletion of the method call that an expression ends in."""
    assert isinstance(cast, ast.Call)
    inner = cast.func.value if isinstance(cast.func, ast.Attribute) else cast
    start = source.offset(inner.end_lineno or 0, inner.end_col_offset or 0)
    end = source.offset(cast.end_lineno or 0, cast.end_col_offset or 0)
    return Edit(source.text.index(".to", start), end, "")
