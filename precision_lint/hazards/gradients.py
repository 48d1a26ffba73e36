"""What code does to gradients between the backward and the step, for ``typestate``."""

from __future__ import annotations

import ast
from typing import Any, Final

from precision_lint.dataflow.containers import STORES
from precision_lint.dataflow.graph import behind, peel, through
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.operators import owners_of
from precision_lint.dataflow.protocol import note
from precision_lint.dataflow.tensors import Applied, hazard
from precision_lint.dataflow.training import GRADIENT_OF, SCALED_GRADIENT
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.values import (
    GRADIENT,
    MULTIPLIED,
    Scalar,
    Sequence,
    Special,
    Symbol,
    Tensor,
    Unknown,
    Value,
)
from precision_lint.hazards.places import made_at

READS: Final = frozenset({
    "isnan", "isinf", "isfinite", "norm", "linalg.norm", "linalg.vector_norm", "histc", "histogram", "allclose",
    "abs", "square", "std", "var", "item", "format", "aminmax", "topk", "quantile", "count_nonzero",
})  # fmt: skip
"""Operations that ask how large a gradient is."""
ITEMS: Final = frozenset({"unbind", "element"})
CLAMPS: Final = frozenset({"clamp", "clamp_min", "clamp_max", "clip", "hardtanh"})
FINITE: Final = frozenset(
    {"isnan", "isinf", "isfinite", "eq", "ne", "logical_or", "logical_not", "bitwise_not"}
)


def _gradient(value: object) -> bool:
    return isinstance(value, Tensor) and bool(value.flags & GRADIENT)


@hazard("*", "item", "format")
def inspected(it: Interpreter, applied: Applied) -> None:
    """A gradient that is looked at, added to, clamped, or cleaned."""
    first, name = applied.tensor(0), applied.name
    made = through(first, ITEMS)
    if isinstance(made, Tensor) and made.op == SCALED_GRADIENT and name in READS | {"pow"}:
        note(it, "autograd-read", applied.node, made.operands[0].operands[1], made)
    if first is None or not first.flags & GRADIENT:
        return
    if name in ("zero", "fill") and applied.inplace and peel(first).op == "grad":
        _zeroed(it, applied.node, peel(first).operands[0] if peel(first).operands else None)
    elif name in ("nan_to_num", "nansum") or _cleans(applied):
        note(it, "scrub", applied.node, first)
    elif name in CLAMPS and peel(first).op == "grad":
        note(it, "clip", applied.node, None)
    elif name == "cast" or name == "index":
        return
    elif name in READS or applied.operation.reduction or applied.operation.result == "bool":
        note(it, "read", applied.node, first)
    elif name in ("add", "sub") and _adds_foreign(applied):
        note(it, "gradient-added", applied.node, first)


@hazard("mul", "div")
def divided_unscaled(it: Interpreter, applied: Applied) -> None:
    """A gradient that is divided by the loss scale, of outputs that no loss scale multiplied."""
    if len(applied.values) < 2 or it.caught:
        return
    for gradient, factor in (applied.values[:2], applied.values[1::-1]):
        of = _differentiated(gradient)
        scaler = _scale_below(factor, applied.name == "div") if of is not None else None
        place = made_at(it, of)
        if of is None or scaler is None or place is None:
            continue
        rests = _assumed(of.fields["outputs"])
        if rests & assume.CALL:
            continue  # what is called may multiply them
        if not any(_is_multiplied(of.fields[one]) for one in ("outputs", "weights")):
            rests |= scaler.assumptions | (assume.KIND if rests else 0)  # others may multiply them
            divided = it.place(applied.node)
            it.emit_at("divided-unscaled", place, dtypes.ALL_MODES, rests, divided=divided)
        return


def _assumed(outputs: Value | None) -> int:
    """What it rests on that outputs are as they come from a model."""
    parts: tuple[Value | None, ...] = (outputs,)
    if isinstance(outputs, Sequence):
        parts = outputs.items if outputs.items is not None else (outputs.element,)
    found = 0
    for one in parts:
        found |= one.assumptions if isinstance(one, Tensor) else assume.INPUT | assume.CALL
    return found


