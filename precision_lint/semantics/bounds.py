"""Ranges: what an operation's result can be, given the ranges of its operands.

Bounds are those of exact arithmetic; ``nan`` is in every range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from precision_lint.semantics.values import INF, UNKNOWN, Value

Range = tuple[float, float]
Given = Mapping[str, Value]

ANY: Range = (-INF, INF)
POSITIVE: Range = (0.0, INF)

ARGUMENTS: dict[str, tuple[str, ...]] = {
    "clamp": ("min", "max"), "clip": ("min", "max"), "clamp_min": ("min",), "clamp_max": ("max",),
    "elu": ("alpha",), "celu": ("alpha",), "softplus": ("beta",), "leaky_relu": ("negative_slope",),
    "hardtanh": ("min_val", "max_val"), "threshold": ("threshold", "value"),
    "dropout": ("p", "training"), "pad": ("", "mode", "value"),
    "interpolate": ("size", "scale_factor", "mode"), "upsample": ("size", "scale_factor", "mode"),
    "normalize": ("p", "dim"), "logit": ("eps",), "nan_to_num": ("nan", "posinf", "neginf"),
    "masked_fill": ("", "value"), "index_fill": ("", "", "value"), "lp_pool2d": ("norm_type",),
    "round": ("decimals",),
}  # fmt: skip
"""Names of the arguments behind the tensor, in their order, where a range depends on them."""


def of(op: str, x: Value, given: Given) -> Range:
    """Range of an operation on one tensor; ``given``: its other arguments by ARGUMENTS' names."""
    if op in _FIXED:
        return _FIXED[op]
    if op in _SAME:
        return x.lo, x.hi
    monotone = _MONOTONE.get(op)
    if monotone is not None:
        return monotone(x.lo), monotone(x.hi)
    special = _SPECIAL.get(op)
    return ANY if special is None else special(x, given)


def hull(*ranges: Range) -> Range:
    return min(lo for lo, _ in ranges), max(hi for _, hi in ranges)


# operators


def plus(a: Value, b: Value) -> Range:
    return _defined(a.lo + b.lo, a.hi + b.hi)


def minus(a: Value, b: Value) -> Range:
    return _defined(a.lo - b.hi, a.hi - b.lo)


