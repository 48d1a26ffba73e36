"""Values that leave the range of float16: squares, sums, exponentials, areas, casts that come late."""

from __future__ import annotations

from typing import Any, Final

from precision_lint.dataflow.graph import behind, factor, is_op, is_square, peel, same
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.tensors import Applied, hazard
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import CODE, LOW
from precision_lint.domains.values import (
    INF,
    REGIONAL,
    Scalar,
    Sequence,
    Symbol,
    Tensor,
    Value,
    number,
    text,
)
from precision_lint.events import Place
from precision_lint.hazards.magnitudes import half_modes, is_shifted, magnitude, unbounded
from precision_lint.hazards.places import made_at, operand_node, operand_place
from precision_lint.hazards.rounding import FLOAT16_MAX
from precision_lint.hazards.zeros import NORMS, guard_of, transparent

ROOT: Final = FLOAT16_MAX**0.5
EXPONENTS: Final = {"exp": 11.09, "expm1": 11.09, "exp2": 16.0, "cosh": 11.78, "sinh": 11.78}
"""From here on the exponential exceeds 65504."""


# squares


@hazard("mul", "square", "pow")
def square_overflow(it: Interpreter, applied: Applied) -> None:
    """A square, or a higher power, of values beyond 256."""
    value = peel(applied.tensor(0))
    if value is None:
        return
    exponent = 2.0
    if applied.name == "pow":
        given = _exponent(applied.values[1] if len(applied.values) > 1 else None)
        if given is None or given < 2:
            return
        exponent = given
    elif applied.name == "mul":
        if len(applied.values) < 2 or not same(applied.values[0], applied.values[1]):
            _product_of_norms(it, applied)
            _box_area(it, applied)
            return
    modes = half_modes(applied.seen.get(0, value.dtypes))
    limit = FLOAT16_MAX ** (1 / exponent)
    needed = unbounded(magnitude(value), limit, value.reach)
    if not modes or needed is None:
        return
    report(it, "square-overflow", applied, value, modes, needed, limit=limit, exponent=exponent)


def _exponent(value: Value | None) -> float | None:
    known = number(value)
    if known is None and isinstance(value, Scalar) and value.is_number and value.hi < INF:
        return value.hi
    return known


def report(
    it: Interpreter,
    kind: str,
    applied: Applied,
    value: Tensor,
    modes: int,
    needed: int,
    proof: int = Symbol.FLOAT,
    **more: Any,
) -> None:
    """Report an operation that may leave the range, with the operands that an upcast goes to."""
    places = []
    for index in applied.operation.operands:
        node = operand_node(applied.node, it.module, index)
        given = applied.values[index] if index < len(applied.values) else None
        if node is not None and isinstance(given, Tensor) and applied.out is None:
            places.append(it.place(node))
    more.setdefault("upcast", tuple(dict.fromkeys(places)))
    it.emit(
        kind,
        applied.node,
        modes,
        value.assumptions | needed | it.outside(applied),
        about=value,
        proof=proof,
        operation=applied.name,
        **more,
    )


def _product_of_norms(it: Interpreter, applied: Applied) -> None:
    """The product of two norms, each of which may exceed 256."""
    values = [_unscaled(applied.tensor(0)), _unscaled(applied.tensor(1))]
    if not all(isinstance(v, Tensor) and v.op in NORMS and v.operands for v in values):
        return
    for value in values:
        modes = half_modes(value.dtypes)
        if modes and magnitude(value.operands[0]) > ROOT and value.home is it.module:
            place = operand_place(it, value, 0)
            it.emit(
                "square-overflow",
                value.node,
                modes,
                value.assumptions | assume.MAGNITUDE,
                about=value,
                operation=value.op,
                upcast=(place,) if place is not None else (),
                limit=ROOT,
                exponent=2.0,
            )


def _unscaled(value: Value | None) -> Any:
    """A tensor less a constant that it is multiplied by."""
    inner = peel(value)
    scaled = factor(inner) if isinstance(inner, Tensor) else None
    return scaled[0] if scaled is not None else inner


# areas


