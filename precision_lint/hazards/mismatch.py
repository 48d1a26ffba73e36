"""Tensors of two dtypes that meet: where that raises, and where it widens what was half."""

from __future__ import annotations

import ast
from collections import deque
from itertools import combinations
from typing import Any, Final, NamedTuple

from precision_lint.dataflow import bindings
from precision_lint.dataflow.creation import ASKED
from precision_lint.dataflow.graph import (
    behind,
    floats_behind,
    is_certain,
    may_be_number,
    peel,
)
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.objects import layer_of
from precision_lint.dataflow.tensors import Applied, hazard
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import (
    CODE,
    FLOAT32,
    FLOAT64,
    FLOATS,
    LOW,
    MODES,
    OTHER,
    WIDE,
    Dtypes,
)
from precision_lint.domains.values import (
    BROUGHT,
    BUFFER,
    DtypeValue,
    Instance,
    Sequence,
    Symbol,
    Tensor,
    Value,
    text,
)
from precision_lint.events import Link, Place
from precision_lint.hazards.arms import arms
from precision_lint.hazards.indices import index_kind, picks
from precision_lint.hazards.origins import (
    CAST,
    CREATED,
    MASK,
    NAMED,
    NUMPY,
    Origin,
    origin,
    parts,
)
from precision_lint.hazards.places import function_places, in_sight, made_at, operand_node
from precision_lint.hazards.zeros import transparent
from precision_lint.syntax.program import Function
from precision_lint.torchmodel import creation
from precision_lint.torchmodel.operations import operation

WRITES: Final = frozenset({
    "index_put", "index_add", "index_copy", "index_reduce", "scatter", "scatter_add", "scatter_reduce",
    "masked_scatter", "put", "lerp",
})  # fmt: skip
"""Operations that write one operand into another."""
PROMOTES: Final = (
    "add", "sub", "mul", "div", "cat", "stack", "hstack", "vstack", "where", "maximum", "minimum",
)  # fmt: skip


USED: Final = Symbol.FLOAT | Symbol.REAL
"""Uses of an unknown object that show that it is a tensor of floats."""
WEIGHTED: Final = (dtypes.HALF16, dtypes.HALFBF)


PRODUCTS: Final = frozenset({
    "matmul", "bmm", "mm", "mv", "einsum", "baddbmm", "addmm", "addbmm", "dot", "inner", "tensordot", "linear",
    "scaled_dot_product_attention", "conv1d", "conv2d", "conv3d", "bilinear", "linalg.multi_dot",
})  # fmt: skip


class Part(NamedTuple):
    """An operand of an operation: its position, its value (in one arm of a branch), its dtypes there."""

    at: int
    value: Tensor
    dtypes: Dtypes


class Pair(NamedTuple):
    """Two operands that part: the wider one and the other; the modes in which they do.

    assumptions: what that rests on, besides the two.  input: the wider one has the dtype of an input
    that autocast's region need not have made half.
    """

    wide: Part
    narrow: Part
    modes: int
    assumptions: int = 0
    input: bool = False


@hazard("*")
def parted(it: Interpreter, applied: Applied) -> None:
    """Operands of an operation that does not promote, in two dtypes."""
    strict = _strict(applied)
    if len(strict) < 2 or it.caught:
        return
    pair = _part_company(it, applied, strict)
    if pair is None:
        return
    wide, narrow = pair.wide.value, pair.narrow.value
    mode = _first(pair.modes)
    if applied.name in WRITES:
        _one_kind(wide, narrow, mode)
        _one_kind(narrow, wide, mode)
    came = origin(wide, mode)
    lowered = origin(narrow, mode)
    if came.kind in (CAST, MASK) and not pair.modes >> CODE & 1 and _is_of_own_class(it, narrow):
        return
    _as_if_cast(applied, pair)
    near = _mended_there(it, came)
    if not near:
        for one in behind(wide, 80):
            _retract(it, one)
    assumptions = (
        wide.assumptions
        | narrow.assumptions
        | pair.assumptions
        | _tested(it, applied)
        | index_kind(it, applied)
    )
    if applied.name not in WRITES and not pair.wide.dtypes[mode] & FLOAT64:
        _made_elsewhere(it, applied, pair, came, assumptions)
    it.emit(
        "dtype-mismatch",
        applied.node,
        pair.modes,
        assumptions,
        about=_floats(applied, wide, narrow),
        proof=USED,
        operation=applied.name,
        writes=applied.name in WRITES,
        wide=_place(it, applied, pair.wide.at),
        narrow=_place(it, applied, pair.narrow.at),
        wide_dtype=dtypes.describe(FLOAT32 if pair.input else pair.wide.dtypes[mode]),
        narrow_dtype=dtypes.describe(pair.narrow.dtypes[mode]),
        origin=came.kind,
        origin_at=made_at(it, came.value),
        origin_name=_written(came.value),
        direct=came.direct,
        near=near,
        lowered=lowered.kind,
        lowered_at=made_at(it, lowered.value),
        float64=bool(pair.wide.dtypes[mode] & FLOAT64),
        layer=_is_layer(applied) or applied.name not in PRODUCTS,
        among=_is_among(applied),
        backward=_function_of(it, pair.modes),
        into_narrow=pair.narrow.at == strict[0],
        into_buffer=pair.wide.at == strict[0] and bool(wide.flags & BUFFER),
    )


