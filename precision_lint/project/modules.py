"""Casts in a file that are of modules, by how what is cast is used."""

from __future__ import annotations

import ast
import re

from precision_lint.project.literals import dotted

_OF_MODULES = frozenset({
    "eval", "train", "parameters", "named_parameters", "load_state_dict", "state_dict", "modules",
    "named_modules", "children", "named_children", "register_forward_hook",
})  # fmt: skip
"""Methods that tensors do not have."""
_CASTS = frozenset({"half", "bfloat16", "to", "type"})
_MOVES = frozenset({"cuda", "cpu", "eval", "train", "requires_grad_", *_CASTS})
_Place = tuple[int, str]
"""A scope, and the name in it; attributes belong to the whole file."""


def moved(node: ast.expr) -> ast.expr:
    """The module under ``.cuda()``, ``.to(device)``, ``.eval()``."""
    while (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _MOVES
    ):
        node = node.func.value
    return node


def makes(node: ast.expr) -> bool:
    """``Encoder(...)``: an instance of a class, so a module."""
    return (
        isinstance(node, ast.Call)
        and re.match(r"_?[A-Z](?!\w*Tensor$)\w*[a-z]", dotted(node.func)[-1]) is not None
        and dotted(node.func)[-1] != "Tensor"
    )


def casts(tree: ast.Module) -> frozenset[int]:
    """The casts, by their nodes' ids, of what is used as no tensor is: it is called, has a module's
    methods, is an object of a class, or is cast by a statement of its own."""
    found: set[int] = set()
    cast: list[tuple[ast.Call, list[_Place]]] = []
    used: set[_Place] = set()
    stack: list[tuple[ast.AST, int]] = [(tree, 0)]
    while stack:
        node, scope = stack.pop()
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            found.update(_chain(node.value))
        elif isinstance(node, ast.Assign):
            places = [_place(target, scope) for target in node.targets]
            for call in _links(node.value):
                if _is_cast(call):
                    cast.append((call, places))
            if makes(moved(node.value)):
                used.update(places)
        elif isinstance(node, ast.Call):
            if _is_cast(node) and isinstance(node.func, ast.Attribute):
                cast.append((node, [_place(moved(node.func.value), scope)]))
            if not isinstance(node.func, ast.Attribute):
                used.add(_place(node.func, scope))
            elif node.func.attr in _OF_MODULES:
                used.add(_place(moved(node.func.value), scope))
                found.update(_chain(node.func.value))
            elif isinstance(node.func.value, ast.Name) and node.func.value.id == "self":
                used.add(_place(node.func, scope))
        inner = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        below = id(node) if inner else scope
        stack.extend((child, below) for child in ast.iter_child_nodes(node))
    used = {place for place in used if place[1]}
    return frozenset(found | {id(call) for call, places in cast if not used.isdisjoint(places)})


def _is_cast(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _CASTS
    )


def _links(node: ast.expr) -> list[ast.Call]:
    """The calls of a chain such as ``x.half().cuda()``, without what it starts with."""
    found = []
    while (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _MOVES
    ):
        found.append(node)
        node = node.func.value
    return found


def _chain(node: ast.expr) -> set[int]:
    return {id(call) for call in _links(node) if _is_cast(call)}


def _place(node: ast.AST, scope: int) -> _Place:
    parts = dotted(node)
    if "" in parts[:1]:
        return 0, ""
    return (0, ".".join(parts)) if len(parts) > 1 else (scope, parts[0])