def _box_area(it: Interpreter, applied: Applied) -> None:
    """The product of two sides of a box in pixels."""
    first, second = peel(applied.tensor(0)), peel(applied.tensor(1))
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return
    if not _are_sides(first, second):
        return
    modes = half_modes(applied.result.dtypes)
    size = magnitude(first) * magnitude(second)
    needed = unbounded(size, FLOAT16_MAX, first.reach * second.reach)
    if modes and needed is not None:
        proof = CORNERS if _is_difference(first) and _is_difference(second) else Symbol.FLOAT
        report(it, "box-area", applied, first, modes, needed, proof)


CORNERS: Final = Symbol.FLOAT | Symbol.TENSOR
"""Tensors of corners, which are subtracted from each other, are tensors of floats."""


def _is_difference(value: Tensor) -> bool:
    """Whether a side is the difference of two corners."""
    inner = _bare(value)
    return isinstance(inner, Tensor) and inner.op == "sub"


def _bare(value: Any) -> Any:
    """A side before it was limited, reshaped, or made longer by a pixel."""
    value = peel(value)
    while (
        isinstance(value, Tensor) and value.operands and isinstance(peel(value.operands[0]), Tensor)
    ):
        longer = value.op in ("add", "sub") and number(value.operands[1]) is not None
        if not longer and value.op not in LIMITED:
            break
        value = peel(value.operands[0])
    return value


LIMITED: Final = frozenset(
    {"clamp", "clamp_min", "relu", "maximum", "abs", "cast", "view", "unsqueeze", "squeeze"}
)


def _are_sides(first: Any, second: Any) -> bool:
    """Whether two values are different sides of one set of boxes."""
    a, b = _side(first), _side(second)
    if a is None or b is None:
        return False
    return same(a[0], b[0]) and a[1] != b[1]


def _side(value: Any) -> tuple[Any, Any] | None:
    """The boxes and the coordinates of a side: ``x2 - x1``, ``left + right``, or one column of widths
    and heights."""
    value = _bare(value)
    if not isinstance(value, Tensor):
        return None
    if value.op in ("sub", "add") and len(value.operands) > 1:
        one, other = _column(value.operands[0]), _column(value.operands[1])
        if one is None or other is None or not same(one[0], other[0]):
            return None
        columns = max(one[1], other[1]), min(one[1], other[1])
        rises = one[1] > other[1]
        rises = rises if value.op == "sub" else columns in SIDES and _is_scaled(one[0])
        return (one[0], columns) if rises else None
    column = _column(value)
    if column is not None and column[1] in (0, 1, 2, 3):
        source = peel(column[0])
        if isinstance(source, Tensor) and _is_extent(source):
            return column
    return None


def _is_scaled(value: Any) -> bool:
    """Whether distances were multiplied by a number: others are in strides, or shares."""
    value = peel(value)
    while isinstance(value, Tensor) and value.operands and transparent(value):
        value = peel(value.operands[0])
    return is_op(value, "mul") and any(isinstance(one, Scalar) for one in value.operands)


SIDES: Final = ((2, 0), (3, 1))
"""Columns of distances to the left, top, right and bottom that are two sides together."""


def _is_extent(value: Tensor) -> bool:
    """Whether a tensor holds widths and heights: a difference of corners, the lesser of two extents, or
    numbers that were brought to the size of an image, which their bounds tell as well."""
    value = _bare(value)
    scaled = factor(value)
    if scaled is not None and abs(scaled[1]) >= PIXELS:
        return True
    if PIXELS <= value.hi < INF:
        return True
    if value.op == "add":
        return any(
            isinstance(x := peel(one), Tensor) and _is_extent(x) for one in value.operands[:2]
        )
    return value.op in ("sub", "minimum", "min", "input")


PIXELS: Final = 64.0
"""Factors from which numbers are no longer shares of an image."""


def _column(value: Any) -> tuple[Any, int] | None:
    """The tensor and the position of a column, by index or by ``unbind``."""
    value = peel(value)
    while isinstance(value, Tensor) and value.op in ("clamp", "cast", "unsqueeze", "view"):
        value = peel(value.operands[0]) if value.operands else None
    if not isinstance(value, Tensor) or not value.operands:
        return None
    if value.op == "unbind" and isinstance(value.data, int):
        return peel(value.operands[0]), value.data
    if value.op == "index" and isinstance(value.data, tuple) and value.data:
        last = value.data[-1]
        rest = value.data[:-1]
        plain = all(part in ("...", "new", ("slice", None, None, None)) for part in rest)
        if isinstance(last, int) and plain and (rest or value.rank == 0):
            return peel(value.operands[0]), last
    return None