def _made_elsewhere(
    it: Interpreter, applied: Applied, pair: Pair, came: Origin, assumptions: int
) -> None:
    """Report a tensor where another file makes it in float32, and hands it or gives it back to what has half
    weights."""
    place = made_at(it, came.value) if came.kind in (CREATED, NUMPY) and came.direct else None
    layer = peel(pair.narrow.value).op == "weight"
    if place is None or not layer or place.path == it.place(applied.node).path:
        return
    if not pair.modes & it.live:
        return
    call = it.calls
    while call is not None and not _is_in(place, call.function):
        call = call.outer
    here, it.function = it.function, call.function if call is not None else None
    it.emit_at(
        "wide-input",
        place,
        pair.modes & it.live,
        assumptions,
        (Link("it goes in here", it.place(applied.node)),),
        _floats(applied, pair.wide.value, pair.narrow.value),
        USED,
        origin_name=_written(came.value),
        wide_dtype=dtypes.describe(pair.wide.dtypes[_first(pair.modes)]),
        narrow_dtype=dtypes.describe(pair.narrow.dtypes[_first(pair.modes)]),
    )
    it.function = here


def _is_in(place: Place, function: Function | None) -> bool:
    """Whether a place is in the text of a function."""
    if function is None or function.module.path != place.path:
        return False
    return function.node.lineno <= place.row <= (function.node.end_lineno or 0)


@hazard("*")
def of_other_half(it: Interpreter, applied: Applied) -> None:
    """What autocast promotes: it takes float32 and the region's dtype, and raises for the other half.

    One that is float32 before it in the order of operands makes float32 of all.
    """
    if applied.policy != "widest" or it.caught:
        return
    modes, found = 0, None
    for mode, region in enumerate(it.region.dtypes):
        if region not in (dtypes.FLOAT16, dtypes.BFLOAT16):
            continue
        for index, vector in sorted(applied.seen.items()):
            if vector[mode] == LOW ^ region and (found is None or found == index):
                found = index
                modes |= 1 << mode
            if vector[mode] not in (region, FLOAT64):
                break
    if found is None:
        return
    mode = _first(modes)
    it.emit(
        "other-half",
        applied.node,
        modes,
        it.region.assumptions | it.outside(applied),
        operation=applied.name,
        operand=_item(it, applied, found),
        dtype=dtypes.describe(applied.seen[found][mode]),
        region=dtypes.describe(it.region.dtypes[mode]),
    )


def _is_of_own_class(it: Interpreter, value: Tensor) -> bool:
    """Whether a method is at hand of a class that derives from a layer, and a value is such a layer's weight:
    where the class casts what the layer is given to float32, the weight is kept in float32, too."""
    cls = it.function.cls if it.function is not None else None
    layer = layer_of(it, cls) if cls is not None else ""
    value = peel(value)
    made = value.data if value.op == "weight" and isinstance(value.data, tuple) else ()
    return bool(layer) and made[:1] == (layer,)


def _item(it: Interpreter, applied: Applied, index: int) -> Place | None:
    """Where an operand is written, which may be an item of a list."""
    if not applied.operation.listed:
        return _place(it, applied, index)
    given = operand_node(applied.node, it.module, 0)
    items = given.elts if isinstance(given, (ast.List, ast.Tuple)) else []
    plain = index < len(items) and not any(isinstance(one, ast.Starred) for one in items)
    return it.place(items[index]) if plain else None


