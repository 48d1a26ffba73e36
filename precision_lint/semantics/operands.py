"""Operands of a custom function's kernel, which has to be given tensors of one dtype."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context
    from precision_lint.semantics.index import Function

_NONE = re.compile(r"Optional|None")


@dataclass(frozen=True)
class Forgotten:
    """A tensor that ``forward`` gives to a kernel as it came, beside others that it casts.

    name: its parameter; optional: whether that may be None; last: the last of the casts of two or
    more others to the dtype of one tensor; dtype: that tensor; call: the kernel's.
    """

    name: str
    optional: bool
    last: ast.Assign
    dtype: str
    call: ast.Call

    @classmethod
    def of(cls, cast: ast.Call, at: Context) -> Forgotten | None:
        """What was forgotten, at the last of the casts."""
        function, home = at.function, at.function.cls
        names = [p.arg for p in function.parameters()]
        if home is None or function.name != "forward" or names[:1] != ["ctx"]:
            return None
        decorators = getattr(function.node, "decorator_list", [])
        if len(decorators) > 1 or not any(b.endswith("Function") for b in home.bases):
            return None  # ``custom_fwd`` may cast all of them
        casts = {
            found[0]: (node, found[1])
            for node in function.nodes
            if isinstance(node, ast.Assign) and (found := _aligned(node, names)) is not None
        }
        roots = {name: _root(name, casts) for name in casts}
        root = next((roots[name] for name, (node, _) in casts.items() if node.value is cast), None)
        group = [name for name in casts if roots[name] == root]
        last = max((casts[name][0] for name in group), key=lambda node: node.lineno, default=None)
        if root is None or last is None or last.value is not cast or len(group) < 2:
            return None
        given = _with_gradient(home.methods.get("backward"), names[1:])
        if not {root, *group} <= given:
            return None  # indices, say
        for call in function.nodes:
            if not isinstance(call, ast.Call) or call.lineno <= last.lineno or at.is_plain(call):
                continue
            passed = [a.id for a in call.args if isinstance(a, ast.Name)]
            if root not in passed or len({*group} & {*passed}) < 2:
                continue
            if at.text(call.func).startswith("ctx.") or (at.qualify(call.func) or "").startswith(
                "torch."
            ):
                continue
            for name in passed:
                if name in given and name not in casts and name != root:
                    if not function.assigned.get(name) and not at.mentions(rf"\b{name}\.dtype\b"):
                        return cls(name, name in _optional(function), last, root, call)
        return None


def _aligned(node: ast.Assign, names: list[str]) -> tuple[str, str] | None:
    """Names in ``a = a.type_as(b)`` or ``a = a.to(b.dtype)``, both parameters."""
    match node:
        case ast.Assign(
            targets=[ast.Name(id=name)],
            value=ast.Call(
                func=ast.Attribute(value=ast.Name(id=own), attr=("type_as" | "to") as cast),
                args=[
                    ast.Name(id=other) | ast.Attribute(value=ast.Name(id=other), attr="dtype") as to
                ],
                keywords=[],
            ),
        ) if name == own and {name, other} <= {*names}:
            return (name, other) if (cast == "type_as") == isinstance(to, ast.Name) else None
    return None


def _root(name: str, casts: dict[str, tuple[ast.Assign, str]]) -> str:
    """The tensor whose dtype a name gets, by way of others."""
    seen = {name}
    while name in casts and casts[name][1] not in seen:
        name = casts[name][1]
        seen.add(name)
    return name


def _with_gradient(backward: Function | None, names: list[str]) -> set[str]:
    """Parameters for which ``backward`` returns a gradient, so that they are tensors of floats."""
    if backward is None:
        return set()
    return {
        name
        for node in backward.nodes
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple)
        for name, gradient in zip(names, node.value.elts, strict=False)
        if not _is_none(gradient, backward)
    }


def _is_none(node: ast.expr, function: Function) -> bool:
    """Whether a gradient is None, or a name for nothing else."""
    if isinstance(node, ast.Name) and function.assigned.get(node.id):
        return all(_is_none(s, function) for s in function.assigned[node.id] if s is not node)
    return isinstance(node, ast.Constant) and node.value is None


def _optional(function: Function) -> set[str]:
    """Parameters that may be None, by their defaults or annotations."""
    return set(function.defaults()) | {
        p.arg for p in function.parameters()
        if p.annotation is not None and _NONE.search(ast.unparse(p.annotation))
    }  # fmt: skip
