"""How close to zero a value comes in a precision mode, and what keeps it away.

``x + eps`` and ``x.clamp(min=eps)`` keep a value away from zero as far as the dtype in which they are
computed holds ``eps``.  A sigmoid, softmax or exponential is never 0 in exact arithmetic, but is 0 in
float16 below ``2**-25``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from precision_lint.dataflow.graph import alternatives, peel, same
from precision_lint.domains import assumptions as assume
from precision_lint.domains.dtypes import ANY, BFLOAT16, FLOAT16, LOW, OTHER
from precision_lint.domains.values import INF, NONZERO, STATED_BOUNDS, Scalar, Tensor, number
from precision_lint.hazards.rounding import rounded
from precision_lint.torchmodel.operations import operation

UNDERFLOW: Final = frozenset({
    "sigmoid", "softmax", "exp", "hardsigmoid", "gumbel_softmax", "exp2", "softmin", "softplus",
})  # fmt: skip
"""Operations whose results are positive, and round to 0 in half."""
INNER: Final = frozenset({
    "index", "element", "view", "output", "unbind", "cast", "clone", "mean", "amax", "max", "sum",
    "nansum", "cumsum", "dropout", "abs", "gather", "index_select", "median", "topk", "sort",
    "sqrt", "square", "std", "var", "norm", "linalg.norm", "linalg.vector_norm", "amin", "min",
    "interpolate", "avg_pool1d", "avg_pool2d", "adaptive_avg_pool2d", "identity",
})  # fmt: skip
"""Operations whose result is zero where (all of) their operand is, and positive where it is positive."""
NORMS: Final = frozenset({"norm", "linalg.norm", "linalg.vector_norm"})
SPREADS: Final = frozenset({"std", "var"})
"""Zero where all values are equal, whatever they are."""
ZEROS: Final = frozenset({
    "relu", "masked_fill", "dropout", "pad", "zeros", "zeros_like", "new_zeros", "sub", "one_hot", "tril",
    "triu", "threshold", "hardshrink", "softshrink", "relu6", "scatter",
})  # fmt: skip
"""Operations that make exact zeros, or may cancel to one."""
PRODUCTS: Final = frozenset({"matmul", "mm", "bmm", "mv", "dot"})
"""Zero where one of the operands is."""
DRAWN: Final = frozenset({"rand", "rand_like", "uniform"})
REFERENCE: Final = -1
"""In place of a mode: everything is computed in float32."""
TINY: Final = 1e-38
SMALLEST: Final = {FLOAT16: 2.0**-24, BFLOAT16: 2.0**-133}
"""The least positive numbers of the half dtypes."""


class Guard(NamedTuple):
    """What keeps a value away from zero.

    made: the sum or clamp.  base: what it guards.  epsilon: the constant.  source: where that is written.
    """

    made: Tensor
    base: Any
    epsilon: float
    source: Any


class Least(NamedTuple):
    """The least magnitude that a value may have in one mode.

    bound: that magnitude, after rounding.  base: what comes close to zero.  guard: the guard nearest to it.
    assumptions: what is needed for it to get there.  wide: a cast to a wider dtype after the guard.
    """

    bound: float
    base: Any
    guard: Guard | None
    assumptions: int
    wide: Tensor | None = None


def guard_of(value: Any) -> Guard | None:
    """The guard that a value is."""
    value = peel(value)
    if not isinstance(value, Tensor):
        return None
    operands = value.operands
    if value.op in ("add", "clamp", "clamp_min", "maximum", "max", "fmax") and len(operands) >= 2:
        for base, constant in ((operands[0], operands[1]), (operands[1], operands[0])):
            epsilon = _constant(constant)
            if epsilon is not None and 0 < epsilon <= 1 and isinstance(peel(base), Tensor):
                return Guard(value, peel(base), epsilon, constant)
    if value.op in ("masked_fill", "where", "index_put") and len(operands) >= 3:
        return _chosen(value, operands)
    return None


FILLED: Final = frozenset({"full", "full_like", "new_full", "tensor", "as_tensor", "new_tensor"})


def _constant(value: Any) -> float | None:
    """The number that a scalar is, or that fills a whole tensor."""
    known = number(value)
    if known is not None:
        return known
    value = peel(value)
    if isinstance(value, Tensor) and value.op in FILLED:
        if value.lo == value.hi and abs(value.lo) < INF:
            return value.lo
    if isinstance(value, Scalar) and value.op in (
        "finfo.eps",
        "finfo.tiny",
        "finfo.smallest_normal",
    ):
        return _limit(value)
    return None


LIMITS: Final = {"finfo.eps": 2.0**-23, "finfo.tiny": 2.0**-126, "finfo.smallest_normal": 2.0**-126}


def _limit(value: Scalar) -> float | None:
    """A limit of float32 (those of the tensor's own dtype protect it)."""
    vector = value.operands[0].dtypes if value.operands else ()
    if vector and all(one == 2 for one in vector):
        return LIMITS[value.op]
    if vector and all(one == 1 for one in vector):
        return 2.0**-52 if value.op == "finfo.eps" else 2.2250738585072014e-308
    return None


def _chosen(value: Tensor, operands: tuple[Any, ...]) -> Guard | None:
    """``where(x > eps, x, eps)``, ``x.masked_fill(x == 0, eps)`` and ``x[x == 0] = eps``."""
    choices = [(operands[0], operands[2], operands[1])]
    if value.op == "where":
        test = operands[0]
        choices = [(operands[1], operands[2], test), (operands[2], operands[1], test)]
    for base, fill, test in choices:
        epsilon = number(fill)
        tested = peel(test)
        if epsilon is None or not 0 < epsilon <= 1 or not isinstance(peel(base), Tensor):
            continue
        if isinstance(tested, Tensor) and tested.op in ("gt", "ge", "eq", "lt", "le"):
            if any(same(one, base) for one in tested.operands):
                return Guard(value, peel(base), epsilon, fill)
    return None


def guards(value: Any, depth: int = 8) -> Iterator[Guard]:
    """The guards on the way from a value to what they guard."""
    for one in alternatives(value):
        if not isinstance(one, Tensor) or not depth:
            continue
        guard = guard_of(one)
        if guard is not None:
            yield guard
            yield from guards(guard.base, depth - 1)
        elif transparent(one):
            yield from guards(one.operands[0], depth - 1)
        elif one.op in ("div", "mul"):
            for part in one.operands[:2]:
                yield from guards(part, depth - 1)


def transparent(value: Tensor) -> bool:
    """Whether a value is zero where its first operand is."""
    if not value.operands or not isinstance(peel(value.operands[0]), Tensor):
        return False
    if value.op in INNER:
        return True
    known = operation(value.op)
    return known is not None and known.view


WHOLE: Final = frozenset({
    "sum", "nansum", "mean", "amax", "max", "abs", "sqrt", "square", "cast", "clone", "neg", "identity", *NORMS,
    *SPREADS,
})  # fmt: skip
"""Operations of whose operand all is zero where the result is, as far as a guard by ``+ eps`` believes."""
MULTIPLE: Final = frozenset({"div", "square", "pow", "sqrt", "neg", "masked_fill"})


def vanish_together(over: Any, under: Any, spread: bool = False, depth: int = 8) -> bool:
    """Whether a numerator is zero wherever its denominator is: ``x / x.norm()``, ``(x - mean) / std``.

    spread: whether the denominator is zero where what is given is the same everywhere.
    """
    under = peel(under)
    if not isinstance(under, Tensor) or not depth:
        return False
    if _is_part(over, under, spread, depth):
        return True
    parts = [peel(one) for one in under.operands[:2]]
    if under.op == "add" and all(isinstance(one, Tensor) and one.lo >= 0 for one in parts):
        return any(vanish_together(over, one, spread, depth - 1) for one in parts)
    if under.op in WEIGHED and _weigh_alike(peel(over), under):
        return True
    if under.op == "sub":
        found = list(_extremes(under))
        return any(_is_part(over, one, way, depth) for one in found for way in (False, True))
    known = operation(under.op)
    scaled = under.op == "div" or (under.op == "mul" and number(under.operands[1]) is not None)
    if under.op in WHOLE or scaled or (known is not None and known.view):
        spread = spread or under.op in SPREADS
        return bool(parts) and vanish_together(over, parts[0], spread, depth - 1)
    return False


WEIGHED: Final = PRODUCTS | {"mul", "einsum"}


def _weigh_alike(over: Any, under: Tensor) -> bool:
    """Whether both are sums with the same weights, of which none is negative: linear attention."""
    if not isinstance(over, Tensor) or over.op not in WEIGHED:
        return False
    factors = [
        [peel(one) for one in made.operands if isinstance(peel(one), Tensor)]
        for made in (over, under)
    ]
    return all(one.lo >= 0 for one in factors[1]) and any(
        same(one, other) for one in factors[0] for other in factors[1]
    )


def _extremes(value: Any, depth: int = 10) -> Iterator[Tensor]:
    """The tensors of whose largest and smallest values a value is computed: the step of a quantisation."""
    for one in alternatives(value) if depth else ():
        inner = peel(one)
        if not isinstance(inner, Tensor) or not inner.operands:
            continue
        first = peel(inner.operands[0])
        if inner.op in ("max", "amax", "min", "amin") and isinstance(first, Tensor):
            yield first
        elif inner.op in SCALING or transparent(inner):
            for part in inner.operands[:2]:
                yield from _extremes(part, depth - 1)


SCALING: Final = frozenset({
    "sub", "add", "mul", "div", "neg", "clamp", "clamp_min", "clamp_max", "maximum", "minimum", "index_put",
})  # fmt: skip


def _is_part(value: Any, base: Tensor, spread: bool, depth: int) -> bool:
    """Whether a value is zero where another one is; spread: where that is the same everywhere."""
    value = peel(value)
    if not isinstance(value, Tensor) or not depth:
        return False
    if not spread and (value is base or same(value, base)):
        return True
    if value.op in ("add", "sub", "join"):
        within = spread and value.op == "sub"
        return all(
            _is_part(one, base, spread and not within, depth - 1) for one in value.operands[:2]
        )
    if value.op == "mul":
        return any(_is_part(one, base, spread, depth - 1) for one in value.operands[:2])
    if value.op.startswith("clamp") and 0.0 in (value.lo, value.hi):
        return _is_part(value.operands[0], base, spread, depth - 1)
    return (value.op in MULTIPLE or transparent(value)) and _is_part(
        value.operands[0], base, spread, depth - 1
    )


def least(value: Any, mode: int, depth: int = 10) -> Least:
    """How close to zero a value comes in a mode, or in the REFERENCE."""
    found: Least | None = None
    for one in alternatives(value):
        this = _least(one, mode, depth)
        if found is None or this.bound < found.bound:
            found = this
    assert found is not None
    return found


def low_dtype(value: Any, mode: int) -> int:
    """The half dtype that a value is known to have in a mode; 0: none."""
    if mode == REFERENCE or not isinstance(value, Tensor):
        return 0
    dtype = value.dtypes[mode]
    if dtype & OTHER or dtype > ANY or not dtype & LOW:
        return 0
    return FLOAT16 if dtype & FLOAT16 else BFLOAT16


def _least(value: Any, mode: int, depth: int) -> Least:
    if not isinstance(value, Tensor):
        return Least(_of_number(value, mode), value, None, 0)
    low = low_dtype(value, mode)
    if value.flags & (STATED_BOUNDS | NONZERO) and (stated := _stated(value, low)) is not None:
        return stated
    guard = guard_of(value) if depth else None
    if guard is not None:
        return _guarded(value, guard, low, mode, depth)
    if depth and transparent(value):
        inner = least(value.operands[0], mode, depth - 1)
        if value.op == "sum" and _sums_to_one(value):
            return Least(1.0, value, None, 0)
        if value.op == "cast" and not low and low_dtype(peel(value.operands[0]), mode):
            inner = inner._replace(wide=value)
        if value.op in SPREADS:
            inner = Least(0.0, value, None, 0)
        elif value.op in NORMS:
            inner = inner._replace(base=value)
        bound = inner.bound if value.lo <= 0 else max(value.lo, inner.bound)
        return inner._replace(bound=rounded(bound, low) if low else bound)
    if depth and value.op in ("div", "mul", "add") and len(value.operands) > 1:
        return _combined(value, low, mode, depth)
    return _intrinsic(value, low, depth)


def _stated(value: Tensor, low: int) -> Least | None:
    """How close to zero a value comes of which the user says so: as it is held, not before rounding."""
    smallest = SMALLEST.get(low, TINY)
    if value.flags & STATED_BOUNDS and (value.lo > 0 or value.hi < 0):
        bound = value.lo if value.lo > 0 else -value.hi
        return Least(max(rounded(bound, low) if low else bound, smallest), value, None, 0)
    return Least(smallest, value, None, 0) if value.flags & NONZERO else None


OWN: Final = {
    "finfo.eps": {FLOAT16: 2.0**-10, BFLOAT16: 2.0**-7},
    "finfo.tiny": {FLOAT16: 2.0**-14, BFLOAT16: 2.0**-126},
    "finfo.smallest_normal": {FLOAT16: 2.0**-14, BFLOAT16: 2.0**-126},
}
"""Limits of a dtype, where that is half."""


def _of_number(value: Any, mode: int) -> float:
    """The least that a Python number may be."""
    if not isinstance(value, Scalar):
        return 0.0
    if value.op in OWN:
        dtype = value.operands[0].dtypes[mode] if mode != REFERENCE and value.operands else 0
        return OWN[value.op].get(dtype, LIMITS[value.op])
    return max(value.lo, 0.0)


def _guarded(value: Tensor, guard: Guard, low: int, mode: int, depth: int) -> Least:
    inner = least(guard.base, mode, depth - 1)
    epsilon = rounded(guard.epsilon, low) if low else guard.epsilon
    bound = inner.bound + epsilon if value.op == "add" else max(inner.bound, epsilon)
    if low:
        bound = rounded(bound, low)
    nearest = guard if inner.guard is None or inner.bound > 0 else inner.guard
    written = inner.assumptions & ~assume.ZERO  # whoever guards a value has seen it at zero
    return Least(bound, inner.base, nearest, written, inner.wide)


def _sums_to_one(value: Tensor) -> bool:
    """A sum of a softmax, or of exponentials from which the largest was subtracted."""
    inner = peel(value.operands[0])
    if not isinstance(inner, Tensor):
        return False
    if inner.op in ("softmax", "gumbel_softmax"):
        return True
    return inner.op == "exp" and bool(inner.operands) and below_own_maximum(inner.operands[0])


MAXIMA: Final = frozenset({"max", "amax", "logsumexp", "cummax"})


def below_own_maximum(value: Any) -> bool:
    """Whether a value is some tensor less its maximum."""
    value = peel(value)
    if not isinstance(value, Tensor) or value.op != "sub" or len(value.operands) < 2:
        return False
    taken = peel(value.operands[1])
    while isinstance(taken, Tensor) and taken.op in (
        "detach",
        "output",
        "view",
        "unsqueeze",
        "index",
    ):
        taken = peel(taken.operands[0])
    if not isinstance(taken, Tensor) or taken.op not in MAXIMA:
        return False
    return same(taken.operands[0], value.operands[0])


def _combined(value: Tensor, low: int, mode: int, depth: int) -> Least:
    """A quotient, a product, or a sum of two tensors."""
    first, second = value.operands[:2]
    a = least(first, mode, depth - 1)
    if value.op == "div":
        if a.bound <= 0:
            return a
        hi = second.hi if isinstance(second, (Tensor, Scalar)) else INF
        bound = a.bound / hi if 0 < hi < INF else min(a.bound, TINY)
        return a._replace(bound=rounded(bound, low) if low else bound)
    b = least(second, mode, depth - 1)
    if value.op == "mul":
        smaller = a if a.bound <= b.bound else b
        bound = a.bound * b.bound
        return smaller._replace(bound=rounded(bound, low) if low else bound)
    if value.lo < 0 and not (_nonnegative(first) and _nonnegative(second)):
        return _intrinsic(value, low, depth)
    smaller = a if isinstance(a.base, Tensor) else b
    bound = a.bound + b.bound
    both = a.assumptions | b.assumptions
    return smaller._replace(bound=rounded(bound, low) if low else bound, assumptions=both)


def _nonnegative(value: Any) -> bool:
    return isinstance(value, (Tensor, Scalar)) and value.lo >= 0


def _intrinsic(value: Tensor, low: int, depth: int) -> Least:
    """How close to zero an operation's result comes by its nature."""
    if value.lo > 0:
        return Least(rounded(value.lo, low) if low else value.lo, value, None, 0)
    if value.hi < 0:
        return Least(-value.hi, value, None, 0)
    if value.op in UNDERFLOW:
        return Least(0.0 if low == FLOAT16 else TINY, value, None, 0)
    if value.op in ZEROS:
        return Least(0.0, value, None, 0)
    if value.op in DRAWN and value.lo <= 0:
        return Least(0.0 if low else TINY, value, None, 0)
    if value.lo == 0 and value.op != "input":
        return Least(0.0, value, None, 0)
    supposed = assume.ZERO
    if value.op in PRODUCTS:
        for one in value.operands[:2]:
            supposed &= least(one, REFERENCE, depth - 1).assumptions if depth else supposed
    return Least(0.0, value, None, supposed)