@hazard("prod")
def product_of_sides(it: Interpreter, applied: Applied) -> None:
    """``(corner2 - corner1).prod(-1)``: an area."""
    value = peel(applied.tensor(0))
    inner = _bare(value)
    if not isinstance(inner, Tensor) or inner.op != "sub" or len(applied.values) < 2:
        return
    modes = half_modes(applied.seen.get(0, value.dtypes))
    needed = unbounded(magnitude(value) ** 2, FLOAT16_MAX)
    high, low = peel(inner.operands[0]), peel(inner.operands[1])
    corners = all(isinstance(v, Tensor) and _is_corner(v) for v in (high, low))
    if modes and needed is not None and corners:
        report(it, "box-area", applied, value, modes, needed, CORNERS)


def _is_corner(value: Tensor) -> bool:
    """Whether a value is some columns of boxes, or the extreme of such."""
    if value.op in ("minimum", "maximum", "min", "max"):
        return all(isinstance(peel(v), Tensor) and _is_corner(peel(v)) for v in value.operands[:2])
    return value.op in ("index", "view", "unsqueeze", "element", "unbind")


# sums


SUMS: Final = frozenset({"sum", "nansum", "cumsum"})


@hazard(*SUMS)
def sum_overflow(it: Interpreter, applied: Applied) -> None:
    """A sum of many terms of one sign, in half."""
    value = peel(applied.tensor(0))
    if value is None:
        return
    modes = half_modes(applied.seen.get(0, value.dtypes)) & half_modes(applied.result.dtypes)
    if not modes or not _one_sign(value) or _adds_up_to_one(value):
        return
    if applied.name != "cumsum" and _dimensions(applied["dim"]) != 1:
        needed = assume.SIZE | (assume.MAGNITUDE if magnitude(value) == INF else 0)
        report(it, "sum-overflow", applied, value, modes, needed, mean=False, loss=False)


SUMMED: Final = (
    "l1_loss", "mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "kl_div",
)  # fmt: skip
"""Losses whose terms have one sign."""


@hazard(*SUMMED)
def summed_loss(it: Interpreter, applied: Applied) -> None:
    """A loss that is summed over all elements, in half; of what a region made it is another hazard."""
    value = peel(applied.tensor(0))
    if value is None or text(applied["reduction"]) != "sum":
        return
    if value.flags & REGIONAL and not it.no_grad:
        return
    modes = half_modes(applied.seen.get(0, value.dtypes)) & half_modes(applied.result.dtypes)
    if modes:
        needed = assume.SIZE | (assume.MAGNITUDE if magnitude(value) == INF else 0)
        report(it, "sum-overflow", applied, value, modes, needed, mean=False, loss=True)


def _is_summed_loss(value: Tensor) -> bool:
    """Whether a value is a loss that was summed over all elements."""
    names = (*SUMMED, "cross_entropy", "nll_loss")
    return value.op in names and any(text(one) == "sum" for one in value.operands)


def _one_sign(value: Tensor) -> bool:
    """Whether terms add up: all of them have one sign, and no factor makes them 0."""
    zeroed = value.op == "mul" and any(
        isinstance(one, Scalar) and one.value == 0 for one in value.operands[:2]
    )
    return (value.lo >= 0 or value.hi <= 0) and not zeroed


def _adds_up_to_one(value: Any) -> bool:
    """Whether values are all shares of 1, not one share of many."""
    value = peel(value)
    while isinstance(value, Tensor) and transparent(value):
        if value.op == "index" or value.op in SUMS:
            break
        value = peel(value.operands[0])
    return isinstance(value, Tensor) and value.op in ("softmax", "gumbel_softmax", "softmin")


def _dimensions(given: Value | None) -> int:
    """How many dimensions are summed over; 0: all of them."""
    if given is None or (isinstance(given, Scalar) and given.kind == "none"):
        return 0
    return len(given.items) if isinstance(given, Sequence) and given.items is not None else 1


