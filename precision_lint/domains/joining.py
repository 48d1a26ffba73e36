"""Least upper bounds, equality up to facts, and widening of abstract values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import Dtypes
from precision_lint.domains.values import (
    BOTTOM,
    INF,
    NONE,
    OPTIONAL,
    SHARED,
    UNKNOWN_RANK,
    Array,
    ClassValue,
    Closure,
    DtypeValue,
    Instance,
    Reference,
    RegionValue,
    Scalar,
    Sequence,
    Special,
    Symbol,
    Table,
    Tensor,
    Unknown,
    Value,
)


def unknown() -> Unknown:
    """An object of which nothing is known."""
    return Unknown(Symbol("", dtypes.V_ANY, 0))


def join(a: Value, b: Value) -> Value:
    """A value that stands for both."""
    if a is b or b is BOTTOM:
        return a
    if a is BOTTOM:
        return b
    kind = a.__class__
    if kind is b.__class__:
        joined = _SAME.get(kind)
        result: Value = joined(a, b) if joined is not None else unknown()
        return result
    return _mixed(a, b)


OPTIONS: Final = 4
"""Functions and layers of which one is called; where there are more, nothing is known."""


def _one_of(a: Any, b: Any) -> Value:
    """One of several functions or layers: each is called (``normalize if asked else identity``)."""
    options = list(_options(a))
    known = {_identity(one) for one in options}
    options += [one for one in _options(b) if _identity(one) not in known]
    if len(options) > OPTIONS:
        return unknown()
    if len(options) == len(known):
        return b if getattr(b, "optional", False) else a  # type: ignore[no-any-return]
    return Special("either", options=tuple(options))


def _options(value: Any) -> tuple[Value, ...]:
    either = value.__class__ is Special and value.kind == "either"
    return value.fields["options"] if either else (value,)


def _identity(value: Any) -> object:
    """What makes a function or a layer the one that it is."""
    if value.__class__ is Closure:
        return id(value.function)
    if value.__class__ is ClassValue:
        return id(value.cls)
    if value.__class__ is Special:  # of functools.partial
        return _identity(value.fields["of"]), id(value.node)
    return value.name if value.__class__ is Reference else (value.cls, id(value.attributes))


def _is_callable(value: Value) -> bool:
    """Whether a value is a function, a layer of torch, or one of some."""
    if isinstance(value, Special):
        return value.kind == "either" or (
            value.kind == "partial"
            and value.fields["of"].__class__ in (Closure, Reference, ClassValue)
        )
    return value.__class__ in (Closure, Reference, ClassValue) or _is_object(value)


def _is_object(value: Value) -> bool:
    """Whether a value is a layer, or an object of a class of the project."""
    return isinstance(value, Instance) and value.items is None


def _mixed(a: Value, b: Value) -> Value:
    """The join of values of two classes."""
    kind = a.__class__
    if (isinstance(a, Reference) and a.name == NULL) or (
        isinstance(b, Reference) and b.name == NULL
    ):
        return _or_nothing(a, b)
    if a is NONE or (isinstance(a, Scalar) and a.kind == "none"):
        return _optional(b)
    if b is NONE or (isinstance(b, Scalar) and b.kind == "none"):
        return _optional(a)
    if kind is Tensor and isinstance(b, (Scalar, Unknown)):
        return _or_object(a, b) if isinstance(b, Unknown) else _or_number(a, b)
    if b.__class__ is Tensor and isinstance(a, (Scalar, Unknown)):
        return _or_object(b, a) if isinstance(a, Unknown) else _or_number(b, a)
    if isinstance(a, RegionValue):
        return perhaps(a)
    if isinstance(b, RegionValue):
        return perhaps(b)
    if _is_callable(a) and _is_callable(b):
        return _one_of(a, b)
    if kind is Unknown:
        a, b = b, a
    if b.__class__ is not Unknown:
        return unknown()
    if isinstance(a, Special) and a.kind == "device":
        return Special("device")  # some device
    return a if isinstance(a, (Instance, Special, Sequence, Array)) else b


def join_modes(a: Value, b: Value, a_live: int, b_live: int) -> Value:
    """The join of two values that are possible in some modes only (masks)."""
    a, b = _cast_beside(a, b), _cast_beside(b, a)
    if a_live == b_live or not a_live or not b_live:
        return join(a, b) if a_live == b_live else a if a_live else b
    joined = join(a, b)
    if isinstance(a, (Table, Sequence)) and joined.__class__ is a.__class__ is b.__class__:
        return _parts_by_mode(joined, a, b, a_live, b_live)
    if isinstance(joined, Unknown) and isinstance(a, Unknown) and isinstance(b, Unknown):
        return _unknown_by_mode(joined, a, b, a_live, b_live)
    if isinstance(a, (Tensor, DtypeValue)) and isinstance(b, (Tensor, DtypeValue)):
        vector = _by_mode(a.dtypes, b.dtypes, a_live, b_live)
        if isinstance(joined, Tensor):
            return joined.but(dtypes=vector) if joined.dtypes != vector else joined
        return DtypeValue(vector, a.node, a.home, getattr(joined, "assumptions", 0))
    return joined


def _parts_by_mode(joined: Value, a: Value, b: Value, a_live: int, b_live: int) -> Value:
    """The same of dicts and sequences whose items are known: each part in its modes."""
    if isinstance(joined, Table) and isinstance(a, Table) and isinstance(b, Table):
        if a.items.keys() == b.items.keys():
            parts = {k: join_modes(v, b.items[k], a_live, b_live) for k, v in a.items.items()}
            return joined.__class__(parts, joined.element)
    elif isinstance(a, Sequence) and isinstance(b, Sequence) and isinstance(joined, Sequence):
        if a.items is not None and b.items is not None and joined.items is not None:
            pairs = zip(a.items, b.items, strict=True)
            items = [join_modes(one, other, a_live, b_live) for one, other in pairs]
            return Sequence(tuple(items), None, joined.kind)
    return joined


def _by_mode(a: Dtypes, b: Dtypes, a_live: int, b_live: int) -> Dtypes:
    """The dtypes of one of two values, each of which is possible in some modes."""
    both = zip(a, b, dtypes.join(a, b), strict=True)
    return tuple(
        [
            x if not b_live >> i & 1 else y if not a_live >> i & 1 else z
            for i, (x, y, z) in enumerate(both)
        ]
    )


def _unknown_by_mode(joined: Unknown, a: Unknown, b: Unknown, a_live: int, b_live: int) -> Value:
    """The same of two unknown objects, one of which was cast."""
    made, first, second = joined.symbol, a.symbol, b.symbol
    if made is first or made is second:
        return joined
    made.vector = _by_mode(first.vector, second.vector, a_live, b_live)
    if made.tensor is not None and first.tensor is not None and second.tensor is not None:
        vector = _by_mode(first.tensor.dtypes, second.tensor.dtypes, a_live, b_live)
        made.tensor = made.tensor.but(dtypes=vector)
    return joined


def join_exits(exits: list[tuple[Value, int]], start: int) -> Value | None:
    """What a function gives back, each of its exits in the modes in which it comes there; None: nothing.

    start: the modes in which it was called.
    """
    found: Value | None = None
    live = 0
    for value, modes in exits:
        reached = modes | dtypes.ALL_MODES & ~start
        found = value if found is None else join_modes(found, value, live, reached)
        live |= reached
    return found


def _cast_beside(value: Value, other: Value) -> Value:
    """What is a tensor in the other arm, as one, if it was used or cast as such."""
    if isinstance(value, Unknown) and isinstance(other, Tensor):
        symbol = value.symbol
        if symbol.tensor is not None and (
            symbol.uses & Symbol.TENSOR or ("cast of", "") in symbol.attributes
        ):
            return symbol.tensor
    return value


NULL: Final = "contextlib.nullcontext"


def _or_nothing(a: Any, b: Any) -> Value:
    """What makes a context manager, or ``nullcontext``."""
    other = b if isinstance(a, Reference) and a.name == NULL else a
    if isinstance(other, Special) and other.kind == "scope":
        return other
    makes = isinstance(other, (Reference, Closure, ClassValue)) or (
        isinstance(other, Special) and other.kind == "partial"
    )
    return Special("scope", of=other) if makes else unknown()


def _optional(value: Value) -> Value:
    """A value that may be None instead."""
    if isinstance(value, Special) and value.kind == "scaler":
        value.fields["optional"] = True
    if isinstance(value, Scalar) and value.value is not None:
        return Scalar(None, value.kind, value.lo, value.hi, value.assumptions)
    if isinstance(value, Tensor) and not value.flags & OPTIONAL:
        return value.but(flags=value.flags | OPTIONAL)
    if isinstance(value, Closure):
        return Closure(value.function, value.owner, value.outer, value.bare, optional=True)
    return perhaps(value) if isinstance(value, RegionValue) else value


def perhaps(region: RegionValue) -> RegionValue:
    """A region that a branch leaves out (``nullcontext()``): it is on where a flag says so."""
    return RegionValue(
        dtypes.perhaps(region.dtypes),
        region.device,
        region.assumptions | assume.FLAG,
        region.cache,
        region.node,
        region.home,
    )


def _regions(a: Any, b: Any) -> Value:
    if a.dtypes == b.dtypes:
        return a  # type: ignore[no-any-return]
    if a.dtypes == dtypes.V_OFF or b.dtypes == dtypes.V_OFF:
        return perhaps(b if a.dtypes == dtypes.V_OFF else a)
    both = tuple([x | y for x, y in zip(a.dtypes, b.dtypes, strict=True)])
    assumptions = a.assumptions | b.assumptions | assume.BRANCH
    device = a.device if a.device == b.device else "cuda"
    return RegionValue(both, device, assumptions, a.cache and b.cache, a.node, a.home)


def _or_number(tensor: Any, scalar: Any) -> Value:
    """A tensor that a branch replaces by a number (``loss = 0`` before a loop)."""
    if not scalar.is_number:
        return tensor  # type: ignore[no-any-return]
    lo, hi = min(tensor.lo, scalar.lo), max(tensor.hi, scalar.hi)
    if lo == tensor.lo and hi == tensor.hi:
        return tensor  # type: ignore[no-any-return]
    return tensor.but(lo=lo, hi=hi)  # type: ignore[no-any-return]


def _or_object(tensor: Any, other: Any) -> Value:
    """A tensor, or an unknown object that is one of known dtype if it is a tensor at all."""
    symbol = other.symbol
    for array in tensor.operands:
        if isinstance(array, Array) and other in array.operands:
            return other  # type: ignore[no-any-return]  # made a tensor where it was an array
    made = symbol.tensor is not None and symbol.tensor.op == "cast"  # so is what is cast
    if symbol.tensor is None or not (made or symbol.uses & Symbol.TENSOR):
        whole = not any(one & (dtypes.FLOATS | dtypes.OTHER) for one in tensor.dtypes)
        return other if whole and symbol.label else tensor  # type: ignore[no-any-return]
    return join(tensor, symbol.tensor)


def _tensors(a: Any, b: Any) -> Value:
    if a.op == "join" and b in a.operands and facts(b) == facts(a):
        return a  # type: ignore[no-any-return]
    shared = a.flags & b.flags & SHARED | (a.flags | b.flags) & ~SHARED
    same = a.op == b.op and a.operands is b.operands and a.data == b.data
    rank = a.rank if a.rank == b.rank else UNKNOWN_RANK
    return Tensor(
        dtypes.join(a.dtypes, b.dtypes),
        a.op if same else "join",
        a.operands if same else _alternatives(a, b),
        a.node,
        a.home,
        min(a.lo, b.lo),
        max(a.hi, b.hi),
        a.assumptions | b.assumptions,
        shared,
        rank,
        max(a.reach, b.reach),
        a.symbol if a.symbol is b.symbol else a.symbol or b.symbol,
        a.data if same else None,
    )


def _alternatives(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """The values that a join chooses between, without joins of joins."""
    found: list[Tensor] = []
    for value in (a, b):
        for one in value.operands if value.op == "join" else (value,):
            if one not in found:
                found.append(one)
    return tuple(found[:8])


def _scalars(a: Any, b: Any) -> Value:
    if a.kind == "none":
        return _optional(b)
    if b.kind == "none":
        return _optional(a)
    kind = a.kind if a.kind == b.kind else "number" if a.is_number and b.is_number else "any"
    if kind == a.kind and a.value == b.value and a.value is not None:
        return a if not a.assumptions else b  # type: ignore[no-any-return]
    words = not a.op and "str" in (a.kind, b.kind)  # settings ask which ones it may be
    same = a.op == b.op and a.operands == b.operands and not words
    return Scalar(
        None,
        kind,
        min(a.lo, b.lo),
        max(a.hi, b.hi),
        a.assumptions | b.assumptions,
        a.node,
        a.home,
        a.op if same else "join",
        a.operands if same else (a, b),
    )


def _arrays(a: Any, b: Any) -> Value:
    joined = dtypes.join(a.dtypes, b.dtypes)
    return Array(joined, "join", (a, b), a.node, a.home, min(a.lo, b.lo), max(a.hi, b.hi))


def _dtype_values(a: Any, b: Any) -> Value:
    if a.dtypes == b.dtypes:
        return a  # type: ignore[no-any-return]
    assumptions = a.assumptions | b.assumptions
    for one in (a, b):
        assumptions |= one.source.assumptions if one.source is not None else 0
    made = DtypeValue(dtypes.join(a.dtypes, b.dtypes), a.node, a.home, assumptions)
    for one in (a, b):
        if one.dtypes[dtypes.CODE] == made.dtypes[dtypes.CODE]:
            made.asked = one.asked  # the other adds nothing to the choice
    return made


def _sequences(a: Any, b: Any) -> Value:
    if a.items is not None and b.items is not None and len(a.items) == len(b.items):
        items = tuple([join(x, y) for x, y in zip(a.items, b.items, strict=True)])
        return Sequence(items, None, a.kind)
    x, y = any_of(a), any_of(b)
    if x is None or y is None:
        return Sequence(None, x or y, a.kind)
    front = [join(p, q) for p, q in zip(_front(a), _front(b), strict=False)]
    if not front:
        return Sequence(None, join(x, y), a.kind)
    middle: Value | None = None
    for one in (*_behind(a, len(front)), *_behind(b, len(front))):
        middle = one if middle is None else join(middle, one)
    return Sequence(None, join(x, y), a.kind, (front, middle or x, []))


def _front(value: Sequence) -> list[Value]:
    """The first items of a tuple, as many as are known."""
    if value.kind != "tuple" or value.items is None:
        return value.ends[0] if value.ends is not None else []
    return list(value.items)


def _behind(value: Sequence, count: int) -> list[Value]:
    """What stands for the items behind the first ones, of which so many are known at least."""
    rest = value.ends[1:2] if value.ends is not None else ()
    return [*_front(value)[count:], *rest]


def _mappings(a: Any, b: Any) -> Value:
    items = dict(a.items)
    for key, value in b.items.items():
        items[key] = join(items[key], value) if key in items else value
    if a.element is None or b.element is None:
        return Table(items, a.element or b.element)
    return Table(items, join(a.element, b.element))


def _instances(a: Any, b: Any) -> Value:
    if a.attributes is b.attributes and a.cls == b.cls:
        return a if b.region is None else b  # type: ignore[no-any-return]
    if a.cls == b.cls:
        return a  # type: ignore[no-any-return]
    if a.cls in PASSING or b.cls in PASSING:
        return a if b.cls in PASSING else b  # type: ignore[no-any-return]
    if _is_loss(a.cls) and _is_loss(b.cls):
        return b if a.cls.endswith("BCELoss") else a  # type: ignore[no-any-return]
    return _one_of(a, b) if _is_object(a) and _is_object(b) else unknown()


def _is_loss(cls: Any) -> bool:
    """Whether a class is one of torch's losses, which autocast runs in float32 (``BCELoss`` it refuses)."""
    return isinstance(cls, str) and cls.endswith("Loss")


