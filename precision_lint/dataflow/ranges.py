"""Interval transfer functions: bounds of an operation's result from those of its operands."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from precision_lint.dataflow.graph import is_op, peel, same
from precision_lint.domains.values import INF, Array, Scalar, Sequence, Tensor, Value, number

Bounds = tuple[float, float]
ALL: Bounds = (-INF, INF)


def bounds_of(value: Value | None) -> Bounds:
    """Bounds of a tensor or a number."""
    if isinstance(value, (Tensor, Scalar)):
        return value.lo, value.hi
    return ALL


def after_store(old: Bounds, value: Value | None) -> Bounds:
    """Bounds of numbers of which some were given another value."""
    if isinstance(value, Sequence) and value.items:
        return hull(*[after_store(old, one) for one in value.items])
    return hull(old, (value.lo, value.hi) if isinstance(value, Array) else bounds_of(value))


def hull(*parts: Bounds) -> Bounds:
    """The least interval that holds all."""
    if not parts:
        return ALL
    return min(p[0] for p in parts), max(p[1] for p in parts)


def _product(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def multiply(a: Bounds, b: Bounds) -> Bounds:
    ends = [_product(x, y) for x in a for y in b]
    return min(ends), max(ends)


def divide(a: Bounds, b: Bounds) -> Bounds:
    if 0 < b[0] <= b[1] or b[0] <= b[1] < 0:  # a path that cannot be taken may give others
        inverse = (1 / b[1] if abs(b[1]) < INF else 0.0, 1 / b[0] if abs(b[0]) < INF else 0.0)
        return multiply(a, inverse)
    if a[0] >= 0 and b[0] >= 0:
        return 0.0, INF
    return ALL


def power(a: Bounds, exponent: float) -> Bounds:
    """``x ** c`` for a constant ``c``."""
    lo, hi = a
    if exponent == 0:
        return 1.0, 1.0
    if not math.isfinite(exponent):
        return (0.0, INF) if lo >= 0 else ALL
    even = exponent == int(exponent) and int(exponent) % 2 == 0
    if exponent < 0:
        if lo < 0 and not even:
            return ALL
        least, most = (max(lo, 0.0), hi) if lo >= 0 else (0.0, max(abs(lo), abs(hi)))
        return _power(most, exponent), _power(least, exponent)
    if lo >= 0:
        return _power(lo, exponent), _power(hi, exponent)
    if even:
        least = 0.0 if hi >= 0 else min(abs(lo), abs(hi))
        return _power(least, exponent), _power(max(abs(lo), abs(hi)), exponent)
    if exponent != int(exponent):
        return 0.0, _power(max(hi, 0.0), exponent)
    return -_power(abs(lo), exponent), math.copysign(_power(abs(hi), exponent), hi)


def _power(base: float, exponent: float) -> float:
    if base == 0:
        return INF if exponent < 0 else 0.0
    if base == INF:
        return 0.0 if exponent < 0 else INF
    try:
        return float(base**exponent)
    except OverflowError:
        return INF


def _safe(function: Callable[[float], float], value: float, low: float, high: float) -> float:
    if value == -INF:
        return low
    if value == INF:
        return high
    try:
        return function(value)
    except (OverflowError, ValueError):
        return high if value > 0 else low


def _increasing(
    function: Callable[[float], float], low: float, high: float
) -> Callable[..., Bounds]:
    """Bounds under a function that grows from ``low`` to ``high``."""

    def bounds(values: list[Value | None]) -> Bounds:
        lo, hi = bounds_of(values[0])
        return _safe(function, lo, low, high), _safe(function, hi, low, high)

    return bounds


def _logarithm(values: list[Value | None]) -> Bounds:
    lo, hi = bounds_of(values[0])
    least = math.log(lo) if 0 < lo < INF else -INF
    return least, math.log(hi) if 0 < hi < INF else INF


def _log1p(values: list[Value | None]) -> Bounds:
    lo, hi = bounds_of(values[0])
    return (math.log1p(lo) if -1 < lo < INF else -INF), (math.log1p(hi) if -1 < hi < INF else INF)


def _absolute(values: list[Value | None]) -> Bounds:
    lo, hi = bounds_of(values[0])
    if lo >= 0:
        return lo, hi
    return (0.0 if hi >= 0 else -hi), max(-lo, hi)


def _negative(values: list[Value | None]) -> Bounds:
    lo, hi = bounds_of(values[0])
    return -hi, -lo


def _sum(a: float, b: float) -> float:
    total = a + b
    return total if total == total else -INF


def _add(values: list[Value | None]) -> Bounds:
    (a, b), (c, d) = bounds_of(values[0]), _scaled(values)
    hi = b + d
    return _sum(a, c), hi if hi == hi else INF


def _subtract(values: list[Value | None]) -> Bounds:
    if same(values[0], values[1]) and (len(values) < 3 or values[2] is None):
        return 0.0, 0.0
    (a, b), (c, d) = bounds_of(values[0]), _scaled(values)
    lo, hi = a - d, b - c
    return lo if lo == lo else -INF, hi if hi == hi else INF


def _scaled(values: list[Value | None]) -> Bounds:
    """The second operand times ``alpha``."""
    alpha = values[2] if len(values) > 2 else None
    second = bounds_of(values[1])
    return multiply(second, bounds_of(alpha)) if alpha is not None else second


def _multiply(values: list[Value | None]) -> Bounds:
    a, b = values[:2]
    if isinstance(a, Tensor) and isinstance(b, Tensor) and same(a, b):
        return power((a.lo, a.hi), 2)
    return multiply(bounds_of(a), bounds_of(b))


def _divide(values: list[Value | None]) -> Bounds:
    return divide(bounds_of(values[0]), bounds_of(values[1]))


def _remainder(values: list[Value | None]) -> Bounds:
    (least, most), (low, high) = bounds_of(values[0]), bounds_of(values[1])
    return (0.0, min(most, high) if least >= 0 else high) if low > 0 else ALL


def _pow(values: list[Value | None]) -> Bounds:
    base, exponent = values[0], values[1]
    constant = number(exponent)
    if constant is not None:
        return power(bounds_of(base), constant)
    lo, hi = bounds_of(base)
    if lo >= 0 and hi <= 1 and bounds_of(exponent)[0] >= 0:
        return 0.0, 1.0
    if lo > 0:
        least, most = bounds_of(exponent)
        ends = [_power(x, y) for x in (lo, hi) for y in (least, most) if abs(y) < INF]
        if len(ends) == 4:
            return min(ends), max(ends)
    return (0.0, INF) if lo >= 0 else ALL


def _clamp(values: list[Value | None]) -> Bounds:
    lo, hi = bounds_of(values[0])
    least = _limit(values, 1, -INF)
    most = _limit(values, 2, INF)
    return min(max(lo, least[0]), most[1]), max(min(hi, most[1]), least[1])


def _limit(values: list[Value | None], index: int, absent: float) -> Bounds:
    value = values[index] if len(values) > index else None
    if value is None or (isinstance(value, Scalar) and value.kind == "none"):
        return absent, absent
    lo, hi = bounds_of(value)
    return (lo, hi) if (lo, hi) != ALL else (-INF, INF)


def _clamp_min(values: list[Value | None]) -> Bounds:
    (a, b), (c, d) = bounds_of(values[0]), bounds_of(values[1])
    return max(a, c), max(b, d)


def _clamp_max(values: list[Value | None]) -> Bounds:
    (a, b), (c, d) = bounds_of(values[0]), bounds_of(values[1])
    return min(a, c), min(b, d)


def _relu(values: list[Value | None]) -> Bounds:
    lo, hi = bounds_of(values[0])
    return max(lo, 0.0), max(hi, 0.0)


def _leaky(values: list[Value | None]) -> Bounds:
    lo, hi = bounds_of(values[0])
    return min(lo, 0.0), max(hi, 0.0)


def _bent(least: float, values: list[Value | None]) -> Bounds:
    """Under an activation that is at least ``least``, and near its argument where that is positive."""
    lo, hi = bounds_of(values[0])
    return (least if lo < 0 else 0.0), max(hi, 0.0)


def _elu(values: list[Value | None]) -> Bounds:
    alpha = number(values[1]) if len(values) > 1 and values[1] is not None else 1.0
    return _bent(-abs(alpha), values) if alpha is not None else _leaky(values)


def _where(values: list[Value | None]) -> Bounds:
    return hull(bounds_of(values[1]), bounds_of(values[2])) if len(values) > 2 else ALL


def _filled(values: list[Value | None]) -> Bounds:
    return hull(bounds_of(values[0]), bounds_of(values[2])) if len(values) > 2 else ALL


def _joined(values: list[Value | None]) -> Bounds:
    first = values[0]
    if isinstance(first, Sequence):
        if first.items:
            return hull(*(bounds_of(item) for item in first.items))
        if first.element is not None:
            return bounds_of(first.element)
    return ALL


def _rounded(function: Callable[[float], int], values: list[Value | None]) -> Bounds:
    lo, hi = bounds_of(values[0])
    if len(values) > 1 and values[1] is not None:  # to so many decimals
        return lo - 0.5, hi + 0.5
    low, high = [float(function(x)) if math.isfinite(x) else x for x in (lo, hi)]
    return low, high


def _kept(values: list[Value | None]) -> Bounds:
    return bounds_of(values[0])


def _total(values: list[Value | None]) -> Bounds:
    lo, hi = bounds_of(values[0])
    return (lo if lo >= 0 else -INF), (hi if hi <= 0 else INF)


def _norm(values: list[Value | None]) -> Bounds:
    lo, hi = bounds_of(values[0])
    return max(lo, -hi, 0.0), INF


def _contracted(values: list[Value | None]) -> Bounds:
    """Bounds of a product of matrices; that of vectors of length 1 is a cosine."""
    if all(_is_unit(one) for one in values[:2]):
        return -1.0, 1.0
    return (0.0, INF) if all(bounds_of(one)[0] >= 0 for one in values[:2]) else ALL


def _equation(values: list[Value | None]) -> Bounds:
    return (0.0, INF) if all(bounds_of(one)[0] >= 0 for one in values[1:]) else ALL


def _square(values: list[Value | None]) -> Bounds:
    return power(bounds_of(values[0]), 2)


def _reciprocal(values: list[Value | None]) -> Bounds:
    return divide((1.0, 1.0), bounds_of(values[0]))


def _rsqrt(values: list[Value | None]) -> Bounds:
    lo, hi = bounds_of(values[0])
    return power((max(lo, 0.0), max(hi, 0.0)), -0.5)


def _pad(values: list[Value | None]) -> Bounds:
    fill = values[3] if len(values) > 3 and values[3] is not None else None
    return hull(bounds_of(values[0]), bounds_of(fill) if fill is not None else (0.0, 0.0))


def _lerp(values: list[Value | None]) -> Bounds:
    return hull(*(bounds_of(value) for value in values[:2]))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _in_base(base: float, values: list[Value | None]) -> Bounds:
    lo, hi = _logarithm(values)
    return lo / math.log(base), hi / math.log(base)


VECTORS_KEPT: Final = frozenset(
    {"transpose", "t", "T", "mT", "detach", "cast", "index", "unsqueeze", "clone", "contiguous"}
)
"""Operations behind which vectors of length 1 are no longer."""


def _is_unit(value: Any) -> bool:
    """Whether a tensor holds vectors of length 1: normalised, or divided by its norm."""
    value = peel(value)
    while isinstance(value, Tensor) and value.op in VECTORS_KEPT and value.operands:
        value = peel(value.operands[0])
    if not isinstance(value, Tensor) or not value.operands:
        return False
    if value.op == "div":
        length = peel(value.operands[1])
        return is_op(length, "norm", "linalg.norm", "linalg.vector_norm") and same(
            length.operands[0], value.operands[0]
        )
    return value.op == "normalize"


BOUNDS: Final[dict[str, Callable[[list[Value | None]], Bounds]]] = {
    "add": _add,
    "sub": _subtract,
    "mul": _multiply,
    "div": _divide,
    "remainder": _remainder,
    "pow": _pow,
    "neg": _negative,
    "abs": _absolute,
    "square": _square,
    "reciprocal": _reciprocal,
    "rsqrt": _rsqrt,
    "sqrt": _increasing(math.sqrt, 0.0, INF),
    "exp": _increasing(math.exp, 0.0, INF),
    "expm1": _increasing(math.expm1, -1.0, INF),
    "sigmoid": _increasing(_sigmoid, 0.0, 1.0),
    "tanh": _increasing(math.tanh, -1.0, 1.0),
    "softplus": _increasing(lambda x: math.log1p(math.exp(x)), 0.0, INF),
    "log": _logarithm,
    "log2": lambda v: _in_base(2, v),
    "log10": lambda v: _in_base(10, v),
    "log1p": _log1p,
    "relu": _relu,
    "leaky_relu": _leaky,
    "prelu": _leaky,
    "elu": _elu,
    "celu": _elu,
    "selu": lambda v: multiply(_bent(-1.6733, v), (1.0507, 1.0508)),
    "gelu": partial(_bent, -0.1701),
    "silu": partial(_bent, -0.2785),
    "mish": partial(_bent, -0.3089),
    "hardswish": partial(_bent, -0.375),
    "clamp": _clamp,
    "clamp_min": _clamp_min,
    "clamp_max": _clamp_max,
    "maximum": _clamp_min,
    "minimum": _clamp_max,
    "fmax": _clamp_min,
    "fmin": _clamp_max,
    "where": _where,
    "tril": _leaky,
    "triu": _leaky,
    "masked_fill": _filled,
    "cat": _joined,
    "stack": _joined,
    "hstack": _joined,
    "vstack": _joined,
    "sum": _total,
    "nansum": _total,
    "cumsum": _total,
    "norm": _norm,
    "linalg.norm": _norm,
    "linalg.vector_norm": _norm,
    "matmul": _contracted,
    "mm": _contracted,
    "bmm": _contracted,
    "einsum": _equation,
    "pad": _pad,
    "lerp": _lerp,
    "floor": partial(_rounded, math.floor),
    "ceil": partial(_rounded, math.ceil),
    "round": partial(_rounded, round),
    "trunc": partial(_rounded, math.trunc),
    **dict.fromkeys(
        (
            "mean", "nanmean", "amax", "amin", "max", "min", "median", "nanmedian", "dropout",
            "avg_pool1d", "avg_pool2d", "avg_pool3d", "interpolate",
            "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "cummax", "cummin",
            "sort", "topk", "index_select", "gather", "quantile", "identity", "detach", "clone",
            "contiguous", "nan_to_num", "dropout1d", "dropout2d", "dropout3d", "repeat_interleave",
        ),
        _kept,
    ),
}  # fmt: skip
"""By operation: bounds of the result from its values, in the order of the parameters."""


def result_bounds(name: str, values: list[Value | None], view: bool, declared: Bounds) -> Bounds:
    """Bounds of an operation's result."""
    function = BOUNDS.get(name)
    if function is not None and values:
        try:
            lo, hi = function(values)
        except (IndexError, ValueError):  # too few operands
            return declared
        return max(lo, declared[0]), min(hi, declared[1])
    if view and values:
        lo, hi = bounds_of(values[0])
        return max(lo, declared[0]), min(hi, declared[1])
    return declared


def reach_of(name: str, values: list[Value | None], view: bool) -> float:
    """A magnitude that some element of the result is known to have."""
    first: Any = values[0] if values else None
    reach = first.reach if isinstance(first, Tensor) else 0.0
    if not reach and name in ("add", "sub", "mul") and len(values) > 1:
        other = values[1]
        if isinstance(other, Tensor):
            first, values = other, [other, first]
            reach = other.reach
    if not reach:
        return 0.0
    if name in ("mul", "div"):
        constant = number(values[1]) if len(values) > 1 else None
        if constant is None or (name == "div" and constant == 0):
            return 0.0
        return reach * abs(constant) if name == "mul" else reach / abs(constant)
    if name in ("add", "sub"):
        constant = number(values[1]) if len(values) > 1 else None
        return max(reach - abs(constant), 0.0) if constant is not None else 0.0
    if view or name in ("abs", "neg", "amax", "max", "floor", "round", "ceil", "clone", "detach"):
        return float(reach)
    return 0.0
