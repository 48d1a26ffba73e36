"""What the calls of a function say of what it is given, looking back through its callers."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import TYPE_CHECKING

from precision_lint.api import Confidence
from precision_lint.semantics.half import UNASKED, Half, excluded
from precision_lint.semantics.provenance import Provenance
from precision_lint.semantics.values import OF_MODULES, Value

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context
    from precision_lint.semantics.entries import Passed
    from precision_lint.semantics.index import Function
    from precision_lint.semantics.module import Module
    from precision_lint.semantics.regions import Region

_DEPTH = 4
"""Callers of callers that are asked."""
_SITES = 8
"""Calls that are looked at for one parameter."""


def sources(module: Module, function: Function, name: str, depth: int = _DEPTH) -> list[Passed]:
    """What calls pass for a parameter; where a caller hands on its own, what it was given."""
    found: list[Passed] = []
    for one in module.arguments(function, name)[:_SITES]:
        inner = one.value.dtype[1:] if one.value.variable else ""
        handed = any(p.arg == inner for p in one.caller.parameters())
        behind = sources(one.module, one.caller, inner, depth - 1) if handed and depth else []
        found += behind or [one]
    return found


def dtypes_of(value: Value, module: Module, function: Function) -> frozenset[str]:
    """The half dtypes that a value has by its own function: cast, or out of a half module."""
    if value.dtype in OF_MODULES.values():
        return frozenset({value.dtype})
    if not value.variable:
        return frozenset()
    known = module.analysis(function).halves
    found = [_of_part(part, known) for part in value.dtype[1:].split("+")]
    return frozenset.intersection(*found) if all(found) else frozenset()


def _of_part(part: str, known: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """The half dtypes of one operand; of what two paths bring, those of either."""
    if part in OF_MODULES.values():
        return frozenset({part})
    return frozenset().union(*(known.get(f"~{one}", frozenset()) for one in part.split("|")))


def given(value: Value, region: Region, at: Context) -> Half | None:
    """What this function and its calls say of a value's dtype."""
    names = value.dtype[1:].split("+")
    if any(_is_given_wide(name.partition("[")[0], at) for name in names):
        return None  # promoted by what is float32, or an item of it
    if not region.on:
        known = dtypes_of(value, at.module, at.function) - excluded(value)
        if known:
            return Half(known, Confidence.LIKELY, at.settings[-1:], True)
    passed = sources(at.module, at.function, value.dtype[1:])
    passed = [p for p in passed if p.value.maybe_tensor]
    for one in passed:
        passes, call = one.value, one.call
        amp = "amp" in passes.tags
        known = dtypes_of(passes, one.module, one.caller)
        if known or amp:
            dtypes = known or at.region_dtypes(region)
            if amp and (region.on or one.inside):
                continue  # it came out of the region that the call is in
            dtypes -= excluded(value) | excluded(passes)
            message = f"{at.function.qualname}() is given half tensors here"
            here = one.module is at.module
            note = at.note(call, message) if here else one.module.note(call, message)
            return Half(dtypes, Confidence.LIKELY, (note,), True) if dtypes else None
    if passed and all(one.value.dtype in ("float32", "float64") for one in passed):
        return None
    return UNASKED


def _is_given_wide(name: str, at: Context) -> bool:
    """Whether every call in the project passes float32 for a parameter."""
    passed = [p.value for p in at.module.arguments(at.function, name)]
    return bool(passed) and all(given.dtype in ("float32", "float64") for given in passed)


def is_activation(value: Value, at: Context) -> bool:
    """Whether every part of a value is handed down from a layer, whose output autocast lowers.

    Of a parameter it is enough that one call does so.
    """
    names = value.dtype[1:].split("+") if value.variable else []
    given = {p.arg for p in at.function.parameters()}
    return bool(names) and all(
        name in given and any(_computed(one, at) for one in sources(at.module, at.function, name))
        for name in names
    )


def _computed(one: Passed, at: Context) -> bool:
    value = one.value
    if value.dtype in (*OF_MODULES.values(), "low") or "amp" in value.tags:
        return True
    if not value.variable or value.dtype == "~cast" or not value.maybe_tensor:
        return False
    there = at.of(one.module, one.caller)
    behind = Provenance.of(one.node, there)
    return any(_is_model(node, there) or Provenance.is_layer(node, there) for node in behind)


def _is_model(node: ast.expr, at: Context) -> bool:
    """Whether a call runs the ``forward`` of a module of the project."""
    if not isinstance(node, ast.Call):
        return False
    cls = at.function.cls
    if isinstance(node.func, ast.Name) and node.func.id == "self":
        return cls is not None and cls.is_module
    found = at.module.callee(node.func, at.function)
    return found is not None and found[0].name == "forward"