def _part_company(it: Interpreter, applied: Applied, strict: tuple[int, ...]) -> Pair | None:
    """Two operands of an operation whose dtypes differ: surely, in one arm of a branch, or behind a region."""
    parts = [
        Part(i, v, _seen(applied, i))
        for i in strict
        if (v := applied.tensor(i)) is not None and not _is_data(applied, i, v)
    ]
    if all(part.value.flags & BROUGHT for part in parts):
        return None  # to one dtype, if to any
    return (
        _pair(it, applied, parts) or _into_input(applied, parts) or _by_branch(it, applied, parts)
    )


def _is_data(applied: Applied, index: int, value: Tensor) -> bool:
    """Whether an operand is a loss's target as somebody handed it in, which does not follow a model; or
    the weight of ``lerp``, where nothing shows that it is no number."""
    if applied.name == "lerp" and applied.parameter(index) == "weight":
        return may_be_number(value)
    return applied.parameter(index) == "target" and peel(value).op == "input"


def _mended_there(it: Interpreter, came: Origin) -> bool:
    """Whether the dtype is mended where a tensor was made: what has the right one is in sight there,
    and nothing needs the bits of float32 in between."""
    created = came.kind in (CREATED, NUMPY)
    if came.curved and not created:
        return False
    if came.met is None:
        return created or in_sight(it, came.value)
    place = made_at(it, came.met)
    events = [it.events.get(("widened", place, n)) for n in range(len(parts(came.met)))]
    return any(event is not None and (created or event.facts["in_place"]) for event in events)


def _one_kind(value: Tensor, other: Tensor, mode: int) -> None:
    """A tensor that is stored into floats, or floats into it, holds floats: else nothing would run."""
    symbol = value.symbol
    if symbol is None or not symbol.uses & Symbol.TENSOR or other.dtypes[mode] & ~FLOATS:
        return
    if all(one.symbol is None for one in floats_behind(other)):
        symbol.uses |= Symbol.FLOAT


def _function_of(it: Interpreter, modes: int) -> tuple[Place, Place | None, Place | None] | None:
    """Where the ``autograd.Function`` stands whose backward this is, and where its methods begin.

    In a region the decorators that would bring it back change nothing.
    """
    cls = it.backward
    if cls is None or it.function is None or it.function.cls is not cls:
        return None
    if dtypes.regions_on(it.region.dtypes) & modes:
        return None
    return function_places(it, cls)


def _strict(applied: Applied) -> tuple[int, ...]:
    """The operands that must have one dtype."""
    if applied.name == "einsum" and not _contracts(text(applied.values[0])):
        return ()
    if applied.name in ("einsum", "chain_matmul", "linalg.multi_dot"):
        return tuple(applied.seen)
    if applied.name == "index_put":
        return (0, 2) if picks(applied.values[1] if len(applied.values) > 1 else None) else ()
    return applied.operation.strict


def _contracts(equation: str | None) -> bool:
    """Whether operands of an ``einsum`` share an index that is summed over; if not, it multiplies."""
    if equation is None:
        return False  # it is made at run time: an outer product, for all that is known
    if "->" not in equation:
        return True
    given, _, kept = equation.replace(" ", "").partition("->")
    terms = [set(term) - set(kept) for term in given.split(",")]
    return any(a & b for a, b in combinations(terms, 2))


def _as_if_cast(applied: Applied, pair: Pair) -> None:
    """What comes after an operation that raises is judged as if all had one dtype: that of weights."""
    if applied.name in WRITES:
        return
    kept = pair.wide if pair.wide.value.op == "weight" else pair.narrow
    applied.result.dtypes = tuple(
        kept.dtypes[mode] if pair.modes >> mode & 1 else one
        for mode, one in enumerate(applied.result.dtypes)
    )


def _seen(applied: Applied, index: int) -> Dtypes:
    value = applied.values[index]
    assert isinstance(value, Tensor)
    return applied.seen.get(index, value.dtypes)


def _pair(it: Interpreter, applied: Applied, parts: list[Part]) -> Pair | None:
    """The first two operands whose dtypes surely differ in some mode; a region that promotes helps."""
    promotes = applied.policy in ("widest", "banned")
    left = dtypes.ALL_MODES & ~(dtypes.regions_on(it.region.dtypes) if promotes else 0)
    writes = applied.name in WRITES
    for a in parts:
        for b in parts:
            if a.at >= b.at or (writes and b.value.rank == 0):
                continue  # behind a mask, a number is converted
            modes = dtypes.differing(a.dtypes, b.dtypes) & left
            if modes and not _comes_wide(a, b) and not _comes_wide(b, a):
                return _ordered(a, b, modes, 0)
    return None