@hazard("div")
def mean_by_hand(it: Interpreter, applied: Applied) -> None:
    """``x.sum(dim) / n``: the sum overflows before it is divided; ``(x * m).sum() / m.sum()``."""
    total = peel(applied.tensor(0))
    count = applied.values[1] if len(applied.values) > 1 else None
    if not isinstance(total, Tensor) or not (total.op in SUMS or _is_summed_loss(total)):
        return
    value = peel(total.operands[0]) if total.operands else None
    if not isinstance(value, Tensor):
        return
    if isinstance(count, Tensor):
        _area_of_mask(it, value, count)
        return
    known = number(count)
    if not isinstance(count, Scalar) or not (
        count.op in ("size", "numel", "nelement", "mul") or (known is not None and known > 1)
    ):
        return
    one_sign = _one_sign(value) or value.op == "input" or total.op in SUMMED
    if one_sign and not _adds_up_to_one(value):
        _report_sum(it, total, value, True)


def _area_of_mask(it: Interpreter, terms: Tensor, count: Any) -> None:
    """A sum that others are divided by, of their weights: it is one of a mask, whatever that holds."""
    while (
        isinstance(count, Tensor)
        and count.operands
        and (count.op in LIMITED or (count.op == "add" and number(count.operands[1]) is not None))
    ):
        count = peel(count.operands[0])
    if not isinstance(count, Tensor) or count.op != "sum" or terms.op != "mul":
        return
    mask = peel(count.operands[0])
    several = _dimensions(count.operands[1] if len(count.operands) > 1 else None) != 1
    if (
        several
        and isinstance(mask, Tensor)
        and any(same(_shaped(x), _shaped(mask)) for x in terms.operands[:2])
    ):
        _report_sum(it, count, mask, False)


def _shaped(value: Any) -> Any:
    """A tensor before it was given another shape."""
    value = peel(value)
    while isinstance(value, Tensor) and value.op in ("view", "unsqueeze", "expand", "squeeze"):
        value = peel(value.operands[0])
    return value


def _report_sum(it: Interpreter, total: Tensor, value: Tensor, mean: bool) -> None:
    """Report a sum that only what it is divided by shows to be one of many terms of one sign."""
    modes = half_modes(value.dtypes) & half_modes(total.dtypes)
    if total.node is None or total.home is not it.module or not modes:
        return
    place = operand_place(it, total, 0)
    it.emit(
        "sum-overflow",
        total.node,
        modes,
        value.assumptions | assume.SIZE,
        about=value,
        operation=total.op,
        upcast=(place,) if place is not None else (),
        mean=mean,
        loss=total.op not in SUMS,
    )


# exponentials


@hazard(*EXPONENTS)
def exponential_overflow(it: Interpreter, applied: Applied) -> None:
    """An exponential of what may exceed 11."""
    value = peel(applied.tensor(0))
    if value is None:
        return
    limit = EXPONENTS[applied.name]
    modes = half_modes(applied.seen.get(0, value.dtypes))
    if not modes or value.hi <= limit or is_shifted(value) or _is_logarithm(value):
        return
    if _sign(value) < 0:
        return
    size = value.hi if value.hi < INF else magnitude(value)
    needed = unbounded(size, limit)
    if needed is not None and not (needed and _is_setting(value)):
        report(it, "exponential-overflow", applied, value, modes, needed, limit=limit)


def _is_setting(value: Tensor) -> bool:
    """Whether a tensor is one number that nobody computed: a cutoff, a temperature."""
    made = value.op in ("tensor", "as_tensor", "scalar_tensor", "full")
    return made and value.rank == 0 and not any(isinstance(x, Tensor) for x in value.operands)


def _sign(value: Any) -> int:
    """1 or -1: what sign a value has, if each number is one of a width or a rate: ``exp(-rate * distance**2)``;
    0: unknown."""
    value = peel(value)
    if isinstance(value, Scalar):
        return -1 if value.hi <= 0 or value.op.startswith("-") else 1
    if not isinstance(value, Tensor) or not value.operands:
        return 0
    if value.lo >= 0 or value.hi <= 0:
        return 1 if value.lo >= 0 else -1
    if value.op in ("mul", "div"):
        return _sign(value.operands[0]) * _sign(value.operands[1])
    return -_sign(value.operands[0]) if value.op == "neg" else 0


