"""Contexts of functions: what tells one call from another, and what is kept of each."""

from __future__ import annotations

from typing import Any

from precision_lint.dataflow import objects, training
from precision_lint.dataflow.graph import peel
from precision_lint.dataflow.interpreter import Environment, Interpreter, Region
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import Dtypes
from precision_lint.domains.joining import facts
from precision_lint.domains.values import (
    Array,
    ClassValue,
    Closure,
    DtypeValue,
    Instance,
    Scalar,
    Sequence,
    Special,
    Symbol,
    Table,
    Tensor,
    Unknown,
    Value,
)
from precision_lint.events import Variant


class Summary:
    """What a function gives and does in one context."""

    __slots__ = (
        "at_call",
        "emitted",
        "leaves",
        "objects",
        "outer",
        "recursive",
        "result",
        "running",
        "symbols",
        "trace",
        "unpacked",
        "ways",
        "weights",
        "yielded",
    )

    def __init__(self, key: Key, unpacked: bool, outer: Environment | None) -> None:
        self.result: Value | None = None
        self.outer = outer
        """The variables around, which live as long as the key that tells them by their number."""
        self.symbols = key.symbols
        self.ways = key.ways
        self.trace: list[Any] = []
        self.weights: dict[Any, Any] = {}
        self.yielded: Region | None = None
        self.running = True
        self.recursive = False
        self.leaves: list[Tensor] = []
        """The parameters, as the body saw them."""
        self.objects = key.objects
        self.unpacked = unpacked
        """Whether a call may give more keywords than are known (``**options``)."""
        self.at_call: list[Any] = []
        """What is to be reported at each call."""
        self.emitted: list[Variant] = []
        """What was reported inside, which holds for every caller that comes here in this context."""


class Key:
    """Builds the key of a context, with symbols numbered in order of appearance."""

    def __init__(self, it: Interpreter) -> None:
        self.it = it
        self.symbols: list[int] = []
        self.objects: dict[int, Symbol] = {}
        """Unknown objects by their numbers."""
        self.ways: list[objects.Way] = []
        """Objects with weights, in order of appearance."""

    def vector(self, vector: Dtypes) -> Dtypes:
        if all(one <= dtypes.ANY for one in vector):
            return vector
        return tuple([one if one <= dtypes.ANY else self.symbol(one >> 8) << 8 for one in vector])

    def symbol(self, number: int) -> int:
        if number not in self.symbols:
            self.symbols.append(number)
        return -1 - self.symbols.index(number)

    def of(self, value: Value | None, depth: int = 2) -> Any:
        """A hashable stand-in for what a callee can see of a value."""
        kind = value.__class__
        if kind is Tensor:
            return self._tensor(peel(value), depth)
        if kind is Unknown:
            symbol: Symbol = value.symbol  # type: ignore[union-attr]
            self.objects[symbol.number] = symbol
            bounds = ("bounds of", "") in symbol.attributes and facts(symbol.tensor)
            return (
                "?", self.symbol(symbol.number), self.vector(symbol.vector), symbol.assumptions, bounds,
                training.is_marked(symbol, training.PREPARED),
            )  # fmt: skip
        if value is None:
            return None
        if kind is Instance:
            return self._instance(value)
        if isinstance(value, Sequence):
            if value.items is None:
                return ("[*]", self.of(value.element, depth))
            return ("[]", *[self.of(item, depth) for item in value.items[:24]])
        if isinstance(value, Table):
            return ("{}", *[(k, self.of(v, depth)) for k, v in value.items.items()])
        return self._other(value)

    def _other(self, value: Value) -> Any:
        if isinstance(value, (DtypeValue, Array)):
            return (value.__class__, self.vector(value.dtypes))
        if isinstance(value, Special):
            options = tuple([self.of(one, 1) for one in value.fields.get("options", ())])
            steps, of = value.fields.get("steps"), value.fields.get("of", value.fields.get("owner"))
            own: Any = self.of(of, 1) if isinstance(of, (Unknown, Instance, Special)) else None
            if own is None and value.kind in ("scaler", "optimizer"):
                own = id(value)  # what happens to it, happens to that one
            return ("special", value.kind, id(value.node), value.assumptions, options, steps, own)
        if isinstance(value, Closure):
            return ("closure", id(value.function), self.of(value.owner, 1), value.optional)
        if isinstance(value, Scalar):
            return (value.kind, value.value, value.lo, value.hi, value.assumptions, value.op)
        if isinstance(value, ClassValue):
            return ("class", id(value.cls))
        return facts(value)

    def _tensor(self, value: Tensor, depth: int) -> Any:
        inner: Any = ()
        if value.symbol is not None:
            self.objects[value.symbol.number] = value.symbol
        if depth and value.op not in ("input", "weight"):
            inner = tuple([self.of(v, depth - 1) for v in value.operands[:3] if v is not None])
        return (
            self.vector(value.dtypes), value.op, value.lo, value.hi, value.assumptions, value.flags,
            value.rank, value.reach, inner,
        )  # fmt: skip

    def _instance(self, value: Any) -> Any:
        weights, _ = objects.weights_of(self.it, value)
        self.ways.append(objects.ways(value))
        site = 0 if objects.is_module(self.it, value.cls) else id(value.root)
        changes = self.it.changes.get(id(value.attributes), 0)
        return (
            "object",
            id(value.attributes),
            changes,
            site,
            self.vector(weights),
            value.root.made,
            value.region is not None and facts(value.region),
        )