def _comes_wide(made: Part, given: Part) -> bool:
    """Whether one is float64 as the code says, so that what comes in from outside is float64 there, too."""
    outside = given.value.dtypes[0] >= dtypes.ANY and given.value.assumptions & FROM_OUTSIDE
    return bool(outside) and FLOAT64 in made.dtypes


def _by_branch(it: Interpreter, applied: Applied, parts: list[Part]) -> Pair | None:
    """Two operands whose dtypes differ if a branch was taken that casts one of them."""
    casts = applied.policy is not None or applied.name not in WRITES
    left = dtypes.ALL_MODES & ~(dtypes.regions_on(it.region.dtypes) if casts else 0)
    for a in parts:
        for b in parts:
            if a.at == b.at or not dtypes.may_differ(a.dtypes, b.dtypes) & left:
                continue
            if b.value.assumptions & assume.BRANCH:
                continue  # the same branch may cast both
            either = arms(it, a.value)
            for arm in either:
                modes = dtypes.differing(arm.dtypes, b.dtypes) & dtypes.single(b.dtypes) & left
                modes &= ~_follows_mode(arm, either, b)
                if modes:
                    return _ordered(Part(a.at, arm, arm.dtypes), b, modes, assume.BRANCH)
    return None


def _follows_mode(arm: Tensor, either: tuple[Tensor, ...], other: Part) -> int:
    """The half modes in which the other arm casts to the dtype that is met, and this one nothing: it is
    taken where the model is half."""
    casts = [one for one in either if one is not arm and _is_cast(one)]
    halves = [
        mode for mode in WEIGHTED if any(one.dtypes[mode] & other.dtypes[mode] for one in casts)
    ]
    return 0 if _is_cast(arm) else sum(1 << mode for mode in halves)


def _ordered(a: Part, b: Part, modes: int, assumptions: int) -> Pair:
    """Two operands that part, the wider one first."""
    mode = _first(modes)
    wide_first = a.dtypes[mode] & WIDE and not a.dtypes[mode] & LOW
    if a.dtypes[mode] & WIDE and b.dtypes[mode] & WIDE and b.dtypes[mode] & FLOAT64:
        wide_first = False
    return Pair(a, b, modes, assumptions) if wide_first else Pair(b, a, modes, assumptions)


FROM_OUTSIDE: Final = assume.INPUT | assume.BATCH


def _into_input(applied: Applied, parts: list[Part]) -> Pair | None:
    """What a region makes half whatever comes in, stored into a tensor of an input's dtype.

    Inputs under autocast are half behind a product, and float32 behind a norm, a sum or a loader.
    """
    if applied.name not in WRITES or applied.policy in ("widest", "banned") or len(parts) < 2:
        return None
    into, given = parts[0].value, parts[1].value
    if given.rank == 0:
        return None
    if not into.assumptions & FROM_OUTSIDE or given.assumptions & FROM_OUTSIDE or _is_cast(given):
        return None
    low = dtypes.surely(into.dtypes, LOW) & dtypes.surely(given.dtypes, LOW) & dtypes.AMP_MODES
    return Pair(parts[0], parts[1], low, assume.BATCH, True) if low else None


def _is_cast(value: Any) -> bool:
    """Whether a tensor was cast last: what is done to its shape does not count."""
    value = peel(value)
    while isinstance(value, Tensor) and value.op != "cast" and transparent(value):
        value = peel(value.operands[0])
    return isinstance(value, Tensor) and value.op in ("cast", "bits", "join")


def _first(modes: int) -> int:
    return next(i for i in range(len(MODES)) if modes >> i & 1)


def _tested(it: Interpreter, applied: Applied) -> int:
    return it.outside(applied) if applied.operation.policy else 0


def _floats(applied: Applied, wide: Tensor, narrow: Tensor) -> Tensor | None:
    """The operand that has to be a tensor of floats; None: the other one proves it."""
    if applied.name != "index_put" and any(is_certain(one) for one in (wide, narrow)):
        return None
    return narrow if wide.symbol is None else wide


def _is_layer(applied: Applied) -> bool:
    weight = applied["weight"]
    return isinstance(weight, Tensor) and peel(weight).op == "weight"


def _is_among(applied: Applied) -> bool:
    """Whether a layer is called by the container that it is in."""
    weight = peel(applied["weight"]) if _is_layer(applied) else None
    layer = weight.data[2] if weight is not None and len(weight.data) > 2 else None
    last = layer.path[-1:] if isinstance(layer, Instance) else ()
    return any(name == "*" or name.isdecimal() for name in last)


