"""Fills and masks: constants that float16 does not hold, minima that are added up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from precision_lint.dataflow.creation import CREATED
from precision_lint.dataflow.graph import peel
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.tensors import Applied, hazard
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import ANY, BFLOAT16, FLOAT16, LOW, MODES, OTHER
from precision_lint.domains.values import INF, Scalar, Tensor, Value, number
from precision_lint.hazards.magnitudes import half_modes
from precision_lint.hazards.places import is_given, made_at, on_cpu, operand_node
from precision_lint.hazards.rounding import FLOAT16_OVERFLOWS
from precision_lint.hazards.zeros import transparent

FILLED: Final[dict[str, tuple[int, int]]] = {
    "masked_fill": (0, 2), "index_fill": (0, 3), "fill": (0, 1), "pad": (0, 3), "scatter": (0, 3),
    "fill_diagonal": (0, 1), "masked_scatter": (0, 2), "clamp": (0, 1), "clamp_min": (0, 1),
    "clamp_max": (0, 1), "where": (-1, -1), "index_put": (0, 2), "mul": (0, 1), "add": (0, 1),
    "sub": (0, 1),
}  # fmt: skip
"""Operations that write a number into a tensor: the indices of both."""
RAISES: Final = frozenset({
    "masked_fill", "index_fill", "fill", "pad", "scatter", "fill_diagonal", "full", "full_like", "new_full",
    "clamp", "clamp_min", "clamp_max",
})  # fmt: skip
"""Those that raise where the number does not fit; the others write an infinity."""
BOUNDS: Final = frozenset({"clamp", "clamp_min", "clamp_max"})
"""On CUDA a bound that does not fit is an infinity, which bounds nothing."""
MADE: Final[dict[str, int]] = {
    "full": 1, "full_like": 1, "new_full": 2, "tensor": 0, "as_tensor": 0, "new_tensor": 1, "scalar_tensor": 0,
}  # fmt: skip
"""Operations that make a tensor of a number: the index of the number."""
FLOAT32_HOLDS: Final = 3.4028235677973366e38
"""Beyond it numbers are infinite in float32: its maximum and half a step."""
EXTREMES: Final = ("finfo.min", "finfo.max", "-finfo.max", "-finfo.min")


@hazard(*FILLED)
def fill_overflow(it: Interpreter, applied: Applied) -> None:
    """A number beyond 65504 that is written into a half tensor."""
    for target, fill in _pairs(applied):
        if not isinstance(fill, Scalar) or target is None:
            continue
        vector = applied.result.dtypes if applied.name != "clamp" else target.dtypes
        modes = _modes_of(fill, vector, applied.name)
        if modes and not (
            applied.name in ("mul", "add", "sub") and not _is_mask_value(fill, applied)
        ):
            _report(it, applied, target, fill, modes)
            return


def _pairs(applied: Applied) -> list[tuple[Tensor | None, Value | None]]:
    values = applied.values
    if applied.name == "where":
        if len(values) < 3:
            return []
        pairs = ((values[2], values[1]), (values[1], values[2]))
        return [(peel(a), b) for a, b in pairs if isinstance(a, Tensor)]
    indices = [FILLED[applied.name]]
    if applied.name == "clamp":
        indices.append((0, 2))
    if applied.name in ("mul", "add"):
        indices.append((1, 0))
    return [(applied.tensor(a), values[b] if len(values) > b else None) for a, b in indices]


def _modes_of(fill: Scalar, vector: dtypes.Dtypes, name: str) -> int:
    """Mask of the modes in which a dtype does not hold a number."""
    found = 0
    constant = number(fill)
    for mode in range(len(MODES)):
        dtype = vector[mode]
        if dtype & OTHER or dtype > ANY or not dtype & LOW:
            continue
        if constant is not None:
            big = FLOAT16_OVERFLOWS <= abs(constant) < INF
            if (big and dtype & FLOAT16) or (big and dtype & BFLOAT16 and abs(constant) > 3.39e38):
                found |= 1 << mode
        elif fill.op in EXTREMES and fill.operands:
            limit = fill.operands[0].dtypes[mode]
            wide = limit & (dtypes.FLOAT32 | dtypes.FLOAT64) and not limit & (LOW | OTHER)
            if wide or (limit == BFLOAT16 and dtype == FLOAT16):
                found |= 1 << mode
    return found


def _is_mask_value(fill: Scalar, applied: Applied) -> bool:
    """Whether a factor or a term is a penalty, not a scale: it is at least 1e5, and negative or for a mask."""
    constant = number(fill)
    if constant is None:
        return fill.op in EXTREMES
    if applied.name in ("add", "sub"):
        return False  # a mask is added where it is, not everywhere
    other = applied.tensor(0) or applied.tensor(1)
    return constant <= -FLOAT16_OVERFLOWS or (other is not None and other.lo >= 0 and other.hi <= 1)


def _report(it: Interpreter, applied: Applied, target: Tensor, fill: Scalar, modes: int) -> None:
    assumptions = target.assumptions
    if applied.name in BOUNDS:
        where = on_cpu(it, target)
        if where is None:
            return
        assumptions |= where
    node = None
    index = FILLED[applied.name][1]
    if applied.name == "where":
        index = next((i for i in (1, 2) if applied.values[i] is fill), 1)
    elif len(applied.values) > 1 and applied.values[0] is fill:
        index = 0
    node = operand_node(applied.node, it.module, index, "value")
    if is_given(it, node, fill):
        for ways, brain in _by_dtype(applied, modes):
            it.emit_at_call(
                "fill-overflow", ways, assumptions, operation=applied.name, value=number(fill),
                limit=fill.op, raises=applied.name in RAISES, fill=None, fill_at=made_at(it, fill),
                tensor=None, bfloat16=brain, inplace=False, within=it.place(applied.node),
            )  # fmt: skip
        return
    receiver = operand_node(
        applied.node, it.module, FILLED[applied.name][0] if applied.name != "where" else 3 - index
    )
    for ways, brain in _by_dtype(applied, modes):
        it.emit(
            "fill-overflow",
            applied.node,
            ways,
            assumptions,
            about=target,
            operation=applied.name,
            value=number(fill),
            limit=fill.op,
            raises=applied.name in RAISES,
            fill=it.place(node) if node is not None else None,
            fill_at=made_at(it, fill),
            tensor=it.place(receiver) if receiver is not None else None,
            bfloat16=brain,
            inplace=applied.inplace,
            within=None,
        )


@hazard("argmax", "argmin", "max", "min", "amax", "amin", "softmax", "log_softmax")
def only_ranked(it: Interpreter, applied: Applied) -> None:
    """What is filled so that it is not chosen is not chosen if it is infinite, either."""
    value = peel(applied.tensor(0))
    while isinstance(value, Tensor) and value.op not in FILLED and transparent(value):
        value = peel(value.operands[0])
    if (
        not isinstance(value, Tensor)
        or value.op not in FILLED
        or value.op in RAISES
        or not value.node
    ):
        return
    event = it.events.get(("fill-overflow", it.place(value.node, value.home), None))
    if event is not None and applied.name in ("softmax", "log_softmax"):
        event.facts["weighed"] = True  # a row of nothing else is nan
    elif event is not None and not event.facts.get("weighed"):
        it.retract("fill-overflow", value)


def _by_dtype(applied: Applied, modes: int) -> Iterator[tuple[int, bool]]:
    """The modes in which the result may be float16, and those in which it is bfloat16 alone."""
    wide = modes & dtypes.modes_of(applied.result.dtypes, FLOAT16)
    for ways, brain in ((wide, False), (modes & ~wide, True)):
        if ways:
            yield ways, brain


def created_with(it: Interpreter, made: Tensor, fill: Value | None) -> None:
    """``full(size, -1e9, dtype=half)``, ``tensor(-1e9, dtype=half)`` and their kin."""
    index = MADE.get(made.op)
    if fill is None and index is not None:
        fill = next((one for one in made.operands if isinstance(one, Scalar)), None)
    if not isinstance(fill, Scalar) or index is None:
        return
    if FLOAT32_HOLDS < abs(number(fill) or 0) < INF:
        return  # it is infinite in float32 as well
    modes = _modes_of(fill, made.dtypes, made.op)
    if not modes or made.node is None:
        return
    node = operand_node(made.node, it.module, index, "fill_value")
    it.emit(
        "fill-overflow",
        made.node,
        modes,
        made.assumptions,
        operation=made.op,
        value=number(fill),
        limit=fill.op,
        raises=made.op in RAISES,
        fill=it.place(node) if node is not None else None,
        fill_at=made_at(it, fill),
        tensor=None,
        bfloat16=False,
        inplace=False,
        within=None,
    )


CREATED.append(created_with)


# minima that are added


@hazard("add")
def minimum_added(it: Interpreter, applied: Applied) -> None:
    """Two masks of the dtype's minimum added up: -inf, and nan where both are set in a whole row."""
    first, second = applied.tensor(0), applied.tensor(1)
    if first is None or second is None:
        return
    if _minima(first) + _minima(second) < 2 or not _minima(first) or not _minima(second):
        return
    modes = dtypes.modes_of(applied.result.dtypes, LOW)
    it.emit(
        "minimum-added",
        applied.node,
        modes,
        first.assumptions | second.assumptions,
        about=first,
        how="two",
    )