def _is_logarithm(value: Tensor) -> bool:
    """Whether a value is made of logarithms, or is half of one (``exp(0.5 * log_variance)``)."""
    scaled = factor(value)
    if scaled is not None and abs(scaled[1]) <= 0.5:
        return True
    return any(
        one.op in ("log", "log_softmax", "logsigmoid", "logsumexp") for one in behind(value, 6)
    )


# casts


WIDER: Final = dtypes.FLOAT32 | dtypes.FLOAT64


@hazard("cast")
def late_cast(it: Interpreter, applied: Applied) -> None:
    """A cast to float32 behind the operation that overflows."""
    value = peel(applied.tensor(0))
    if not isinstance(value, Tensor) or value.node is None or value.home is not it.module:
        return
    if not any(d & WIDER and not d & LOW for d in applied.result.dtypes):
        return
    double = any(d & dtypes.FLOAT64 for d in applied.result.dtypes)
    for kind in ("square-overflow", "exponential-overflow"):
        event = it.events.get((kind, it.place(value.node, value.home), None))
        if event is None:
            continue
        for variant in event.variants:
            it.emit_variant(
                "late-cast", applied.node, variant, about=value, **event.facts, double=double
            )
        it.retract(kind, value)
    if value.op == "mul":
        _late_for_product(it, applied, value, double)


def _late_for_product(it: Interpreter, applied: Applied, product: Tensor, double: bool) -> None:
    """``(area * gap).float()`` of known limits beyond the range, or of what two layers give."""
    factors = [peel(one) for one in product.operands[:2]]
    layers = all(is_op(one, "linear", "conv1d", "conv2d", "conv3d") for one in factors)
    limits = [magnitude(one) if isinstance(one, Tensor) else INF for one in factors]
    modes = half_modes(product.dtypes) & dtypes.modes_of(applied.result.dtypes, WIDER)
    needed = assume.MAGNITUDE if layers else None
    if max(limits) <= FLOAT16_MAX and magnitude(product) < INF:
        needed = unbounded(magnitude(product), FLOAT16_MAX, product.reach)
    if modes and needed is not None:
        nodes = (operand_node(product.node, it.module, index) for index in (0, 1))
        it.emit(
            "late-cast", applied.node, modes, product.assumptions | needed, about=product,
            operation="mul", upcast=tuple(it.place(n) for n in nodes if n is not None), double=double,
        )  # fmt: skip


GROWING: Final = frozenset(
    {"sum", "nansum", "square", "cdist", "exp", "cumsum", "prod", "pow", "mul", "pairwise_distance"}
)
SMALL: Final = frozenset({"mean", "softmax", "sigmoid"})
SCALED: Final = 0.25
"""Factors from which a product is still about as large as what they are multiplied with."""


@hazard("cast")
def narrowing_cast(it: Interpreter, applied: Applied) -> None:
    """A cast to float16 of a sum, an area or a distance that was computed in float32."""
    value = peel(applied.tensor(0))
    if not isinstance(value, Tensor) or not _grows(value):
        return
    modes = half_modes(applied.result.dtypes) & ~half_modes(value.dtypes)
    modes &= dtypes.modes_of(value.dtypes, WIDER)
    if not modes or not _from_half(value, modes):
        return
    needed = unbounded(magnitude(value), FLOAT16_MAX, value.reach)
    if needed is not None:
        it.emit(
            "narrowing-cast",
            applied.node,
            modes,
            value.assumptions | needed,
            about=value,
            operation=value.op,
            made=made_at(it, value),
            receiver=_receiver(it, applied),
            named=bool(modes >> CODE & 1),
        )


def _receiver(it: Interpreter, applied: Applied) -> Place | None:
    node = operand_node(applied.node, it.module, 0)
    return it.place(node) if node is not None else None