def _place(it: Interpreter, applied: Applied, index: int) -> Place | None:
    """Where an operand is written; a layer's weights are not."""
    value = applied.values[index]
    if isinstance(value, Tensor) and value.op == "weight" and index:
        return None
    node: ast.AST | None = operand_node(applied.node, it.module, index, applied.parameter(index))
    if applied.name == "index_put" and isinstance(applied.node, ast.Assign):
        target = applied.node.targets[0]
        if index == 2:
            node = applied.node.value
        elif isinstance(target, ast.Subscript):
            node = target.value
    recurrent = applied.name == "recurrent"
    if _is_layer(applied) and (recurrent or index == 0) and isinstance(applied.node, ast.Call):
        node = _handed(applied.node, index)
    if applied.name == "model" and node is None and isinstance(applied.node, ast.Call):
        node = next((one.value for one in applied.node.keywords), None)
    return it.place(node) if node is not None else None


def _handed(node: ast.Call, index: int) -> ast.expr | None:
    """Where what a layer is given is written; the state of an RNN may be a pair."""
    at = min(index, 1)
    return node.args[at] if len(node.args) > at else None


def _written(value: Any) -> str:
    """The operation that made a tensor, as a word."""
    value = peel(value)
    return value.op if isinstance(value, Tensor) else ""


# promotion


@hazard(*PROMOTES)
def widened(it: Interpreter, applied: Applied) -> None:
    """A tensor that was made wide, for no reason of its own, promotes a half one."""
    if applied.inplace:
        _forget(it, applied.values[1] if len(applied.values) > 1 else None)  # it is cast back
        return
    met = [v for v in parts(applied.result) if isinstance(v, Tensor) and v.rank != 0]
    for number, wide in enumerate(met):
        for other in met:
            apart = wide is not other and (
                wide.dtypes != other.dtypes or FLOAT32 in wide.dtypes[dtypes.HALF16 :]
            )
            modes = _widening(it, wide, other) if apart else 0
            if not modes or _is_constant(other):
                continue
            came = origin(wide, _first(modes))
            if came.kind == NAMED and came.curved:
                continue
            if came.kind in (CREATED, NUMPY, NAMED, MASK) and came.direct:
                _widening_found(it, applied, came, wide, other, modes, number)
                break


def _is_constant(value: Any, depth: int = 8) -> bool:
    """Whether a tensor was made of numbers, in a dtype that is written: no activation is promoted with it."""
    value = peel(value)
    if not isinstance(value, Tensor):
        return False
    if creation.creation(value.op) is not None:
        follows = any(isinstance(one, DtypeValue) and one.source for one in value.operands)
        return value.data == ASKED and not follows
    known = operation(value.op)
    passes = value.op in ("argument", "view", "index", "pad") or (known and known.elementwise)
    made = [one for one in map(peel, value.operands) if isinstance(one, Tensor)]
    if not passes or depth == 0:
        return False
    return bool(made) and all(_is_constant(one, depth - 1) for one in made)


def _widening(it: Interpreter, wide: Tensor, other: Tensor) -> int:
    """Modes in which one tensor raises the dtype of another one for what comes next."""
    found = 0
    for mode, (a, b) in enumerate(zip(wide.dtypes, other.dtypes, strict=True)):
        if (a | b) & OTHER or not a or not b or a & ~FLOATS or b & ~FLOATS:
            continue
        if mode in WEIGHTED and a == b == FLOAT32 and not origin(other, mode).direct:
            b = _half_part(other, mode).dtypes[mode] & LOW or b  # half before it was widened itself
        doubles = a == FLOAT64 and not b & FLOAT64
        if mode == CODE and b == FLOAT32 and not dtypes.regions_on(it.region.dtypes) & 1:
            doubles = False  # nothing is half as written
        halves = not a & LOW and not b & ~LOW and not it.region.dtypes[mode]
        if doubles or (halves and mode not in (dtypes.AMP16, dtypes.AMPBF)):
            found |= 1 << mode
    return found


