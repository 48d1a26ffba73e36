"""What callers pass for a parameter, through functions that hand on what they are given."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from precision_lint.semantics import models
from precision_lint.semantics.entries import Entries, Passed
from precision_lint.semantics.half_run import HalfRun

if TYPE_CHECKING:
    from precision_lint.semantics.index import Function
    from precision_lint.semantics.values import Value

DEEPEST = 3
"""Functions that one after the other hand a value on."""
_SIGNS = re.compile(r"[|+]")


def passed(
    module: Entries, function: Function, dtype: str, depth: int = DEEPEST
) -> Iterator[Passed]:
    """What the calls of a function pass for what a dtype variable names: a parameter, what calling
    one gives, or what several of these promote to."""
    name = dtype[1:]
    parts = _SIGNS.split(name)
    if len(parts) > 1:
        yield from _all_half(module, function, parts, depth)
        return
    for one in module.arguments(function, name.removesuffix(models.CALLED)):
        value = one.value
        if name.endswith(models.CALLED):
            called = models.result_of(value)
            if called is None:
                continue
            value = called
        if not value.maybe_tensor:
            continue
        run = HalfRun.made(one.module, one.caller, value)
        if run is not None and not one.inside:
            yield replace(one, value=value.but(dtype=run.dtype, wide=False))
            continue
        found = False
        if value.variable and depth:
            for inner in passed(one.module, one.caller, value.dtype, depth - 1):
                if inner.value.dtype:
                    found = True
                    inside = one.inside or inner.inside
                    yield replace(one, value=inner.value, inside=inside, behind=inner)
        if not found:
            yield replace(one, value=value)


def weights(module: Entries, function: Function, value: Value, depth: int = DEEPEST) -> set[str]:
    """The half dtypes that the weights of a model may have, here or where a caller has it from."""
    found = {models.weights(value)} - {""}
    if value.variable and depth and not found:
        for one in module.arguments(function, value.dtype[1:]):
            found |= weights(one.module, one.caller, one.value, depth - 1)
    return found


def _all_half(
    module: Entries, function: Function, parts: list[str], depth: int
) -> Iterator[Passed]:
    """One of the calls, where every part of a promoted dtype is half by itself or by a call."""
    shown: Passed | None = None
    for part in parts:
        if part in models.HALF:
            continue
        half = (
            p for p in passed(module, function, f"~{part}", depth) if p.value.dtype in models.HALF
        )
        shown = next(half, None)
        if shown is None:
            return
    if shown is not None:
        yield shown