PASSING: Final = frozenset({"Identity", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d"})
"""Layers that a module has in place of another one where there is nothing to do."""


def _specials(a: Any, b: Any) -> Value:
    if a is not b and _is_callable(a) and _is_callable(b):
        return _one_of(a, b)
    if a.kind == b.kind == "optimizer" and a is not b:
        a.fields.setdefault("others", {})[id(b)] = b
    return a if a.kind == b.kind else unknown()


def _references(a: Any, b: Any) -> Value:
    if a.name == b.name:
        return a  # type: ignore[no-any-return]
    return _or_nothing(a, b) if NULL in (a.name, b.name) else _one_of(a, b)


def _unknowns(a: Any, b: Any) -> Value:
    """One of two unknown objects: a tensor has one of their dtypes."""
    if a.symbol is b.symbol:
        return a  # type: ignore[no-any-return]
    for one, other in ((a, b), (b, a)):
        for how in ("stated of", "bounds of"):
            before = one.symbol.attributes.get((how, ""))
            if before is not None and before.symbol is other.symbol:
                return other  # type: ignore[no-any-return]
    first, second = a.symbol, b.symbol
    vector = dtypes.join(first.vector, second.vector)
    made = Symbol(first.label, vector, first.assumptions | second.assumptions)
    made.uses, made.flags = first.uses & second.uses, first.flags | second.flags
    for one, other in ((a, b), (b, a)):
        before = one.symbol.attributes.get(("cast of", ""))
        if before is not None and before.symbol is other.symbol:
            made.node, made.home = one.symbol.node, one.symbol.home
            made.vector = dtypes.where_cast(vector, one.symbol.vector)
            made.attributes = {("cast of", ""): other}
    if first.tensor is not None and second.tensor is not None:
        tensor = _tensors(first.tensor, second.tensor)
        made.tensor = tensor if isinstance(tensor, Tensor) else None
    return Unknown(made)


def is_new(attributes: Mapping[Any, Value], name: Any) -> bool:
    """Whether an object had no attribute of a name, as far as it was asked for."""
    return name not in attributes and ("unknown", name) not in attributes


def perhaps_cast(value: Value) -> Value:
    """An attribute that one arm, or another method, alone stores: where it is cast, it may be as before."""
    if isinstance(value, Unknown):
        before = value.symbol.attributes.get(("cast of", ""))
        if before is not None:
            return join(value, before)
    return value


_SAME: Final[dict[type, Any]] = {
    Tensor: _tensors,
    Scalar: _scalars,
    Closure: _one_of,
    Array: _arrays,
    DtypeValue: _dtype_values,
    Sequence: _sequences,
    Table: _mappings,
    Instance: _instances,
    Special: _specials,
    Reference: _references,
    Unknown: _unknowns,
    RegionValue: _regions,
    ClassValue: _one_of,
}


def any_of(sequence: Sequence) -> Value | None:
    """One value that stands for all items; None: there are none."""
    if sequence.items is None:
        return sequence.element
    found: Value | None = None
    for item in sequence.items[:16]:
        found = item if found is None else join(found, item)
    return found


def facts(value: Value | None) -> tuple[Any, ...]:
    """What two values must agree in to be equal: everything but where they were made."""
    if isinstance(value, Tensor):
        return (
            "tensor", value.dtypes, value.lo, value.hi, value.assumptions, value.flags, value.op,
            value.rank, value.reach,
        )  # fmt: skip
    if isinstance(value, Scalar):
        return ("scalar", value.kind, value.value, value.lo, value.hi, value.op)
    if isinstance(value, (Array, DtypeValue)):
        return (value.__class__.__name__, value.dtypes)
    if isinstance(value, Sequence):
        if value.items is None:
            return ("elements", facts(value.element) if value.element is not None else None)
        return ("items", *(facts(item) for item in value.items[:16]))
    if isinstance(value, Table):
        other = facts(value.element) if value.element is not None else None
        return ("mapping", other, *((k, facts(v)) for k, v in value.items.items()))
    if isinstance(value, Instance):
        return ("instance", id(value.attributes), id(value.root), value.path)
    if isinstance(value, RegionValue):
        return ("region", value.dtypes, value.device, value.assumptions)
    if isinstance(value, Special):
        inside = value.fields["options"] if value.kind == "either" else ()
        inside = (value["of"],) if value.kind == "scope" else inside
        return ("special", value.kind, *(map(facts, inside) if inside else (id(value.node),)))
    if isinstance(value, Closure):
        return ("closure", id(value.function), value.optional)
    if isinstance(value, Reference):
        return ("reference", value.name)
    return (value.__class__.__name__,)


def widened(old: Value, new: Value) -> Value:
    """A loop's next value, with bounds that still move sent to infinity."""
    if isinstance(old, (Tensor, Scalar)) and isinstance(new, Tensor):
        lo = new.lo if new.lo >= old.lo else -INF
        hi = new.hi if new.hi <= old.hi else INF
        if (lo, hi) != (new.lo, new.hi):
            return new.but(lo=lo, hi=hi)
    elif isinstance(old, Scalar) and isinstance(new, Scalar) and new.is_number:
        lo = new.lo if new.lo >= old.lo else -INF
        hi = new.hi if new.hi <= old.hi else INF
        return Scalar(
            new.value, new.kind, lo, hi, new.assumptions, new.node, new.home, new.op, new.operands
        )
    return new


def join_all(values: list[Value | None]) -> Value:
    """The join of those that are there; of none: something unknown."""
    found: Value | None = None
    for value in values:
        if value is not None:
            found = value if found is None else join(found, value)
    return found if found is not None else unknown()
