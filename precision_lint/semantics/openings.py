"""Where functions open autocast regions, for themselves or for who enters what they return."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from precision_lint.semantics.regions import INHERITED, Region

if TYPE_CHECKING:
    from precision_lint.semantics.index import Index
    from precision_lint.semantics.module import Module


def rows(index: Index, module: Module) -> dict[int, int]:
    """By function: the row of the first ``with`` that switches autocast on."""
    found: dict[int, int] = {}
    for node, function in index.candidates.get(ast.With, []):
        assert isinstance(node, ast.With)
        for item in node.items:
            region = module.opened(item.context_expr, function, INHERITED)
            if region is not None and region.on:
                found[id(function)] = min(found.get(id(function), node.lineno), node.lineno)
    return found


def given(index: Index, module: Module) -> dict[int, Region]:
    """By function: the region that it returns, or yields in."""
    found: dict[int, Region] = {}
    if "autocast" not in index.calls:
        return found
    for node, function in index.candidates.get(ast.Return, []):
        if isinstance(node, ast.Return) and isinstance(node.value, (ast.Call, ast.IfExp)):
            region = module.opened(node.value, function, INHERITED)
            if region is not None:
                found.setdefault(id(function), region)
    for kind in (ast.With, ast.AsyncWith):
        for node, function in index.candidates.get(kind, []):
            assert isinstance(node, (ast.With, ast.AsyncWith))
            if any(isinstance(part, ast.Yield) for part in ast.walk(node)):
                for item in node.items:
                    region = module.opened(item.context_expr, function, INHERITED)
                    if region is not None:
                        found.setdefault(id(function), region)
    return found