def times(a: Value, b: Value) -> Range:
    corners = [_product(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    return min(corners), max(corners)


def over(a: Value, b: Value) -> Range:
    if b.lo > 0 or b.hi < 0:
        return times(a, Value(lo=_inverse(b.hi), hi=_inverse(b.lo)))
    if b.lo == 0:  # only the sign is known
        return (0.0 if a.lo >= 0 else -INF), (0.0 if a.hi <= 0 else INF)
    return ANY


def power(a: Value, b: Value) -> Range:
    n = b.const
    if not isinstance(n, (int, float)):
        if a.lo >= 0:
            return 0.0, 1.0 if a.hi <= 1 and b.lo >= 0 else INF
        return ANY
    ends = [_power(a.lo, n), _power(a.hi, n)]
    if n < 0:
        if a.lo > 0:
            return ends[1], ends[0]
        return POSITIVE if a.lo >= 0 or n % 2 == 0 else ANY
    if n % 2 == 0 and not a.lo >= 0:
        return (0.0 if a.hi >= 0 else ends[1]), max(ends)
    if n % 2 == 1 or a.lo >= 0:
        return ends[0], ends[1]
    return 0.0, _power(max(a.hi, 0.0), n)  # nan below zero


def _defined(lo: float, hi: float) -> Range:
    """Without the ``nan`` of ``inf - inf``."""
    return (-INF if lo != lo else lo), (INF if hi != hi else hi)


def _product(x: float, y: float) -> float:
    return 0.0 if 0.0 in (x, y) else x * y


def _inverse(x: float) -> float:
    return 0.0 if abs(x) == INF else 1 / x


def _power(x: float, n: float) -> float:
    try:
        result = x**n
    except (OverflowError, ZeroDivisionError):
        return INF if x >= 0 or n % 2 == 0 else -INF
    return result if isinstance(result, (int, float)) else 0.0


# monotone functions, extended to the ends of the real line


def _guarded(function: Callable[[float], float], below: float = -INF) -> Callable[[float], float]:
    """``function`` on numbers from ``below`` on, where it is -inf or not defined before."""

    def extended(x: float) -> float:
        if x == INF:
            return INF
        if x <= below:
            return -INF
        try:
            return function(x)
        except OverflowError:
            return INF if x > 0 else -INF

    return extended


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else INF


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def _root(x: float) -> float:
    return math.sqrt(x) if 0 < x < INF else INF if x > 0 else 0.0


_MONOTONE: dict[str, Callable[[float], float]] = {
    "exp": _exp,
    "exp2": lambda x: 2.0**x if x < 1000 else INF,
    "expm1": lambda x: math.expm1(x) if x < 700 else INF,
    "log": _guarded(math.log, 0.0),
    "log2": _guarded(math.log2, 0.0),
    "log10": _guarded(math.log10, 0.0),
    "log1p": _guarded(math.log1p, -1.0),
    "sqrt": _root,
    "relu": lambda x: max(x, 0.0),
    "relu6": lambda x: min(max(x, 0.0), 6.0),
    "sigmoid": _sigmoid,
    "hardsigmoid": lambda x: min(max(x / 6 + 0.5, 0.0), 1.0),
    "tanh": math.tanh,
    "erf": math.erf,
    "atan": math.atan,
    "sinh": _guarded(lambda x: math.sinh(x) if abs(x) < 700 else math.copysign(INF, x)),
    "softsign": lambda x: x / (1 + abs(x)) if abs(x) < INF else math.copysign(1.0, x),
    "logsigmoid": lambda x: 0.0 if x > 30 else -_softplus(-x),
    "ceil": lambda x: x if abs(x) == INF else float(math.ceil(x)),
    "floor": lambda x: x if abs(x) == INF else float(math.floor(x)),
    "trunc": lambda x: x if abs(x) == INF else float(math.trunc(x)),
    "deg2rad": math.radians,
    "rad2deg": math.degrees,
}


def _softplus(x: float) -> float:
    return x if x > 30 else math.log1p(math.exp(x)) if x > -700 else 0.0


_FIXED: dict[str, Range] = {
    **dict.fromkeys(("softmax", "softmin", "gumbel_softmax", "rand", "bernoulli"), (0.0, 1.0)),
    **dict.fromkeys(("sin", "cos", "sign", "sgn", "cosine_similarity", "sinc"), (-1.0, 1.0)),
    **dict.fromkeys(
        ("norm", "linalg.norm", "linalg.vector_norm", "linalg.matrix_norm", "cdist", "pdist",
         "pairwise_distance", "dist", "var", "std", "rsqrt", "mse_loss",
         "l1_loss", "smooth_l1_loss", "huber_loss", "triplet_margin_loss", "margin_ranking_loss",
         "soft_margin_loss", "svdvals", "linalg.svdvals", "count_nonzero"), POSITIVE),
    "cosh": (1.0, INF),
    "log_softmax": (-INF, 0.0),
    "acos": (0.0, math.pi),
    "asin": (-math.pi / 2, math.pi / 2),
    "atan2": (-math.pi, math.pi),
    "angle": (-math.pi, math.pi),
    "erfc": (0.0, 2.0),
    "silu": (-0.2785, INF),
    "gelu": (-0.17, INF),
    "mish": (-0.309, INF),
    "hardswish": (-0.3751, INF),
    "selu": (-1.7582, INF),
    "frac": (-1.0, 1.0),
    "acosh": POSITIVE,
}  # fmt: skip

_SAME = frozenset({
    "mean", "amax", "amin", "median", "nanmean", "nanmedian", "quantile", "nanquantile", "mode",
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
    "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d",
    "max", "min", "sort", "topk", "kthvalue", "maximum", "minimum", "cummax", "cummin", "aminmax",
    "positive", "identity", "channel_shuffle", "msort",
})  # fmt: skip
"""Operations whose results are elements of the first operand, or between them."""


# ranges that depend on arguments


def _number(given: Given, name: str, default: float | None) -> float | None:
    """A numeric argument; the default where it is not passed, None where it is not known."""
    value = given.get(name)
    if value is None or value.kind == "none":
        return default
    return float(value.const) if isinstance(value.const, (int, float)) else None


def _clamp(x: Value, given: Given) -> Range:
    """As torch does: an upper limit below the lower one wins."""
    low, high = given.get("min"), given.get("max")
    lo, hi = x.lo, x.hi
    if low is not None and low.kind != "none":
        lo, hi = max(lo, low.lo), max(hi, low.hi)
    if high is not None and high.kind != "none":
        lo, hi = min(lo, high.lo), min(hi, high.hi)
    return lo, hi


def _abs(x: Value, _: Given) -> Range:
    return max(x.lo, -x.hi, 0.0), max(abs(x.lo), abs(x.hi))


def _elu(x: Value, given: Given) -> Range:
    alpha = _number(given, "alpha", 1.0)
    if x.lo >= 0:
        return x.lo, x.hi
    return (-INF if alpha is None else min(-alpha, 0.0)), max(x.hi, 0.0)


def _softplus_of(x: Value, given: Given) -> Range:
    beta = _number(given, "beta", 1.0)
    if beta is None or beta <= 0:
        return POSITIVE if beta is None else ANY
    return max(x.lo, 0.0), max(x.hi, 0.0) + math.log(2) / beta


def _leaky(x: Value, given: Given) -> Range:
    slope = _number(given, "negative_slope", 0.01)
    if slope is None or slope < 0:
        return ANY if x.lo < 0 else (x.lo, x.hi)
    ends = [v if v >= 0 else _product(v, slope) for v in (x.lo, x.hi)]
    return ends[0], ends[1]


def _hardtanh(x: Value, given: Given) -> Range:
    low, high = _number(given, "min_val", -1.0), _number(given, "max_val", 1.0)
    return (-INF if low is None else low), (INF if high is None else high)


def _threshold(x: Value, given: Given) -> Range:
    value = _number(given, "value", None)
    return ANY if value is None else hull((x.lo, x.hi), (value, value))


def _dropout(x: Value, given: Given) -> Range:
    training = given.get("training", UNKNOWN)
    if training.const is False:
        return x.lo, x.hi
    p = _number(given, "p", 0.5)
    scale = INF if p is None or p >= 1 else 1 / (1 - p)
    return min(_product(x.lo, scale), x.lo, 0.0), max(_product(x.hi, scale), x.hi, 0.0)


def _pad(x: Value, given: Given) -> Range:
    mode = given.get("mode")
    if mode is not None and mode.const != "constant":
        return hull((x.lo, x.hi), (0.0, 0.0)) if mode.const is None else (x.lo, x.hi)
    value = _number(given, "value", 0.0)
    return ANY if value is None else hull((x.lo, x.hi), (value, value))


def _interpolate(x: Value, given: Given) -> Range:
    mode = given.get("mode")
    if mode is None or mode.const in (
        "nearest", "nearest-exact", "linear", "bilinear", "trilinear", "area"
    ):  # fmt: skip
        return x.lo, x.hi
    return ANY  # bicubic weights are negative in part


def _normalize(x: Value, given: Given) -> Range:
    p = _number(given, "p", 2.0)
    if p is None or p <= 0:
        return ANY
    return (0.0 if x.lo >= 0 else -1.0), (0.0 if x.hi <= 0 else 1.0)


def _sum(x: Value, _: Given) -> Range:
    return (0.0 if x.lo >= 0 else -INF), (0.0 if x.hi <= 0 else INF)


def _prod(x: Value, _: Given) -> Range:
    if x.lo >= 0:
        return (1.0 if x.lo >= 1 else 0.0), (1.0 if x.hi <= 1 else INF)
    return (-1.0, 1.0) if x.lo >= -1 and x.hi <= 1 else ANY


def _nan_to_num(x: Value, given: Given) -> Range:
    value = _number(given, "nan", 0.0)
    if value is None or {"posinf", "neginf"} & given.keys():
        return ANY
    return hull((x.lo, x.hi), (value, value))


def _fill(x: Value, given: Given) -> Range:
    value = given.get("value", UNKNOWN)
    return hull((x.lo, x.hi), (value.lo, value.hi))


def _round(x: Value, given: Given) -> Range:
    if given:
        return x.lo - 1, x.hi + 1
    return (x.lo if abs(x.lo) == INF else float(round(x.lo))), (
        x.hi if abs(x.hi) == INF else float(round(x.hi))
    )


_SPECIAL: dict[str, Callable[[Value, Given], Range]] = {
    **dict.fromkeys(("clamp", "clip", "clamp_min", "clamp_max"), _clamp),
    **dict.fromkeys(("abs", "absolute"), _abs),
    **dict.fromkeys(("elu", "celu"), _elu),
    **dict.fromkeys(("dropout", "dropout1d", "dropout2d", "dropout3d"), _dropout),
    **dict.fromkeys(("interpolate", "upsample"), _interpolate),
    **dict.fromkeys(("sum", "nansum", "cumsum", "fold"), _sum),
    **dict.fromkeys(("prod", "cumprod"), _prod),
    **dict.fromkeys(("masked_fill", "index_fill"), _fill),
    **dict.fromkeys(("tril", "triu", "diag", "diag_embed", "diagflat", "unfold"),
                    lambda x, _: hull((x.lo, x.hi), (0.0, 0.0))),
    **dict.fromkeys(("neg", "negative"), lambda x, _: (-x.hi, -x.lo)),
    "square": lambda x, _: power(x, Value(const=2)),
    "reciprocal": lambda x, _: over(Value(lo=1.0, hi=1.0), x),
    "softplus": _softplus_of,
    "leaky_relu": _leaky,
    "hardtanh": _hardtanh,
    "threshold": _threshold,
    "pad": _pad,
    "normalize": _normalize,
    "nan_to_num": _nan_to_num,
    "round": _round,
}  # fmt: skip