def _differentiated(value: Value | None) -> Special | None:
    """What a gradient of ``torch.autograd.grad`` was made of: the outputs and their weights."""
    made = through(value, ITEMS)
    if isinstance(made, Tensor) and made.op == "gradient":
        return made.data if isinstance(made.data, Special) else None
    symbol = made.symbol if isinstance(made, (Tensor, Unknown)) else None
    while symbol is not None:
        of = symbol.attributes.get(GRADIENT_OF)
        if isinstance(of, Special):
            return of
        symbol = symbol.owner
    return None


def _scale_below(value: Value | None, below: bool, depth: int = 6) -> Special | None:
    """The scaler whose scale a number divides by; below: the number is a divisor itself."""
    if not isinstance(value, Scalar) or not depth:
        return None
    if value.op == "scale" and below:
        scaler = value.operands[0] if value.operands else None
        return scaler if isinstance(scaler, Special) else None
    for index, one in enumerate(value.operands[:2]):
        turned = below is not (value.op == "div" and index == 1)
        found = _scale_below(one, turned, depth - 1)
        if found is not None:
            return found
    return None


def _is_multiplied(value: Value | None, depth: int = 4) -> bool:
    """Whether a loss scale may be in outputs, or in their weights."""
    if isinstance(value, Sequence) and depth:
        parts = value.items if value.items is not None else (value.element,)
        return any(_is_multiplied(one, depth - 1) for one in parts)
    if isinstance(value, Special):
        return value.kind == "scaled"
    return any(
        one.op == "scaled" or bool(one.flags & MULTIPLIED) or any(map(_holds_scale, one.operands))
        for one in behind(value, 32)
    )


def _holds_scale(value: Any, depth: int = 6) -> bool:
    """Whether a number is a loss scale, or computed of one."""
    if not isinstance(value, Scalar) or not depth:
        return False
    return value.op in SCALES or any(_holds_scale(one, depth - 1) for one in value.operands)


SCALES: Final = ("scale", "item")
"""Numbers that are a loss scale, or may be one."""


def _zeroed(it: Interpreter, node: ast.AST, parameter: Value | None) -> None:
    """``p.grad.zero_()``: the gradients of whoever holds ``p``, unless it is one of some."""
    parameter = peel(parameter)
    if _chosen(it):
        return
    held = parameter.data if isinstance(parameter, Tensor) else None
    for owner in owners_of(held) if isinstance(held, Special) else ():
        note(it, "zero", node, owner)
    optimizer = _optimizer_of(parameter.symbol) if isinstance(parameter, Tensor) else None
    if optimizer is not None:
        note(it, "zero", node, optimizer)


def _optimizer_of(symbol: Symbol | None) -> Unknown | None:
    """The optimizer that nobody saw in whose ``param_groups`` a parameter was found."""
    while symbol is not None and symbol.owner is not None:
        if symbol.label == "param_groups":
            return Unknown(symbol.owner)
        symbol = symbol.owner
    return None


def _chosen(it: Interpreter) -> bool:
    """Whether the loop around asks its element anything but whether it has a gradient."""
    if not it.nest or it.nest[-1].home is not it.module:
        return False
    inside = set(map(id, ast.walk(it.nest[-1].node)))
    tests = [one.test for one in it.branches if id(one.test) in inside]
    return not all(
        any(isinstance(one, ast.Attribute) and one.attr == "grad" for one in ast.walk(test))
        for test in tests
    )


def dropped(
    it: Interpreter, owner: Value, target: ast.Attribute, value: Value, node: ast.AST
) -> None:
    """``p.grad = None``"""
    if target.attr == "grad" and isinstance(value, Scalar) and value.kind == "none":
        _zeroed(it, node, owner)


STORES.append(dropped)


def _cleans(applied: Applied) -> bool:
    """``grad.masked_fill_(~isfinite(grad), 0)`` and its kin."""
    if applied.name not in ("masked_fill", "where", "index_put"):
        return False
    index = 0 if applied.name == "where" else 1
    mask = applied.values[index] if len(applied.values) > index else None
    return any(one.op in ("isnan", "isinf", "isfinite") for one in behind(mask, 8))


def _adds_foreign(applied: Applied) -> bool:
    """Whether a term of its own units is added: parameters or noise, not other gradients."""
    other = peel(applied.values[1]) if len(applied.values) > 1 else None
    if not isinstance(other, Tensor) or other.flags & GRADIENT:
        return False
    made = [one.op for one in behind(other, 12)]
    return "grad" not in made and any(
        op in ("randn_like", "randn", "normal", "rand_like", "weight", "parameter", "sign")
        for op in made
    )