def _grows(value: Tensor) -> bool:
    """Whether an operation makes values that are much larger than what it is given."""
    if value.op in ("add", "sub"):  # |x|^2 - 2 x y + |y|^2
        parts = [peel(one) for one in value.operands[: 2 if value.op == "add" else 1]]
        return any(_sums_squares(one) for one in parts) or (
            value.lo >= 0 and any(isinstance(one, Tensor) and _grows(one) for one in parts)
        )
    scaled = factor(value)
    if scaled is not None and isinstance(scaled[0], Tensor) and abs(scaled[1]) >= SCALED:
        return _grows(scaled[0])
    if value.op not in GROWING:
        return _is_summed_loss(value) or (
            value.op in ("squeeze", "view", "index", "abs")
            and bool(value.operands)
            and _grows_inside(value)
        )
    if value.op == "mul":
        return is_square(value) is not None or _are_sides(*value.operands[:2])
    if value.op == "pow":
        exponent = number(value.operands[1]) if len(value.operands) > 1 else None
        return exponent is not None and exponent >= 2
    if value.op == "exp":
        return not is_shifted(value.operands[0])
    if value.op in ("sum", "nansum", "cumsum"):
        inner = peel(value.operands[0])
        if not isinstance(inner, Tensor) or (inner.op == "exp" and is_shifted(inner.operands[0])):
            return False
        return not (inner.lo >= 0 and inner.hi <= 1) or _counts(value, inner)
    return True


def _counts(total: Tensor, inner: Tensor) -> bool:
    """Whether a sum counts what a mask selects in two dimensions or more, as the pixels of an area; a mask
    may be one of probabilities."""
    dims = total.operands[1] if len(total.operands) > 1 else None
    lines = isinstance(dims, Sequence) and dims.items is not None and len(dims.items) > 1
    while inner.op in ("cast", "argument") and isinstance(peel(inner.operands[0]), Tensor):
        inner = peel(inner.operands[0])
    return lines and (inner.dtypes == dtypes.V_BOOLEAN or inner.op == "sigmoid")


def _sums_squares(value: Any) -> bool:
    """Whether a value is a sum of squares, or holds one among its terms."""
    value = peel(value)
    if not isinstance(value, Tensor) or not value.operands:
        return False
    if value.op in ("sum", "add", "sub") or transparent(value):
        several = 2 if value.op == "add" else 1
        squares = value.op == "sum" and is_square(peel(value.operands[0])) is not None
        return squares or any(_sums_squares(one) for one in value.operands[:several])
    return False


def _grows_inside(value: Tensor) -> bool:
    inner = peel(value.operands[0])
    return isinstance(inner, Tensor) and _grows(inner)


def _from_half(value: Tensor, modes: int) -> bool:
    """Whether what was widened for the operation was half before."""
    return any(half_modes(one.dtypes) & modes for one in behind(value, 24))


# norms by hand


@hazard("mul", "div")
def norm_by_hand(it: Interpreter, applied: Applied) -> None:
    """``x * rsqrt(x.pow(2).mean() + eps)`` in half: the squares of values beyond 256 are inf."""
    for index in (0, 1) if applied.name == "mul" else (0,):
        value, scale = peel(applied.tensor(index)), peel(applied.tensor(1 - index))
        if not isinstance(value, Tensor) or not isinstance(scale, Tensor):
            continue
        spread = _spread(scale, applied.name)
        if spread is None:
            continue
        measured, squares = spread
        if not _is_of(measured, value):
            continue
        modes = half_modes(squares.dtypes)
        needed = unbounded(magnitude(measured), ROOT, measured.reach)
        if not modes or needed is None:
            return
        it.retract("square-overflow", squares)
        it.retract("weak-root", peel(scale))
        place = operand_place(it, squares, 0)
        operand = operand_node(applied.node, it.module, index)
        it.emit(
            "norm-by-hand",
            applied.node,
            modes,
            measured.assumptions | needed | it.outside(applied),
            about=measured,
            squares=made_at(it, squares),
            upcast=(place,) if place is not None else (),
            operand=it.place(operand) if operand is not None else None,
        )
        return


def _spread(scale: Tensor, name: str) -> tuple[Tensor, Tensor] | None:
    """What is measured, and its squares or variance, in ``rsqrt(mean(x ** 2) + eps)``."""
    inner: Any = None
    if not scale.operands:
        return None
    if (name == "mul" and scale.op == "rsqrt") or (name == "div" and scale.op == "sqrt"):
        inner = scale.operands[0]
    elif scale.op == "pow" and len(scale.operands) > 1:
        exponent = number(scale.operands[1])
        if exponent == (-0.5 if name == "mul" else 0.5):
            inner = scale.operands[0]
    guard = guard_of(inner)
    inner = peel(guard.base if guard is not None else inner)
    if not isinstance(inner, Tensor) or not inner.operands:
        return None
    if inner.op in ("var", "var_mean"):
        measured = peel(inner.operands[0])
        return (measured, inner) if isinstance(measured, Tensor) else None
    if inner.op == "mean":
        squares = peel(inner.operands[0])
        base = peel(is_square(squares))
        if isinstance(base, Tensor):
            return base, squares
    return None


