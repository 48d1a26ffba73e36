"""Operands of a custom function's kernel, which has to be given tensors of one dtype."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context
    from precision_lint.semantics.index import Function


@dataclass(frozen=True)
class Forgotten:
    """A tensor that ``forward`` gives to a kernel as it came, beside others that it casts.

    name: its parameter; last: the last of the casts of two or more others to the dtype of one
    tensor; dtype: that tensor; call: the kernel's.
    """

    name: str
    last: ast.Assign
    dtype: str
    call: ast.Call

    @classmethod
    def of(cls, cast: ast.Call, at: Context) -> Forgotten | None:
        """What was forgotten, at the last of the casts."""
        function = at.function
        names = [p.arg for p in function.parameters()]
        if function.cls is None or function.name != "forward" or names[:1] != ["ctx"]:
            return None
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
        given = _with_gradient(function.cls.methods.get("backward"), names[1:])
        for call in function.nodes:
            if not isinstance(call, ast.Call) or call.lineno <= last.lineno:
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
                    if not function.assigned.get(name):
                        return cls(name, last, root, call)
        return None


def _aligned(node: ast.Assign, names: list[str]) -> tuple[str, str] | None:
    """Names in ``a = a.type_as(b)`` or ``a = a.to(b.dtype)``, both parameters."""
    match node:
        case ast.Assign(
            targets=[ast.Name(id=name)],
            value=ast.Call(
                func=ast.Attribute(value=ast.Name(id=own), attr="type_as" | "to"),
                args=[ast.Name(id=other) | ast.Attribute(value=ast.Name(id=other), attr="dtype")],
                keywords=[],
            ),
        ) if name == own and {name, other} <= {*names}:
            return name, other
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
    return {
        name
        for node in (backward.nodes if backward is not None else ())
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple)
        for name, gradient in zip(names, node.value.elts, strict=False)
        if not (isinstance(gradient, ast.Constant) and gradient.value is None)
    }
