"""Methods of modules that run with half weights, because the code makes the object half that they
are called on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precision_lint.semantics import models
from precision_lint.semantics.entries import FOREIGN_CALLS, Entries
from precision_lint.semantics.names import dotted
from precision_lint.semantics.values import UNKNOWN

if TYPE_CHECKING:
    from precision_lint.semantics.index import Class, Function
    from precision_lint.semantics.values import Value

DEEPEST = 5
"""Modules in each other."""
MANY = 12
"""Methods of a class whose calls are looked at."""
_SIGNS = re.compile(r"[|+]")
_STORED = ("parameter.", "buffer.")


@dataclass(frozen=True)
class HalfRun:
    """The dtype of the weights, and the call that runs a method with them."""

    dtype: str
    call: ast.Call
    module: Entries

    @classmethod
    def of(cls, module: Entries, owner: Class, depth: int = DEEPEST) -> HalfRun | None:
        """How an object of a class has half weights; None: nothing says that it has."""
        known = module.half_runs
        if id(owner) not in known:
            known[id(owner)] = None  # recursion ends here
            known[id(owner)] = next(_runs(module, owner, depth), None)
        return known[id(owner)]

    @classmethod
    def made(cls, module: Entries, function: Function, value: Value) -> HalfRun | None:
        """How a value is half that a method's own layers, parameters and buffers make."""
        if not value.variable or not value.maybe_tensor:
            return None
        layers = module.analysis(function).of_layers
        parts = _SIGNS.split(value.dtype[1:])
        own = [p for p in parts if p.startswith(_STORED) or f"~{p}" in layers]
        owner = function.cls
        if not own or owner is None or any(p not in own and p not in models.HALF for p in parts):
            return None
        return cls.of(module, owner)


def _runs(module: Entries, owner: Class, depth: int) -> Iterator[HalfRun]:
    for method in list(owner.methods.values())[:MANY]:
        made = method.name == "__init__"
        for home, call, caller in _sites(module, method):
            within = caller.name == "__init__" if made else _of_self(call)
            if within and caller.cls is not None and caller.cls is not owner:
                around = HalfRun.of(home, caller.cls, depth - 1) if depth else None
                if around is not None:
                    yield around
            elif not made:
                yield from _on_half(home, call, caller)


def _of_self(call: ast.Call) -> bool:
    return (dotted(call.func) or "").startswith("self.")


def _on_half(home: Entries, call: ast.Call, caller: Function) -> Iterator[HalfRun]:
    """The run that a call is, of a model that holds half weights or of one of its methods."""
    values, func = home.analysis(caller).values, call.func
    for node in (func, func.value if isinstance(func, ast.Attribute) else func):
        dtype = models.weights(values.get(id(node), UNKNOWN))
        if dtype:
            yield HalfRun(dtype, call, home)
            return


def _sites(module: Entries, function: Function) -> Iterator[tuple[Entries, ast.Call, Function]]:
    """Calls of a method in this file and in others."""
    for call, caller in module.call_sites(function):
        yield module, call, caller
    for site in module.foreign_sites(function)[:FOREIGN_CALLS]:
        assert module.program is not None
        other = module.program.load(site.file)
        where = other.site(site.function, site.span) if other is not None else None
        if other is not None and where is not None:
            yield other, *where
