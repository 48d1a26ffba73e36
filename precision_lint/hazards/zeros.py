"""How close to zero a value comes in a precision mode, and what keeps it away.

``x + eps`` and ``x.clamp(min=eps)`` keep a value away from zero as far as the dtype in which they are
computed holds ``eps``.  A sigmoid, softmax or exponential is never 0 in exact arithmetic, but is 0 in
float16 below ``2**-25``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from precision_lint.dataflow.graph import alternatives, peel
from precision_lint.domains import assumptions as assume
from precision_lint.domains.dtypes import ANY, FLOAT16, LOW, OTHER
from precision_lint.domains.values import Scalar, Tensor, number
from precision_lint.hazards.rounding import VANISHES, rounded

UNDERFLOW = frozenset({"sigmoid", "softmax", "exp", "hardsigmoid", "gumbel_softmax", "exp2", "softmin"})
"""Operations whose results are positive, and round to 0 in half."""
SETTLED = frozenset({"index", "element", "view", "output", "unbind"})


class Guard(NamedTuple):
    """What keeps a value away from zero.

    made: the sum or clamp.  base: what it guards.  epsilon: the constant, and where it is written.
    """

    made: Tensor
    base: Any
    epsilon: float
    source: Any


class Least(NamedTuple):
    """The least magnitude that a value may have in one mode.

    bound: that magnitude, after rounding.  base: what comes close to zero.  guard: the innermost guard on
    the way.  assumptions: what is needed for it to get there.
    """

    bound: float
    base: Any
    guard: Guard | None
    assumptions: int


def guard_of(value: Any) -> Guard | None:
    """The guard that a value is."""
    value = peel(value)
    if not isinstance(value, Tensor):
        return None
    operands = value.operands
    if value.op == "add" and len(operands) >= 2:
        for base, constant in ((operands[0], operands[1]), (operands[1], operands[0])):
            epsilon = number(constant)
            if epsilon is not None and 0 < epsilon <= 1 and isinstance(peel(base), Tensor):
                return Guard(value, peel(base), epsilon, constant)
    if value.op in ("clamp", "clamp_min", "maximum", "fmax") and len(operands) >= 2:
        for base, constant in ((operands[0], operands[1]), (operands[1], operands[0])):
            epsilon = number(constant)
            if epsilon is not None and 0 < epsilon <= 1 and isinstance(peel(base), Tensor):
                return Guard(value, peel(base), epsilon, constant)
    if value.op in ("masked_fill", "where") and len(operands) >= 3:
        return _chosen(value, operands)
    return None


def _chosen(value: Tensor, operands: tuple[Any, ...]) -> Guard | None:
    """``where(x > eps, x, eps)`` and ``x.masked_fill(x == 0, eps)``."""
    fill = operands[2]
    base = operands[1] if value.op == "where" else operands[0]
    test = peel(operands[0] if value.op == "where" else operands[1])
    epsilon = number(fill)
    if epsilon is None or not 0 < epsilon <= 1 or not isinstance(peel(base), Tensor):
        return None
    if not isinstance(test, Tensor) or test.op not in ("gt", "ge", "eq", "lt", "le"):
        return None
    return Guard(value, peel(base), epsilon, fill)


REFERENCE = -1
"""In place of a mode: everything is computed in float32."""


def least(value: Any, mode: int, depth: int = 8) -> Least:
    """How close to zero a value comes in a mode, or in the REFERENCE."""
    found: Least | None = None
    for one in alternatives(value):
        this = _least(one, mode, depth)
        if found is None or this.bound < found.bound:
            found = this
    assert found is not None
    return found


def _least(value: Any, mode: int, depth: int) -> Least:
    if not isinstance(value, Tensor):
        known = isinstance(value, Scalar) and value.lo > 0
        return Least(value.lo if known else 0.0, value, None, 0)
    low = _single_low(value.dtypes[mode]) if mode != REFERENCE else 0
    guard = guard_of(value) if depth else None
    if guard is not None:
        inner = least(guard.base, mode, depth - 1)
        epsilon = rounded(guard.epsilon, low) if low else guard.epsilon
        bound = inner.bound + epsilon if value.op == "add" else max(inner.bound, epsilon)
        if low:
            bound = rounded(bound, low)
        return Least(bound, inner.base, guard if inner.guard is None else inner.guard, inner.assumptions)
    if value.op in SETTLED or value.op in ("cast", "clone", "reshape", "mean", "dropout"):
        if value.operands and isinstance(peel(value.operands[0]), Tensor) and depth:
            inner = least(value.operands[0], mode, depth - 1)
            bound = rounded(inner.bound, low) if low else inner.bound
            return inner._replace(bound=bound)
    return _intrinsic(value, low)


def _intrinsic(value: Tensor, low: int) -> Least:
    """How close to zero an operation's result comes by its nature."""
    if value.lo > 0:
        bound = rounded(value.lo, low) if low else value.lo
        return Least(bound, value, None, 0)
    if value.hi < 0:
        return Least(-value.hi, value, None, 0)
    if value.op in UNDERFLOW:
        return Least(0.0 if low == FLOAT16 else 1e-38, value, None, 0)
    if value.op in ("rand", "rand_like", "uniform"):
        return Least(0.0, value, None, 0)
    return Least(0.0, value, None, assume.ZERO)


def _single_low(dtype: int) -> int:
    """The half dtype of a set, if it is known to be possible; 0: none."""
    if dtype & OTHER or dtype > ANY or not dtype & LOW:
        return 0
    return FLOAT16 if dtype & FLOAT16 else dtype & LOW


def vanishes(epsilon: float) -> bool:
    """Whether a guard rounds to 0 in float16."""
    return epsilon <= VANISHES
