"""What a call of a function of the project gives back, in terms of what it is given."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from precision_lint.semantics.index import Function
from precision_lint.semantics.regions import Region
from precision_lint.semantics.values import CONCRETE, INF, Value

if TYPE_CHECKING:
    from precision_lint.semantics.module import Module

DEEPEST = 6
"""Calls that are followed into each other."""
TRAVELS = frozenset({"normalized", "unit", "float", "cast", "amp", "not-float16", "not-bfloat16"})
"""Tags that mean the same in the caller."""

_depth = 0


def result(
    target: Function,
    module: Module,
    node: ast.Call,
    arguments: Sequence[Value],
    keywords: Mapping[str, Value],
    region: Region,
    own: bool,
) -> Value | None:
    """The value of the call ``node`` of ``target``; None: nothing is known of it.

    A dtype variable of a parameter becomes the dtype of what is passed for it.  ``own``: caller
    and callee see the same ``self``, so that variables of attributes mean the same to both.
    """
    global _depth
    if _depth >= DEEPEST or any(isinstance(a, ast.Starred) for a in node.args):
        return None
    if target.is_generator or any(k.arg is None for k in node.keywords):
        return None
    _depth += 1
    try:
        returned = module.analysis(target).returned
    finally:
        _depth -= 1
    if returned is None:
        return None
    parameters = [p.arg for p in target.parameters()]
    if target.is_method and not target.is_static:
        parameters = parameters[1:]
    given = {**dict(zip(parameters, arguments, strict=False)), **keywords}
    chosen = any(name in given for name in target.defaults())
    place = f"~call{node.lineno}:{node.col_offset}"

    def seen(value: Value) -> Value:
        dtype, wide = value.dtype, value.wide
        if dtype.startswith("~"):
            passed = given.get(dtype[1:])
            if passed is not None:
                dtype, wide = passed.dtype or place, wide or passed.wide
            elif dtype == "~autocast" and region.on:
                dtype = region.dtype
            elif dtype != "~autocast" and not (
                own and dtype.startswith(("~self.", "~parameter.", "~buffer."))
            ):
                dtype = place
        if wide and region.on and dtype not in CONCRETE:
            dtype, wide = "float32", False
        elif dtype in CONCRETE:
            wide = False
        # a default that this call replaces may have made the bounds
        lo, hi, const = (-INF, INF, None) if chosen else (value.lo, value.hi, value.const)
        return Value(
            value.kind, dtype, lo, hi, value.ndim, const, wide, tags=value.tags & TRAVELS,
            items=tuple(seen(item) for item in value.items),
        )  # fmt: skip

    return seen(returned)
