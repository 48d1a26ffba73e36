"""Where a tensor of a wider dtype meets another one elementwise, and so widens it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precision_lint.semantics.apart import Apart

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context

FOLLOWED = frozenset({
    "to", "cuda", "cpu", "view", "reshape", "unsqueeze", "expand", "expand_as", "repeat",
    "contiguous", "clone", "squeeze", "flatten", "transpose", "permute", "t", "detach", "T",
    "uniform_", "normal_", "fill_", "zero_",
})  # fmt: skip
COUNTED = frozenset({"sum", "clamp", "clamp_", "mean", "sin", "cos", "exp"})
JOINS = frozenset({
    "cat", "stack", "where", "add", "sub", "mul", "div", "multiply", "subtract", "divide",
})  # fmt: skip
POWERS = (ast.Pow, ast.FloorDiv)
ELEMENTWISE = (ast.Add, ast.Sub, ast.Mult, ast.Div)
CASTS = ("float", "to", "type_as", "half", "bfloat16")
_LIMIT = 40


@dataclass(frozen=True, eq=False)
class Meeting:
    """The operation ``use`` in the function of ``at``, whose operand ``other`` is widened."""

    use: ast.expr
    other: ast.expr
    at: Context

    @classmethod
    def of(
        cls,
        node: ast.expr,
        at: Context,
        widened: Callable[[ast.expr, Context], bool],
        *,
        counted: bool = False,
    ) -> Meeting | None:
        """The first operation in which a tensor meets one that ``widened`` accepts, uncast.

        ``counted``: what is summed up and bounded on the way, or computed with numbers, counts.
        """
        return _meeting(node, at, widened, set(), counted)

    @classmethod
    def of_attribute(
        cls, name: str, at: Context, widened: Callable[[ast.expr, Context], bool]
    ) -> Meeting | None:
        """The same for an attribute of ``self``, in the methods of the class."""
        owner = at.function.cls
        for method in owner.methods.values() if owner is not None else ():
            there = at.inside(method)
            for node in method.nodes:
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    if node.attr == name and there.text(node.value) == "self":
                        found = _meeting(node, there, widened, set())
                        if found is not None:
                            return found
        return None


def _meeting(
    node: ast.expr,
    at: Context,
    widened: Callable[[ast.expr, Context], bool],
    seen: set[int],
    counted: bool = False,
) -> Meeting | None:
    if id(node) in seen or len(seen) > _LIMIT:
        return None
    seen.add(id(node))
    inner: ast.AST = node
    for parent in at.ancestors(node):
        match parent:
            case ast.BinOp(left=left, right=right, op=op):
                if not isinstance(op, (*ELEMENTWISE, *POWERS) if counted else ELEMENTWISE):
                    return None
                other = right if left is inner else left
                if widened(other, at):
                    return None if _cast(parent, at) else Meeting(parent, other, at)
            case ast.Attribute(attr=attr):
                if attr not in FOLLOWED | JOINS and not (counted and attr in COUNTED):
                    return None
            case ast.Subscript(value=value) if value is inner:
                pass
            case ast.Call(func=func):
                last = at.text(func).rpartition(".")[2]
                if last in JOINS:
                    given = [*parent.args, func]
                    parts = [p for g in given for p in getattr(g, "elts", [g]) if p is not inner]
                    parts = [p.value if p is func and isinstance(p, ast.Attribute) else p
                             for p in parts]  # fmt: skip
                    others = [p for p in parts if widened(p, at)]
                    if others and not _cast(parent, at):
                        return Meeting(parent, others[0], at)
                    return None
                before, after = at.value(node).dtype, at.value(parent).dtype
                followed = last in FOLLOWED or (counted and last in COUNTED)
                if not followed or (last == "to" and after not in ("", before)):
                    return None
            case ast.List() | ast.Tuple():
                pass
            case ast.Assign(targets=[ast.Name(id=name)], value=source):
                for use in at.uses(name):
                    if isinstance(use.ctx, ast.Load) and at.definition(name, use) is source:
                        found = _meeting(use, at, widened, seen, counted)
                        if found is not None:
                            return found
                return None
            case _:
                return None
        inner = parent
    return None


def _cast(use: ast.expr, at: Context) -> bool:
    """Whether the result is cast at once."""
    parent = at.parents.get(id(use))
    cast = isinstance(parent, ast.Attribute) and parent.attr in CASTS
    return cast or Apart.cast_next(use, at)