@hazard("mul")
def minimum_times(it: Interpreter, applied: Applied) -> None:
    """A mask times a multiple of the minimum, or a sum of masks times the minimum."""
    for index in (0, 1):
        scale = applied.values[index] if len(applied.values) > index else None
        twice = (
            isinstance(scale, Scalar) and scale.op == "mul" and _is_minimum_number(scale.operands)
        )
        known = number(scale)
        other = applied.tensor(1 - index)
        twice = twice or (known is not None and known >= 1.5 and _minima(other) > 0)
        if twice or (_is_minimum(scale) and _is_sum_of_masks(other)):
            modes = half_modes(applied.result.dtypes)
            it.emit("minimum-added", applied.node, modes, applied.result.assumptions, how="twice")


def _is_sum_of_masks(value: Tensor | None) -> bool:
    """Whether a tensor is a mask plus another one, so that it is 2 where both are set."""
    total = peel(value)
    if not isinstance(total, Tensor) or total.op != "add" or total.hi < 2:
        return False
    return all(isinstance(one, Tensor) and one.rank != 0 for one in total.operands[:2])


def _is_minimum_number(parts: tuple[Any, ...]) -> bool:
    return any(isinstance(one, Scalar) and one.op in ("finfo.min", "-finfo.max") for one in parts)


def _minima(value: Any, depth: int = 6) -> int:
    """How many masks of the dtype's minimum a value contains."""
    value = peel(value)
    if not isinstance(value, Tensor) or not depth:
        return 0
    if value.op == "add" and len(value.operands) > 1:
        return _minima(value.operands[0], depth - 1) + _minima(value.operands[1], depth - 1)
    if value.op == "mul":
        return int(any(_is_minimum(one) for one in value.operands[:2]))
    if value.op in ("masked_fill", "where", "full", "full_like", "new_full"):
        fills = value.operands[1:3]
        base = peel(value.operands[0])
        empty = value.op.startswith(("full", "new")) or (
            isinstance(base, Tensor) and base.lo == base.hi == 0
        )
        return int(empty and any(_is_minimum(one) for one in fills))
    if transparent(value) or value.op in ("triu", "tril"):
        return _minima(value.operands[0], depth - 1)
    return 0


def _is_minimum(value: Any) -> bool:
    """Whether a number is (nearly) the least of half."""
    if not isinstance(value, Scalar):
        return False
    constant = number(value)
    if constant is not None:
        return -FLOAT16_OVERFLOWS < constant <= -4e4 or constant < -1e37
    return value.op in ("finfo.min", "-finfo.max")
