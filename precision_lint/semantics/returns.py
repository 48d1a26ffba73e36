"""What a call of a function of the project gives back, in terms of what it is given."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precision_lint.semantics import models
from precision_lint.semantics.index import Function
from precision_lint.semantics.regions import Region
from precision_lint.semantics.values import CONCRETE, INF, UNKNOWN, Value

if TYPE_CHECKING:
    from precision_lint.semantics.module import Module

LONGEST = 80
"""Rows of a function that is followed; of longer ones hardly anything is known at the end."""
DEEPEST = 3
"""Calls that are followed into each other."""
TRAVELS = frozenset({
    "normalized", "unit", "float", "cast", "amp", "output", "numpy", "not-float16", "not-bfloat16",
})  # fmt: skip
"""Tags that mean the same in the caller."""

_depth = 0


def result(
    target: Function,
    module: Module,
    node: ast.Call,
    caller: Function,
    arguments: Sequence[Value],
    keywords: Mapping[str, Value],
    region: Region,
    own: bool,
    bound: bool,
) -> Value | None:
    """The value of the call ``node`` of ``target``; None: nothing is known of it.

    A dtype variable of a parameter becomes the dtype of what is passed for it.  ``own``: caller
    and callee see the same ``self``, so that variables of attributes mean the same to both.
    ``bound``: the method is that of an object, which is not among the arguments.
    """
    if any(isinstance(a, ast.Starred) for a in node.args):
        return None
    if any(k.arg is None for k in node.keywords):
        return None
    returned = _returned(target, module)
    if returned is None or isinstance(target.node, ast.Module):
        return None
    taken = target.node.args
    parameters = [p.arg for p in (*taken.posonlyargs, *taken.args)]
    if target.is_method and not target.is_static:
        if not (bound or target.is_classmethod):
            return None  # called through its class: ``self`` is among the arguments
        parameters = parameters[1:]
    if len(arguments) > len(parameters):
        return None
    given = {**dict(zip(parameters, arguments, strict=False)), **keywords}
    chosen = any(name in given for name in target.defaults())
    return _Caller(given, chosen, caller.given_by(node), region, own).sees(returned)


def of_object(
    target: Function,
    module: Module,
    node: ast.Call,
    caller: Function,
    arguments: Sequence[Value],
    keywords: Mapping[str, Value],
    region: Region,
) -> Value | None:
    """The value of the call ``node`` of an object that runs ``target``, such as a model; None:
    nothing is known of it.

    What depends on arguments stays open, unless they make it half.
    """
    if not region.on:
        half = result(target, module, node, caller, arguments, keywords, region, False, bound=True)
        if half is not None and half.dtype in models.HALF:
            return half
    returned = _returned(target, module)
    if returned is None:
        return None
    return _Caller({}, True, caller.given_by(node), region, False).sees(returned)


def _returned(target: Function, module: Module) -> Value | None:
    global _depth
    if _depth >= DEEPEST or target.is_generator or target.length > LONGEST:
        return None
    _depth += 1
    try:
        returned = module.analysis(target).returned
    finally:
        _depth -= 1
    return returned


@dataclass(frozen=True)
class _Caller:
    """How one call translates what its function returns."""

    given: Mapping[str, Value]
    chosen: bool
    """Whether it replaces a default, which may have made the bounds."""
    place: str
    region: Region
    own: bool

    def sees(self, value: Value) -> Value:
        kind, dtype, wide = value.kind, value.dtype, value.wide
        if "|" in dtype and models.weights(value):  # a model that one branch makes half
            parts = [self.given.get(part, UNKNOWN) for part in dtype[1:].split("|")]
            model = next((part for part in parts if part.kind == "callable"), None)
            if model is not None:
                return model.but(dtype=models.weights(value))
        tags = value.tags
        if dtype.startswith("~"):
            passed = self.given.get(dtype[1:].removesuffix(models.CALLED))
            if passed is not None and dtype.endswith(models.CALLED):
                passed = models.result_of(passed) or Value("unknown", self.place)
                tags |= passed.tags
            if passed is not None:
                kind = passed.kind if kind == "unknown" and passed.is_tensor else kind
                dtype, wide = passed.dtype or self.place, wide or passed.wide
            elif dtype == "~autocast" and self.region.on:
                dtype = self.region.dtype
            elif dtype != "~autocast" and not (
                self.own and dtype.startswith(("~self.", "~parameter.", "~buffer."))
            ):
                dtype = self.place
        if wide and self.region.on and dtype not in CONCRETE:
            dtype, wide = "float32", False
        elif dtype in CONCRETE:
            wide = False
        lo, hi, const = (-INF, INF, None) if self.chosen else (value.lo, value.hi, value.const)
        tags &= TRAVELS
        if any(tag.startswith("widened:") for tag in value.tags):
            tags |= {f"widened:{self.place}"}
        return Value(
            kind, dtype, lo, hi, value.ndim, const, wide, tags=tags,
            items=tuple(self.sees(item) for item in value.items),
        )  # fmt: skip
