"""Casts that do nothing in a region, and products of what it made half where it is left."""

from __future__ import annotations

from typing import Any, Final

from precision_lint.dataflow.devices import upcasts_on_cpu
from precision_lint.dataflow.graph import is_op, peel, same, through
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.tensors import Applied, hazard
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import FLOAT32, LOW, WIDE
from precision_lint.domains.values import BROUGHT, PARAMETER, DtypeValue, Symbol, Tensor
from precision_lint.hazards.contractions import PRODUCTS, TURNED, operand_places
from precision_lint.hazards.places import operand_node

LOWERED: Final = (*PRODUCTS, "linear", "conv1d", "conv2d", "conv3d", "scaled_dot_product_attention")


@hazard(*LOWERED)
def upcast_in_vain(it: Interpreter, applied: Applied) -> None:
    """``a.float() @ b.float()`` inside of autocast, which casts both down again."""
    if applied.policy != "lower":
        return
    modes = 0
    for mode, region in enumerate(it.region.dtypes):
        if region & LOW and not region & dtypes.MAYBE:
            modes |= 1 << mode
    operands: list[tuple[int, Tensor]] = []
    upcast = perhaps = 0
    for index in applied.seen:
        value = applied.tensor(index)
        if value is None or all(one == dtypes.FLOAT64 for one in value.dtypes):
            return
        inner = peel(value)
        if (
            isinstance(inner, Tensor)
            and inner.op == "weight"
            and isinstance(inner.data, tuple)
            and len(inner.data) > 2
        ):
            return  # a layer: the cast may only meet its weights
        operands.append((index, value))
        state = _upcast(value)
        if state == "lowered":
            return
        upcast += state in ("upcast", "perhaps")
        perhaps += state == "perhaps"
        if state == "other" and not _follows_weights(value):
            return
    if not upcast or not modes or (perhaps and _parts_ways(it)):
        return
    asked = 0
    for _, value in operands:
        asked |= value.assumptions
    it.emit(
        "upcast-in-vain",
        applied.node,
        modes,
        asked & ~(assume.INPUT | assume.NETWORK | assume.BATCH) | it.region.assumptions,
        operation=applied.name,
        operands=operand_places(it, applied),
        device=it.region.device if it.region.explicit else "",
    )


def _follows_weights(value: Tensor) -> bool:
    return bool(through(value, MOVED).flags & PARAMETER)


MOVED: Final = frozenset({"transpose", "t", "view", "reshape", "permute", "index", "unsqueeze"})
"""Operations that move a weight's dimensions."""
THROUGH: Final = frozenset({
    "transpose", "t", "view", "index", "normalize", "permute", "flatten", "reshape", "mul", "add",
    "sub", "div", "clone",
    "contiguous", "unsqueeze", "squeeze", "softmax", "neg", "bmm", "matmul", "detach",
})  # fmt: skip


def _upcast(value: Any) -> str:
    """Whether a value was brought up to float32 on purpose: ``upcast``, ``perhaps`` where ways join,
    ``lowered`` again, ``other``."""
    value = peel(value)
    for _ in range(8):
        if not isinstance(value, Tensor):
            return "other"
        if value.op == "cast":
            if all(one == FLOAT32 for one in value.dtypes):
                if _holds_integers(peel(value.operands[0])):
                    return "other"
                return "upcast"
            return "lowered"
        if value.op == "join":
            return "perhaps" if _perhaps_upcast(value) else "other"
        if value.op not in THROUGH or not value.operands:
            return "other"
        if value.op in ("bmm", "matmul", "linear"):
            return "other"
        value = peel(value.operands[0])
    return "other"


def _parts_ways(it: Interpreter) -> bool:
    """Whether the function at hand opens the region, or its file asks for the CPU: what casts up there may be
    the way on which the region is off."""
    node = it.function.node if it.function is not None else None
    here = any(
        site.path == it.module.path and node.lineno <= site.row <= (node.end_lineno or 0)
        for site in it.region.sites
        if node is not None
    )
    return here or upcasts_on_cpu(it.module)


def _perhaps_upcast(joined: Tensor) -> bool:
    """Whether a tensor was brought up to float32 on one of the ways that join here: ``if self.upcast:``."""
    ways = [peel(one) for one in joined.operands]
    casts = [
        one
        for one in ways
        if isinstance(one, Tensor) and one.op == "cast" and _upcast(one) == "upcast"
    ]
    return any(
        same(peel(cast.operands[0]), one) for cast in casts for one in ways if one is not cast
    )


def _holds_integers(value: Any) -> bool:
    """Whether a tensor is of integers or a mask, also one that took the dtype of an index."""
    value = peel(value)
    while isinstance(value, Tensor):
        bits = dtypes.INTEGER | dtypes.BOOLEAN
        if all(one & bits for one in value.dtypes):
            return True
        if value.symbol is not None:
            return bool(value.symbol.uses & Symbol.INTEGER)
        operands = value.operands
        if value.op == "cast":
            followed = operands[1] if len(operands) > 1 else None
            value = peel(followed.source) if isinstance(followed, DtypeValue) else None
        else:
            kept = value.op in INDEXED or value.op in THROUGH
            value = peel(operands[0]) if kept and operands else None
    return False


INDEXED: Final = frozenset({"scatter", "index_fill", "index_copy", "index_put"})
"""Operations that keep the dtype of what they write into."""


def _is_meant(value: Tensor, inner: Any) -> bool:
    """Whether half is asked for, or an operand is brought to what is not known: who leaves a region casts.

    inner: the operand before it was transposed.
    """
    if value.flags & BROUGHT or (is_op(inner, "cast") and inner.data == "explicit"):
        return True
    return is_op(inner, "join") and _perhaps_upcast(inner)  # where it is not, half was asked for


@hazard(*LOWERED)
def left_half(it: Interpreter, applied: Applied) -> None:
    """A product inside ``autocast(enabled=False)`` of what the region around it made half."""
    region = it.region
    outer = region.outer
    if not region.disabled or outer is None:
        return
    modes = 0
    found: Tensor | None = None
    operands = []
    halved = 0  # modes in which a layer was cast: it takes half
    wide = dtypes.surely(applied.result.dtypes, WIDE) if applied.asked else 0
    for index in applied.operation.operands if applied.name != "einsum" else applied.seen:
        value = applied.tensor(index)
        if value is None:
            continue
        node = operand_node(applied.node, it.module, index)
        low = 0
        for mode, state in enumerate(outer.dtypes):
            if state & LOW and value.dtypes[mode] & LOW and not value.dtypes[mode] & dtypes.OTHER:
                low |= 1 << mode
        low &= ~wide
        inner = peel(value)
        turned = through(inner, TURNED)
        if isinstance(turned, Tensor) and turned.flags & PARAMETER:
            halved |= dtypes.modes_of(value.dtypes, LOW)
            continue
        if not low or not isinstance(inner, Tensor) or _is_meant(value, turned):
            continue
        modes |= low
        found = found or value
        if node is not None:
            operands.append(it.place(node))
    modes &= ~halved
    if found is not None:
        it.emit(
            "left-half",
            applied.node,
            modes,
            found.assumptions | region.assumptions | outer.assumptions,
            about=found,
            operation=applied.name,
            operands=tuple(operands),
        )
