"""Where a GradScaler is made, and the functions in which its name stands for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precision_lint.semantics.bindings import makes_scaler, stored
from precision_lint.semantics.index import Function
from precision_lint.semantics.names import dotted
from precision_lint.semantics.ownership import Roots, owners
from precision_lint.semantics.regions import AUTOCAST, DTYPES, INHERITED, region_of

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context

CREATORS = (
    "torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "torch.cpu.amp.GradScaler",
    "torch.amp.grad_scaler.GradScaler", "torch.cuda.amp.grad_scaler.GradScaler",
)  # fmt: skip
LIBRARY = frozenset({
    "timm.utils.NativeScaler", "timm.utils.cuda.NativeScaler",
})  # fmt: skip
"""Classes of libraries that make a scaler which is always on."""
BOOLEAN = (ast.If, ast.IfExp, ast.While, ast.Assert)


@dataclass(frozen=True, eq=False)
class Scaler:
    """A scaler that is bound to a name.

    text: the name, or ``self.name``; enabled: what its ``enabled`` is, None where it is not given;
    only: whether the name stands for a scaler wherever it is bound; scope: functions that know it.
    """

    text: str
    call: ast.Call
    enabled: ast.expr | None
    only: bool
    scope: tuple[Function, ...]

    @classmethod
    def made(cls, call: ast.Call, at: Context) -> Scaler | None:
        """The scaler that a call makes; None: it is not bound to a name."""
        statement = at.statement(call)
        if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is not call:
            return None
        places = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        text = dotted(places[0])
        if text is None or len(places) > 1:
            return None
        scope = tuple(_scope(text, at))
        bound = [value for function in scope for value in _bound(text, function)]
        enabled = next((k.value for k in call.keywords if k.arg == "enabled"), None)
        spread = any(k.arg is None for k in call.keywords)
        given = text in {p.arg for p in at.function.parameters()}
        only = all(map(makes_scaler, bound)) and not spread and not given
        return cls(text, call, enabled, only, scope)

    @property
    def may_be_off(self) -> bool:
        """Whether it is made with an ``enabled`` that is not True."""
        enabled = self.enabled
        return enabled is not None and not (
            isinstance(enabled, ast.Constant) and enabled.value is True
        )

    @property
    def off(self) -> bool:
        return isinstance(self.enabled, ast.Constant) and self.enabled.value is False

    def truths(self) -> Iterator[tuple[ast.expr, Function]]:
        """Places that ask for the truth of the scaler, each with its function."""
        for function in self.scope:
            for node in function.nodes:
                parts: list[ast.expr] = []
                if isinstance(node, BOOLEAN):
                    parts = [node.test]
                elif isinstance(node, ast.BoolOp):
                    parts = node.values
                elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
                    parts = [node.operand]
                elif isinstance(node, ast.Call) and dotted(node.func) == "bool":
                    parts = node.args
                for part in parts:
                    if dotted(part) == self.text:
                        yield part, function

    def calls(self, method: str) -> Iterator[tuple[ast.Call, Function]]:
        """Calls of one of its methods, each with its function."""
        for function in self.scope:
            for node in function.nodes:
                if isinstance(node, ast.Call) and dotted(node.func) == f"{self.text}.{method}":
                    yield node, function

    def regions(self, at: Context) -> list[tuple[ast.Call, str]]:
        """Autocast regions that its functions open, each with its dtype (``""``: not known)."""
        found = []
        for function in self.scope:
            for node in function.nodes:
                if isinstance(node, ast.Call) and at.qualify(node.func) in AUTOCAST:
                    found.append((node, _dtype(node, at.inside(function))))
        return found

    @staticmethod
    def wrapped(call: ast.Call, at: Context) -> bool:
        """Whether a class that is instantiated makes a scaler of its own that is on."""
        name = dotted(call.func) or ""
        if at.qualify(call.func) in LIBRARY:
            return True
        found = at.module.base(name)
        init = found[0].methods.get("__init__") if found is not None else None
        made = [n for n in init.nodes if isinstance(n, ast.Call)] if init is not None else []
        scalers = [node for node in made if makes_scaler(node)]
        return bool(scalers) and not any(k.arg == "enabled" for n in scalers for k in n.keywords)

    @staticmethod
    def choices(at: Context) -> Iterator[tuple[ast.Call, ast.expr, frozenset[str]]]:
        """Autocast regions of this function whose dtype is a name that is given one of several.

        Each with the name and the dtypes; a ``partial`` of a region counts.
        """
        for node in at.function.nodes:
            if not isinstance(node, ast.Call):
                continue
            name = _named(node)
            if not isinstance(name, (ast.Name, ast.Attribute)) or not (
                at.qualify(node.func) in AUTOCAST
                or (node.args and at.qualify(node.args[0]) in AUTOCAST)
            ):
                continue
            bound = [v for v in _bound(dotted(name) or "", at.function) if v is not None]
            dtypes = frozenset(
                DTYPES[qualified]
                for value in bound
                for part in _parts(value)
                if (qualified := at.qualify(part)) in DTYPES
            )
            if dtypes:
                yield node, name, dtypes

    def owners(self, function: Function, at: Context) -> dict[str, Roots]:
        """Optimizers that a function knows, each with the modules that it was made of."""
        return owners(function, at.module.typestate)


def _scope(text: str, at: Context) -> Iterator[Function]:
    index, home = at.module.index, at.function
    if text.startswith("self."):
        cls = home.cls
        for function in index.functions:
            if cls is not None and function.cls is cls:
                yield function
        return
    for function in (index.top, *index.functions):
        outer: Function | None = function
        while outer is not None and outer is not home:
            if text in stored(outer) or text in {p.arg for p in outer.parameters()}:
                break
            outer = outer.parent
        if outer is home:
            yield function


def _bound(text: str, function: Function) -> Iterator[ast.expr | None]:
    for node in function.nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if dotted(target) == text:
                    yield node.value
                elif isinstance(target, (ast.Tuple, ast.List)):
                    yield from (None for part in target.elts if dotted(part) == text)
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and dotted(node.target) == text:
            yield node.value


def _parts(value: ast.expr) -> Iterator[ast.expr]:
    """What a choice chooses from: branches of a conditional, values of a literal dict."""
    match value:
        case ast.IfExp(body=body, orelse=orelse):
            yield from _parts(body)
            yield from _parts(orelse)
        case ast.Subscript(value=ast.Dict(values=values)):
            yield from values
        case _:
            yield value


def _dtype(call: ast.Call, at: Context) -> str:
    """The dtype of an autocast region; ``""`` where the code does not say for sure."""
    region = region_of(call, at.module.index.names, INHERITED)
    if region is None or region.state != "on":
        return ""
    if region.dtype != "low":
        return region.dtype if region.device or _named(call) is not None else ""
    given = _named(call)
    if isinstance(given, ast.Name):
        bound = {(at.qualify(v) or "") if v else "" for v in _bound(given.id, at.function)}
        return DTYPES.get(bound.pop(), "") if len(bound) == 1 else ""
    return ""


def _named(call: ast.Call) -> ast.expr | None:
    return next((k.value for k in call.keywords if k.arg == "dtype"), None)