def _is_of(measured: Tensor, value: Tensor) -> bool:
    """Whether a value is what was measured, or that less its mean."""
    if same(measured, value):
        return True
    for outer, inner in ((value, measured), (measured, value)):
        if outer.op == "sub" and outer.operands and same(peel(outer.operands[0]), inner):
            return True
    return False


# variances


MEANS: Final = frozenset({
    "mean", "avg_pool1d", "avg_pool2d", "avg_pool3d", "conv2d", "conv1d", "adaptive_avg_pool2d",
})  # fmt: skip


@hazard("sub")
def one_pass_variance(it: Interpreter, applied: Applied) -> None:
    """``mean(x ** 2) - mean(x) ** 2``: nearly equal numbers of which half keeps three digits."""
    left, right = peel(applied.tensor(0)), peel(applied.tensor(1))
    if is_op(left, "sum") and is_op(right, "div"):  # ``squares - total ** 2 / n``
        total = peel(is_square(right.operands[0]))
        if is_op(total, "sum") and same(total.operands[0], is_square(left.operands[0])):
            _report_variance(it, applied, left, total)
            return
    mean = peel(is_square(right))
    if not isinstance(left, Tensor) or not isinstance(mean, Tensor):
        return
    if left.op == mean.op == "div":
        _variance_of_sums(it, applied, left, mean)
    if left.op not in MEANS:
        return
    squares = peel(left.operands[0])
    base = is_square(squares)
    if base is None or mean.op != left.op or not mean.operands:
        return
    others = zip(left.operands[1:], mean.operands[1:], strict=False)
    if not same(mean.operands[0], base) or not all(_alike(x, y) for x, y in others):
        return
    modes = 0
    for one in (squares, left, mean):  # a power is float32 under autocast, its base is not
        modes |= dtypes.modes_of(one.dtypes, LOW)
    base = peel(base)
    for one in (squares, right):
        it.retract("square-overflow", one)
    places = (operand_place(it, squares, 0), operand_place(it, mean, 0))
    # the weights of a kernel would be of another dtype, and a region casts its input back
    kernel = left.op.startswith("conv")
    it.emit(
        "one-pass-variance",
        applied.node,
        modes,
        base.assumptions,
        about=base,
        upcast=() if kernel else tuple(place for place in places if place is not None),
    )


def _alike(one: Any, other: Any) -> bool:
    """Whether two means were asked for alike: squares have the sizes of what is squared."""
    sizes = isinstance(one, Scalar) and isinstance(other, Scalar) and one.op == other.op == "size"
    return one is other or same(one, other) or one is None or sizes


def _variance_of_sums(it: Interpreter, applied: Applied, left: Tensor, mean: Tensor) -> None:
    """``squares / n - (total / n) ** 2``, of sums that were added up before."""
    squares, total = peel(left.operands[0]), peel(mean.operands[0])
    if not isinstance(squares, Tensor) or not isinstance(total, Tensor) or same(squares, total):
        return
    if left.operands[1] is not mean.operands[1] and not same(left.operands[1], mean.operands[1]):
        return
    _report_variance(it, applied, squares, total)


def _report_variance(it: Interpreter, applied: Applied, squares: Tensor, total: Tensor) -> None:
    right = peel(applied.tensor(1))
    inner = right.operands[0] if is_op(right, "div") else right
    for one in (right, inner, squares.operands[0] if squares.op == "sum" else None):
        if isinstance(peel(one), Tensor):
            it.retract("square-overflow", peel(one))
    it.retract("sum-overflow", squares)
    modes = dtypes.modes_of(squares.dtypes, LOW) | dtypes.modes_of(right.dtypes, LOW)
    assumptions = squares.assumptions | total.assumptions
    it.emit("one-pass-variance", applied.node, modes, assumptions, about=squares, upcast=())
