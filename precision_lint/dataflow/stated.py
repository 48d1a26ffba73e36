"""What users state of values: in comments, assertions and annotations.

A stated dtype holds in every mode and takes the place of what was assumed of it.  What the code proves
stays: a fact that contradicts it is told, and not applied.
"""

from __future__ import annotations

import ast
from typing import Any, Final, NamedTuple

from precision_lint.dataflow import casts, objects
from precision_lint.dataflow.graph import peel
from precision_lint.dataflow.interpreter import STATEMENTS, Interpreter, tensor_of
from precision_lint.dataflow.tensors import KEYS
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import Dtypes
from precision_lint.domains.values import (
    INF,
    NONZERO,
    PARAMETER,
    REGIONAL,
    STATED_BOUNDS,
    STATED_DTYPE,
    Array,
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
from precision_lint.syntax.stated import (
    EVENT,
    KNOWN,
    NAMELESS,
    NEW,
    REFUTED,
    UNFIT,
    UNREADABLE,
    Stated,
)

ABOUT_SIZE: Final = assume.MAGNITUDE | assume.SIZE | assume.ZERO | assume.NAME
"""Assumptions that do not concern a dtype."""
AS_WRITTEN: Final = assume.INPUT | assume.ENTRY | assume.WEIGHTS | assume.BATCH
"""Assumptions that say nothing of the code as it is written."""


class Outcome(NamedTuple):
    """The value that a fact makes of another one, what comes of it, and what is proved instead."""

    value: Value
    said: str
    proved: str = ""


# dtypes


def with_dtype(it: Interpreter, value: Value, wanted: Dtypes, node: ast.AST | None) -> Outcome:
    """A value of which the dtype is stated; ``node``: where."""
    if isinstance(value, Unknown):
        return _unknown_of(it, value, wanted, node)
    if isinstance(value, Instance):
        return _module_of(it, value, wanted, node)
    if isinstance(value, (Sequence, Table)):
        return _each(value, lambda one: with_dtype(it, one, wanted, node))
    if not isinstance(value, (Tensor, Array, DtypeValue)):
        return Outcome(value, UNFIT)
    assumptions = getattr(value, "assumptions", 0)
    if isinstance(value, Tensor) and value.flags & PARAMETER:
        assumptions |= assume.CALL  # its module may be cast elsewhere
    if proved := refuted(value.dtypes, wanted, assumptions):
        return Outcome(value, REFUTED, proved)
    if isinstance(value, Tensor):
        return _tensor_of(value, wanted)
    said = KNOWN if value.dtypes == wanted and not assumptions else NEW
    if isinstance(value, DtypeValue):
        return Outcome(DtypeValue(wanted, value.node, value.home), said)
    made = Array(
        wanted, value.op, value.operands, value.node, value.home, value.lo, value.hi
    )  # fmt: skip
    return Outcome(made, said)


def refuted(vector: Dtypes, wanted: Dtypes, assumptions: int) -> str:
    """The dtype that the code proves instead of another one; empty: it does not."""
    code = vector[dtypes.CODE]
    if code & dtypes.OTHER or not code or code & wanted[dtypes.CODE]:
        return ""
    return "" if assumptions & ~AS_WRITTEN else dtypes.describe(code & dtypes.ANY)


def _tensor_of(value: Tensor, wanted: Dtypes) -> Outcome:
    kept = value.assumptions & ABOUT_SIZE
    if value.symbol is not None:
        value.symbol.uses |= Symbol.TENSOR | _use(wanted)
    moves = value.flags & (PARAMETER | STATED_DTYPE) == PARAMETER  # it is cast with its module
    if value.dtypes == wanted and value.assumptions == kept and not moves:
        return Outcome(value, KNOWN)
    flags = value.flags & ~REGIONAL | STATED_DTYPE
    return Outcome(copied(value, dtypes=wanted, assumptions=kept, symbol=None, flags=flags), NEW)


def copied(value: Tensor, **changes: Any) -> Tensor:
    """A value of which more is known, also to who looks through calls (``graph.peel``)."""
    made = peel(value)
    return value.but(op=made.op, data=made.data, operands=made.operands or (value,), **changes)


def _use(wanted: Dtypes) -> int:
    return Symbol.FLOAT if wanted[dtypes.CODE] & dtypes.FLOATS else 0


def _unknown_of(it: Interpreter, value: Unknown, wanted: Dtypes, node: ast.AST | None) -> Outcome:
    """A tensor, a model or a batch: all of it is of that dtype."""
    symbol = value.symbol
    if symbol.vector == wanted and not symbol.assumptions:
        return Outcome(value, KNOWN)
    if proved := refuted(symbol.vector, wanted, symbol.assumptions):
        return Outcome(value, REFUTED, proved)
    symbol.uses |= _use(wanted)
    if symbol.uses & Symbol.TENSOR:
        tensor = tensor_of(it, value, node)
        assert tensor is not None
        return _tensor_of(tensor, wanted)
    made = Unknown(Symbol(symbol.label, wanted, 0, node, it.module))
    made.symbol.uses = symbol.uses
    made.symbol.attributes = {("cast of", ""): value, ("stated of", ""): value}
    return Outcome(made, NEW)


def _module_of(it: Interpreter, value: Instance, wanted: Dtypes, node: ast.AST | None) -> Outcome:
    """A model, whose weights are all of that dtype."""
    if not objects.is_module(it, value.cls) or node is None:
        return Outcome(value, UNFIT)
    weights, cast = objects.weights_of(it, value)
    if cast is not None and (proved := refuted(weights, wanted, 0)):
        return Outcome(value, REFUTED, proved)  # what is not cast here may be cast elsewhere
    if weights == wanted:
        return Outcome(value, KNOWN)
    casts.cast_module(it, value, wanted, node)
    return Outcome(value, NEW)


def _each(value: Sequence | Table, state: Any) -> Outcome:
    """The same of each item of a container."""
    said: list[Outcome] = []

    def one(item: Value | None) -> Value | None:
        if item is None:
            return None
        said.append(state(item))
        return said[-1].value

    made: Value
    if isinstance(value, Table):
        items = {key: one(item) or item for key, item in value.items.items()}
        made = Table(items, one(value.element))
    else:
        parts = None if value.items is None else tuple(one(item) or item for item in value.items)
        made = Sequence(parts, one(value.element), value.kind)
    worst = min(said, key=lambda o: RANK.index(o.said), default=Outcome(value, UNFIT))
    return Outcome(made, worst.said, worst.proved)


RANK: Final = (REFUTED, NEW, KNOWN, UNFIT)


# bounds


def with_bounds(
    it: Interpreter, value: Value, lo: float, hi: float, nonzero: bool = False
) -> Outcome:
    """A value of which bounds are stated."""
    if isinstance(value, (Sequence, Table)):
        return _each(value, lambda one: with_bounds(it, one, lo, hi, nonzero))
    if isinstance(value, Unknown):
        return _unknown_within(it, value, lo, hi, nonzero)
    if isinstance(value, Scalar) and value.is_number:
        return _number_within(value, lo, hi, nonzero)
    if isinstance(value, Tensor):
        return _tensor_within(value, lo, hi, nonzero)
    return Outcome(value, UNFIT)


def _within(
    value: Tensor | Scalar, lo: float, hi: float, nonzero: bool, whole: bool
) -> tuple[float, float]:
    """The bounds that are known and stated together; the first above the second: none are left."""
    lo, hi = max(value.lo, lo), min(value.hi, hi)
    if nonzero and whole:
        lo, hi = 1 if lo == 0 else lo, -1 if hi == 0 else hi
    if nonzero and lo == hi == 0:
        return INF, -INF
    return lo, hi


def _number_within(value: Scalar, lo: float, hi: float, nonzero: bool) -> Outcome:
    both = _within(value, lo, hi, nonzero, value.kind == "int")
    if both[0] > both[1]:
        if not value.assumptions:
            return Outcome(value, REFUTED, interval(value.lo, value.hi))
        both = (lo, hi)
    elif both == (value.lo, value.hi):
        return Outcome(value, KNOWN)
    kept = value.assumptions & ~assume.DEFAULT
    made = Scalar(
        None, value.kind, *both, kept, value.node, value.home, value.op, value.operands
    )  # fmt: skip
    return Outcome(made, NEW)


def _tensor_within(value: Tensor, lo: float, hi: float, nonzero: bool) -> Outcome:
    whole = value.dtypes == dtypes.V_INTEGER
    both = _within(value, lo, hi, nonzero, whole)
    if both[0] > both[1]:
        if not value.assumptions & ~AS_WRITTEN:
            return Outcome(value, REFUTED, interval(value.lo, value.hi))
        both = (lo, hi)
    apart = nonzero and both[0] <= 0 <= both[1]
    if both == (value.lo, value.hi) and (not apart or value.flags & NONZERO):
        return Outcome(value, KNOWN)
    reach = min(value.reach, max(abs(both[0]), abs(both[1])))
    flags = value.flags | STATED_BOUNDS | (NONZERO if apart else 0)
    return Outcome(copied(value, lo=both[0], hi=both[1], reach=reach, flags=flags), NEW)


def _unknown_within(
    it: Interpreter, value: Unknown, lo: float, hi: float, nonzero: bool
) -> Outcome:
    """An unknown object, which has bounds if it is a tensor."""
    symbol = value.symbol
    tensor = tensor_of(it, value)
    assert tensor is not None
    outcome = _tensor_within(tensor, lo, hi, nonzero)
    if outcome.said != NEW or not isinstance(outcome.value, Tensor):
        return outcome._replace(value=value)
    made = Symbol(symbol.label, symbol.vector, symbol.assumptions, symbol.node, symbol.home)
    made.uses, made.flags = symbol.uses, symbol.flags
    made.attributes = {**symbol.attributes, ("bounds of", ""): value}
    made.tensor = outcome.value
    if tensor.symbol is not None:
        made.tensor = outcome.value.but(symbol=made)
    return outcome._replace(value=Unknown(made))


def interval(lo: float, hi: float) -> str:
    """Bounds in words."""
    if lo == hi:
        return f"{lo:g}"
    left = "(-inf" if lo == -INF else f"[{lo:g}"
    return f"in {left}, inf)" if hi == INF else f"in {left}, {hi:g}]"


def is_stated(value: Value) -> bool:
    """Whether a dtype or bounds were stated of a value."""
    if isinstance(value, Tensor):
        return bool(value.flags & (STATED_DTYPE | STATED_BOUNDS | NONZERO))
    if isinstance(value, Unknown):
        return any((how, "") in value.symbol.attributes for how in ("stated of", "bounds of"))
    return False


# names


def keep(it: Interpreter, target: ast.expr, value: Value) -> bool:
    """Let a name stand for another value from here on; False: nothing can be kept of it."""
    if isinstance(target, ast.Name):
        it.variables[target.id] = value
        return True
    if not isinstance(target, ast.Attribute):
        return False
    owner = it.expr(target.value)
    if isinstance(owner, Instance):
        it.variables[objects.slot(owner.attributes, target.attr)] = value
    elif isinstance(owner, Unknown):
        it.variables[("of", owner.symbol.number, target.attr)] = value
    elif isinstance(owner, Special) and target.attr in owner.fields:
        owner.fields[target.attr] = value
    else:
        return False
    return True


def _is_bound(it: Interpreter, target: ast.expr) -> bool:
    while isinstance(target, ast.Attribute):
        target = target.value
    name = getattr(target, "id", "")
    if name in it.variables or (it.outer is not None and name in it.outer):
        return True
    return it.program.global_of(it, it.module, name) is not None


def _apply(it: Interpreter, fact: Stated) -> Outcome | str:
    if fact.kind and fact.kind not in KEYS:
        return UNREADABLE
    if not _is_bound(it, fact.target):
        return NAMELESS
    value = it.expr(fact.target)
    if fact.kind:
        outcome = with_dtype(it, value, dtypes.everywhere(KEYS[fact.kind]), fact)
    else:
        outcome = with_bounds(it, value, fact.lo, fact.hi, fact.nonzero)
    if outcome.said == NEW and not keep(it, fact.target, outcome.value):
        return UNFIT
    return outcome


def _stated(it: Interpreter, fact: Stated) -> bool:
    outcome = _apply(it, fact)
    said, proved = (outcome, "") if isinstance(outcome, str) else outcome[1:]
    it.emit(EVENT, fact, dtypes.ALL_MODES, 0, key=said, proved=proved)
    return False


STATEMENTS[Stated] = _stated

__all__ = [
    "ABOUT_SIZE", "EVENT", "KNOWN", "NAMELESS", "NEW", "REFUTED", "UNFIT", "UNREADABLE", "Outcome",
    "copied", "interval", "is_stated", "keep", "refuted", "with_bounds", "with_dtype",
]  # fmt: skip
