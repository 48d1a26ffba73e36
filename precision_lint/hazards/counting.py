"""Integers that half does not hold: positions, identities and flat indices beyond 2048 or 256."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import permutations
from typing import Any, Final, NamedTuple

from precision_lint.dataflow.creation import CREATED
from precision_lint.dataflow.graph import behind, is_op, peel, same
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.narrowing import MEANT
from precision_lint.dataflow.tensors import Applied, hazard
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import (
    BFLOAT16,
    BOOLEAN,
    CODE,
    FLOAT16,
    INTEGER,
    LOW,
    MODES,
    OTHER,
)
from precision_lint.domains.values import (
    GRADIENT,
    INF,
    DtypeValue,
    Scalar,
    Sequence,
    Symbol,
    Tensor,
    Unknown,
    Value,
    number,
)
from precision_lint.hazards.places import made_at, operand_node
from precision_lint.hazards.rounding import EXACT, FLOAT16_MAX

RANGES: Final = ("arange", "range")
COMPARISONS: Final = ("eq", "ne", "lt", "le", "gt", "ge")
POOLS: Final = ("max_pool1d", "max_pool2d", "max_pool3d")
KEEPS: Final = frozenset({
    "cast", "clone", "detach", "interpolate", "pad", "floor", "round", "ceil", "clamp", "index",
    "repeat_interleave", "gather", "index_select", "element", "expand", "transpose", "flatten",
    "output", "unbind", "cat", "stack", "join", "where", "masked_fill", "max", "min", "amax",
    "amin", "meshgrid", "roll", "mul", "abs", "neg", "flip",
    "index_put", "nan_to_num", "floor_divide", "remainder", *POOLS,
})  # fmt: skip
"""Operations whose result holds numbers that their operand held, or depends on each of them."""


class Counted(NamedTuple):
    """Where integers are made in, or cast to, half.

    modes: those in which two of them may coincide.  bound: the largest; inf: unknown.
    """

    value: Tensor
    modes: int
    bound: float
    assumptions: int


def integral_modes(value: Tensor) -> int:
    """Mask of the modes in which a tensor surely holds integers, by its dtype."""
    found = 0
    for mode, one in enumerate(value.dtypes):
        if one == INTEGER or one == INTEGER | BOOLEAN:
            found |= 1 << mode
    return found


def coinciding(value: Tensor, bound: float) -> int:
    """Mask of the modes in which a tensor is half, and integers up to a bound coincide."""
    found = 0
    for mode in range(len(MODES)):
        one = value.dtypes[mode]
        if one & OTHER:
            continue
        if (one & FLOAT16 and bound > EXACT[FLOAT16]) or (
            one & BFLOAT16 and bound > EXACT[BFLOAT16]
        ):
            found |= 1 << mode
    return found


def rounded_integers(value: Any) -> Iterator[Counted]:
    """The places where the integers that a value holds became half."""
    pending, seen = [peel(value)], set[int]()
    while pending and len(seen) < 40:
        one = pending.pop()
        if not isinstance(one, Tensor) or id(one) in seen:
            continue
        seen.add(id(one))
        point = _point(one)
        if point is not None:
            yield point
        elif one.op in KEEPS or _is_view(one) or _shifts(one):
            pending.extend(_kept(one))


def _point(value: Tensor) -> Counted | None:
    """Integers that are made in half right here."""
    if value.op in RANGES:
        if any(_fraction(one) for one in value.operands):
            return None
        modes = coinciding(value, value.hi)
        return Counted(value, modes, value.hi, _sized(value)) if modes else None
    if value.op == "cumsum" and _counts_up(value):
        modes = coinciding(value, INF)
        return Counted(value, modes, INF, assume.SIZE) if modes else None
    if value.op == "linspace":
        modes = coinciding(value, _last(value))
        return Counted(value, modes, INF, 0) if modes else None
    if value.op != "cast" or not value.operands:
        return None
    source = peel(value.operands[0])
    if not isinstance(source, Tensor):
        return None
    if source.op == "linspace":
        modes = coinciding(value, _last(source)) & ~dtypes.modes_of(source.dtypes, LOW)
        return Counted(value, modes, INF, 0) if modes else None
    modes = integral_modes(source) & coinciding(value, source.hi)
    return Counted(value, modes, source.hi, _sized(source)) if modes else None


def _last(value: Tensor) -> float:
    """The larger end of a range of numbers that are meant as integers; 0: they are not."""
    return value.reach if value.reach == int(value.reach) else 0.0


def _counts_up(value: Tensor) -> bool:
    """Whether a cumulative sum is one of a mask."""
    mask = peel(value.operands[0])
    source = peel(mask.operands[0]) if isinstance(mask, Tensor) and mask.op == "cast" else None
    return isinstance(source, Tensor) and source.dtypes == dtypes.V_BOOLEAN


def _fraction(value: Any) -> bool:
    """Whether a number need not be whole."""
    if not isinstance(value, Scalar):
        return False
    return value.kind == "float" or value.op == "div"


def _sized(value: Tensor) -> int:
    """What has to be assumed for integers to be as many as that."""
    for one in behind(value, 8):
        if one.op in RANGES:
            if value.hi < INF:
                needed = 0
                for part in one.operands:
                    needed |= part.assumptions if isinstance(part, Scalar) else 0
                return needed
            return 0 if any(_of_tensor(part) for part in one.operands) else assume.SIZE
    return 0


def _of_tensor(value: Any) -> bool:
    """Whether a number is a size of a tensor, or computed of one."""
    if not isinstance(value, Scalar):
        return False
    return value.op in ("size", "numel") or any(_of_tensor(one) for one in value.operands)


def _is_view(value: Tensor) -> bool:
    return value.op in (
        "view",
        "reshape",
        "unsqueeze",
        "squeeze",
        "repeat",
        "permute",
        "t",
        "tile",
        "select",
    )


def _shifts(value: Tensor) -> bool:
    """Whether a constant or a size is added."""
    return value.op in ("add", "sub") and any(
        number(one) is not None or _is_whole(one) for one in value.operands[:2]
    )


def _is_whole(value: Any) -> bool:
    return isinstance(value, Scalar) and value.kind == "int"


def _kept(value: Tensor) -> list[Any]:
    """The operands whose numbers a result holds."""
    parts = value.operands
    if value.op in ("cat", "stack"):
        return list(parts[0].items or ()) if parts and isinstance(parts[0], Sequence) else []
    if value.op == "join":
        return [peel(one) for one in parts]
    if value.op == "where":
        return [peel(one) for one in parts[1:3]]
    if value.op == "mul":  # by a mask, or a whole number
        pairs = (parts[:2], parts[1::-1]) if len(parts) > 1 else ()
        return [peel(one) for one, other in pairs if _is_mask(other) or _is_whole(other)]
    return [peel(one) for one in parts[: 2 if _shifts(value) else 1]]


def _is_mask(value: Any) -> bool:
    value = peel(value)
    return isinstance(value, Tensor) and (
        value.dtypes == dtypes.V_BOOLEAN or 0 <= value.lo <= value.hi <= 1
    )


def report_integers(it: Interpreter, one: Counted, ends: str, other: Tensor | None = None) -> None:
    """other: what they are compared with; where they take its dtype, it may hold integers too."""
    value = one.value
    if value.node is None or value.home is not it.module:
        return
    source = _source(value)
    receiver = operand_node(value.node, it.module, 0) if value.op == "cast" else None
    it.emit(
        "integers-in-half",
        value.node,
        one.modes,
        value.assumptions | one.assumptions | (source.assumptions if source is not None else 0),
        about=source if other is not None and _is_of(other, source) else None,
        ends=ends,
        half="bfloat16" if all(not d & FLOAT16 for d in value.dtypes) else "float16",
        named=source is None,
        receiver=it.place(receiver) if receiver is not None else None,
        dtype=_dtype_keyword(it, value),
    )


def _is_of(value: Tensor, source: Tensor | None) -> bool:
    return any(one is peel(source) for one in behind(value, 12))


def _source(value: Tensor) -> Tensor | None:
    """The tensor whose dtype was taken."""
    for part in value.operands:
        if isinstance(part, DtypeValue) and part.source is not None:
            return part.source
    return None


def _dtype_keyword(it: Interpreter, value: Tensor) -> Any:
    for keyword in getattr(value.node, "keywords", ()):
        if keyword.arg == "dtype":
            return it.place(keyword.value, value.home)
    return None


@hazard(*COMPARISONS)
def compared(it: Interpreter, applied: Applied) -> None:
    """Integers in half that are compared: neighbours are equal."""
    for index in (0, 1):
        for one in rounded_integers(applied.tensor(index)):
            report_integers(it, one, "masks and comparisons", applied.tensor(1 - index))


@hazard("cast")
def made_whole(it: Interpreter, applied: Applied) -> None:
    """Integers in half that are turned back into integers, or known to be too many."""
    value = peel(applied.tensor(0))
    if not isinstance(value, Tensor):
        return
    if applied.result.dtypes == dtypes.V_INTEGER:
        for one in rounded_integers(value):
            report_integers(it, one, "the integers made of them")
        _flat_index(it, value)
        return
    point = _point(applied.result)
    if point is not None and point.bound < INF:
        report_integers(it, point, "neighbours")


def made_in_half(it: Interpreter, made: Tensor, _: Value | None) -> None:
    """A range that is made in a half dtype that the code names, and is known to be too long for it."""
    if made.op in RANGES and made.dtypes[CODE] & LOW and not _source(made):
        point = _point(made)
        if point is not None and point.bound < INF:
            report_integers(it, point, "neighbours")


CREATED.append(made_in_half)


@hazard("sub")
def taken_from_each_other(it: Interpreter, applied: Applied) -> None:
    """Distances of positions, which are integers in half on both sides."""
    sides = [[*rounded_integers(applied.tensor(index))] for index in (0, 1)]
    if all(sides):
        for one in (*sides[0], *sides[1]):
            report_integers(it, one, "distances")


@hazard(*POOLS)
def spread(it: Interpreter, applied: Applied) -> None:
    """Labels of cells that spread through maxima of their neighbours."""
    for one in rounded_integers(applied.tensor(0)):
        report_integers(it, one, "labels")


# tensors of any kind


HALVED: Final = "halved"


@hazard("cast")
def whatever_it_holds(it: Interpreter, applied: Applied) -> None:
    """A tensor among others, of which nothing but that was asked, is made half."""
    value = applied.tensor(0)
    symbol = value.symbol if value is not None else None
    if symbol is None or not symbol.uses & Symbol.ASKED or symbol.uses & KNOWN:
        return
    half = applied.result.dtypes[CODE] & LOW
    if half and not applied.result.dtypes[CODE] & ~LOW:
        report = it.notes.setdefault((HALVED, it.function), {})
        report[symbol.number] = applied.node, half
        if symbol.uses & Symbol.MEMBER:
            among_others(it, Unknown(symbol))


KNOWN: Final = Symbol.FLOAT | Symbol.INTEGER | Symbol.NUMBER | Symbol.REAL


def among_others(it: Interpreter, value: Unknown) -> None:
    """Report what is made half as a tensor, and is one of several things or may hold such."""
    known = it.notes.get((HALVED, it.function), {}).get(value.symbol.number)
    if known is not None:
        node, half = known
        name = dtypes.NAMES[FLOAT16 if half & FLOAT16 else BFLOAT16]
        it.emit("tensors-in-half", node, dtypes.ALL_MODES, assume.BRANCH, half=name)


MEANT.append(among_others)


# flat indices


def _flat_index(it: Interpreter, value: Tensor) -> None:
    """``(row * width + column).long()`` in half."""
    for total in behind(value, 6):
        if total.op == "add" and len(total.operands) > 1:
            break
        if total.op not in KEEPS and not _is_view(total):
            return
    else:
        return
    for row, column in (total.operands[:2], total.operands[1::-1]):
        row, column = peel(row), peel(column)
        if not isinstance(row, Tensor) or not isinstance(column, Tensor) or row.op != "mul":
            continue
        for index in (0, 1):
            line, stride = peel(row.operands[index]), row.operands[1 - index]
            if isinstance(line, Tensor) and _is_stride(stride) and _are_cells(line, column):
                _emit_index(it, total, row, line)
                return


def _is_stride(value: Any) -> bool:
    """Whether a number may be the length of a row."""
    value = peel(value)
    known = number(value)
    if known is not None:
        return abs(known) > 16
    return isinstance(value, Scalar) or (
        isinstance(value, Tensor) and value.op in ("input", "number") and value.rank <= 0
    )


def _are_cells(row: Tensor, column: Tensor) -> bool:
    """Whether two values are the row and the column of one cell."""
    if _is_rounded(row) and _is_rounded(column):
        return True
    first, second = _coordinate(row), _coordinate(column)
    return first is not None and second is not None and same(first, second)


def _is_rounded(value: Tensor) -> bool:
    """Whether a value is a whole number, within limits or not: rounded, or computed of integers."""
    while value.op in ("clamp", "clamp_min", "clamp_max", "cast"):
        inner = peel(value.operands[0])
        if not isinstance(inner, Tensor):
            return False
        value = inner
    return value.op in ("floor", "round", "trunc", "ceil") or value.dtypes == dtypes.V_INTEGER


def _coordinate(value: Tensor) -> Any:
    while value.op in ("floor", "round", "trunc", "clamp", "cast") and isinstance(
        peel(value.operands[0]), Tensor
    ):
        value = peel(value.operands[0])
    return (
        peel(value.operands[0])
        if value.op in ("index", "unbind", "select") and value.operands
        else None
    )


def _named_half(value: Tensor) -> bool:
    """Whether the code itself names a half dtype, so that there is no float32 run."""
    return any(one.op == "cast" and one.data == "explicit" for one in behind(value, 4))


def _emit_index(it: Interpreter, total: Tensor, row: Tensor, line: Tensor) -> None:
    modes = coinciding(line, INF)
    for mode, one in enumerate(total.dtypes):
        if one & dtypes.WIDE and not one & (LOW | OTHER):
            modes &= ~(1 << mode)
    if total.hi <= EXACT[BFLOAT16] or total.node is None or total.home is not it.module:
        return
    places = [operand_node(row.node, it.module, 0), operand_node(total.node, it.module, 1)]
    it.emit(
        "flat-index",
        total.node,
        modes,
        total.assumptions,
        about=line,
        half="bfloat16" if all(not d & FLOAT16 for d in total.dtypes) else "float16",
        upcast=tuple(it.place(n) for n in places if n is not None) if not _named_half(line) else (),
        made=made_at(it, line),
    )


# soft targets


REGRESSIONS: Final = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div")
WHOLE: Final = frozenset({"floor", "trunc", "ceil", "round"})
COUNTS: Final = WHOLE | {"sum", "count_nonzero"}
"""What gives whole numbers, a sum where it is cast to integers."""


def _cut_off(value: Any) -> Tensor | None:
    """The cast to integers of what may have fractions, where a value is its result."""
    value, back = peel(value), False
    while (
        isinstance(value, Tensor)
        and (
            _is_view(value)
            or value.op in ("clamp", "index")
            or (value.op == "cast" and value.dtypes != dtypes.V_INTEGER)
        )
        and value.operands
    ):
        back = back or value.op == "cast"
        value = peel(value.operands[0])
    if not isinstance(value, Tensor) or value.op != "cast" or value.dtypes != dtypes.V_INTEGER:
        return None
    source = peel(value.operands[0])
    if back and is_op(source, "input"):
        return None  # made whole on purpose, of what may be classes
    if not isinstance(source, Tensor) or source.op in COUNTS or source.flags & GRADIENT:
        return None
    if any(one & (INTEGER | BOOLEAN) and not one & OTHER for one in source.dtypes):
        return None
    return value


def _report_cut(it: Interpreter, cut: Tensor, harm: str, node: ast.AST) -> None:
    if cut.node is None or cut.home is not it.module:
        return
    receiver = operand_node(cut.node, it.module, 0)
    it.emit(
        "cut-target",
        cut.node,
        dtypes.ALL_MODES,
        cut.assumptions,
        harm=harm,
        receiver=it.place(receiver) if receiver is not None else None,
        use=it.place(node),
    )


@hazard(*REGRESSIONS)
def regressed(it: Interpreter, applied: Applied) -> None:
    """A target of a regression that is cut off to integers."""
    cut = _cut_off(applied.tensor(1))
    if cut is not None:
        _report_cut(it, cut, f"{applied.name} compares with whole numbers", applied.node)


@hazard("binary_cross_entropy", "binary_cross_entropy_with_logits")
def smoothed(it: Interpreter, applied: Applied) -> None:
    """A target of shares, of blends or smoothed labels, that is cut off to 0 and 1."""
    cut = _cut_off(applied.tensor(1))
    if cut is not None and _is_share(cut.operands[0]):
        _report_cut(it, cut, f"{applied.name} compares with 0 and 1", applied.node)


PREDICTS: Final = frozenset({
    "sigmoid", "softmax", "softplus", "relu", "tanh", "linear", "conv1d", "conv2d", "conv3d", "model",
})  # fmt: skip
"""What models compute at last."""
SMOOTH: Final = frozenset({"linear", "bilinear", "bicubic", "trilinear", "area"})
"""Modes of ``interpolate`` that give fractions of what is whole."""


@hazard("abs", "square", "pow")
def regressed_by_hand(it: Interpreter, applied: Applied) -> None:
    """``(prediction - target).abs()`` of a target that was resized or blended, and cut off to integers."""
    difference = peel(applied.tensor(0))
    if not isinstance(difference, Tensor) or difference.op != "sub":
        return
    predicted, cut = peel(difference.operands[0]), _cut_off(difference.operands[1])
    if cut is None or not isinstance(predicted, Tensor) or predicted.dtypes == dtypes.V_INTEGER:
        return
    source = peel(cut.operands[0])
    if not any(one.op in PREDICTS for one in (predicted, *behind(predicted, 6))):
        return
    if _is_share(source) or (is_op(source, "interpolate") and _is_smooth(source)):
        _report_cut(it, cut, "the difference is one of whole numbers", applied.node)


def _is_smooth(resized: Tensor) -> bool:
    return any(isinstance(one, Scalar) and one.value in SMOOTH for one in resized.operands)


def _is_share(value: Any, depth: int = 4) -> bool:
    """Whether a value has fractions: it is a probability, or is multiplied by one or divided."""
    value = peel(value)
    if not isinstance(value, Tensor) or not depth:
        return False
    if value.op in ("sigmoid", "softmax", "lerp"):
        return True
    if value.op in ("mul", "div") and any(_is_part(one) for one in value.operands[:2]):
        return True
    return value.op in ("mul", "div", "add", "sub") and any(
        _is_share(one, depth - 1) for one in value.operands[:2]
    )


def _is_part(value: Any) -> bool:
    known = number(value)
    return isinstance(value, Scalar) and value.kind == "float" and (known is None or known % 1 != 0)


@hazard("sub")
def interpolated(it: Interpreter, applied: Applied) -> None:
    """``target - target.long()``: the fraction of what has none left."""
    for index in (0, 1):
        cut = _cut_off(applied.tensor(index))
        other = peel(applied.tensor(1 - index))
        if (
            cut is not None
            and isinstance(other, Tensor)
            and other is not cut
            and (_is_neighbour(other, cut) or _cuts_the_same(other, cut))
        ):
            _report_cut(it, cut, "the weights of its interpolation are always 0", applied.node)
            return


@hazard("mul")
def weighted(it: Interpreter, applied: Applied) -> None:
    """Log probabilities that are weighted by shares, which are cut off to 0 and 1."""
    for index in (0, 1):
        value = applied.tensor(index)
        if value is None or value.dtypes != dtypes.V_INTEGER:
            continue
        cut, weighed = _cut_off(value), peel(applied.tensor(1 - index))
        if cut is not None and is_op(weighed, "log", "log_softmax", "logsigmoid"):
            if _is_share(cut.operands[0]):
                _report_cut(it, cut, "all log probabilities but one are left out", applied.node)


def _cuts_the_same(value: Tensor, whole: Tensor) -> bool:
    """Whether two casts to integers are of the same value, and not two rounds or calls of one cast."""
    other = _cut_off(value)
    if other is None or other.node is whole.node:
        return False
    return peel(other.operands[0]) is peel(whole.operands[0])


def _is_neighbour(value: Tensor, whole: Tensor) -> bool:
    """Whether a value is a number rounded down, or the next one."""
    rounded = False
    for _ in range(6):
        if value is whole:
            return rounded
        if not value.operands:
            return False
        rounded = (
            rounded
            or value.op in WHOLE
            or _shifts(value)
            or (value.op == "cast" and value.dtypes == dtypes.V_INTEGER)
        )
        if not (value.op in WHOLE or value.op in ("cast", "clamp", "view")) and not _shifts(value):
            return False
        following = next(
            (peel(one) for one in value.operands[:2] if isinstance(peel(one), Tensor)), None
        )
        if following is None:
            return False
        value = following
    return False


# totals that are only compared


@hazard(*COMPARISONS)
def total_compared(it: Interpreter, applied: Applied) -> None:
    """``x.abs().sum() > 0``: a total beyond 65504 compares as it should with what is below."""
    written = [getattr(applied.node, "left", None), *getattr(applied.node, "comparators", ())]
    for total, limit in permutations(applied.values[:2]):
        bound = number(limit)
        if isinstance(total, Tensor) and total.node in written and bound is not None:
            if abs(bound) < FLOAT16_MAX:
                it.retract("sum-overflow", total)