def _widening_found(
    it: Interpreter,
    applied: Applied,
    came: Origin,
    wide: Tensor,
    other: Tensor,
    modes: int,
    number: int,
) -> None:
    mode = _first(modes)
    half, rests_on = _half_part(other, mode), wide.assumptions | other.assumptions
    it.emit(
        "widened",
        applied.node,
        modes,
        rests_on if mode == CODE or rests_on & assume.WEIGHTS else rests_on | assume.INPUT,
        about=half,
        proof=USED,
        operation=applied.name,
        origin=came.kind,
        origin_at=made_at(it, came.value),
        origin_name=_written(came.value),
        origin_dtype=_named(came.value),
        wide_dtype=dtypes.describe(wide.dtypes[mode]),
        other_dtype=dtypes.describe(half.dtypes[mode]),
        other=_other_place(it, applied, other),
        float64=bool(wide.dtypes[mode] & FLOAT64),
        in_place=in_sight(it, came.value),
        key=number,
    )


def _half_part(value: Tensor, mode: int) -> Tensor:
    """A tensor that is half in a mode, or that of its operands which was before something widened it."""
    met = None if value.dtypes[mode] & LOW else origin(value, mode).met
    for one in parts(met) if met is not None else ():
        if isinstance(one, Tensor) and one.dtypes[mode] & LOW:
            return one
    return value


def _named(value: Any) -> str:
    """Where a creation or cast has its dtype from: ``default``, ``asked``, ``explicit``."""
    value = peel(value)
    return str(value.data) if isinstance(value, Tensor) else ""


def _other_place(it: Interpreter, applied: Applied, other: Tensor) -> Place | None:
    """Where the half operand is written."""
    node = applied.node
    if isinstance(node, ast.BinOp):
        left = applied.values[0]
        return it.place(node.left if peel(left) is other else node.right)
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], (ast.List, ast.Tuple)):
        first = applied.values[0]
        if isinstance(first, Sequence) and first.items is not None:
            for item, part in zip(node.args[0].elts, first.items, strict=False):
                if peel(part) is other:
                    return it.place(item)
    for index, value in enumerate(applied.values):
        if peel(value) is other:
            found = operand_node(node, it.module, index)
            return it.place(found) if found is not None else None
    return None


KEEPS: Final = frozenset({"cat", "stack", "join", "sum", "mean", "where", "index_put"})
"""Besides arithmetic and views: operations that go on with what they are given."""


@hazard("cast")
def brought_back(it: Interpreter, applied: Applied) -> None:
    """What is cast next was not widened for good."""
    _forget(it, applied.values[0])


def _forget(it: Interpreter, value: Any) -> None:
    """Withdraw that a tensor was widened on its way here."""
    for one in _arithmetic(value) if "widened" in it.kinds else ():
        _retract(it, one)


def _retract(it: Interpreter, value: Tensor) -> None:
    for number in range(len(parts(value))):
        it.retract("widened", value, number)


def summed_wide(it: Interpreter, target: ast.expr, value: Value, node: ast.AST) -> None:
    """``total = total + term`` in a loop, where the total is float32: it is kept so on purpose."""
    if not (it.nest and isinstance(target, ast.Name) and isinstance(value, Tensor)):
        return
    total = peel(it.variables.get(target.id))
    wide = isinstance(total, Tensor) and not any(one & LOW for one in total.dtypes)
    if wide and value.op in ("add", "sub") and peel(value.operands[0]) is total:
        term = peel(value.operands[1])
        unseen = getattr(term, "assumptions", 0) & (assume.NETWORK | assume.CALL)
        if not unseen:  # a model that is given the total meets it itself
            _retract(it, value)


bindings.STORED.append(summed_wide)


def _arithmetic(value: Any, limit: int = 24) -> list[Tensor]:
    """A tensor and those that it was made of by arithmetic and views, the nearest first."""
    found: list[Tensor] = []
    met: set[int] = set()
    pending = deque([peel(value)])
    while pending and len(found) < limit:
        one = pending.popleft()
        known = operation(one.op) if isinstance(one, Tensor) else None
        plain = known is not None and known.elementwise
        if not isinstance(one, Tensor) or id(one) in met:
            continue
        if plain or one.op in KEEPS or transparent(one):
            met.add(id(one))
            found.append(one)
            pending.extend(parts(one))
    return found


@hazard("sum", "mean", "mse_loss", "l1_loss", "smooth_l1_loss", "cross_entropy", "binary_cross_entropy",
        "binary_cross_entropy_with_logits", "nll_loss", "kl_div", "argmax", "gt", "lt",
        "ge", "le")  # fmt: skip
def measured(it: Interpreter, applied: Applied) -> None:
    """A loss, a metric or a comparison does not go into a layer: float32 is what one wants there."""
    ends = applied.name not in ("sum", "mean") or applied.result.rank == 0
    if ends:
        for value in applied.values[:2]:
            _forget(it, value)
