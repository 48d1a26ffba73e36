"""Angles of positions that are multiplied out in half: rotary and sinusoidal tables."""

from __future__ import annotations

import ast
from typing import Any, Final, NamedTuple

from precision_lint.dataflow.graph import behind, peel
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.tensors import Applied, hazard
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import FLOAT16, LOW
from precision_lint.domains.values import (
    BUFFER,
    PARAMETER,
    DtypeValue,
    Scalar,
    Sequence,
    Tensor,
    number,
    text,
)
from precision_lint.events import Place
from precision_lint.hazards.counting import integral_modes, report_integers, rounded_integers
from precision_lint.hazards.places import anchor, made_at, roots

LISTED: Final = frozenset({"matmul", "bmm", "mm", "einsum", "baddbmm"})
"""Products that autocast runs in half."""
MULTIPLIED: Final = LISTED | {"mul", "outer", "div"}
RESHAPED: Final = frozenset({
    "cast", "cat", "stack", "transpose", "index", "expand", "clone", "detach", "flatten", "join",
    "element", "output", "repeat_interleave", "view", "reshape", "unsqueeze", "squeeze", "permute",
    "t", "repeat", "tile", "select",
})  # fmt: skip
RANGES: Final = frozenset({"arange", "range", "linspace"})


class Angle(NamedTuple):
    """A product of positions and frequencies.

    frequencies: the operand that holds them.  proven: they are powers of a constant.
    """

    product: Tensor
    operands: tuple[Tensor, Tensor]
    frequencies: Tensor
    proven: bool


def is_spectrum(value: Any) -> bool:
    """Whether a tensor holds powers of a constant to evenly spaced exponents."""
    value = peel(value)
    for _ in range(12):
        if not isinstance(value, Tensor) or not value.operands:
            return False
        if value.op == "pow":
            return _is_even(value.operands[-1]) and not _of_range(value.operands[0])
        if value.op in ("exp", "exp2", "logspace"):
            return value.op == "logspace" or _is_even(value.operands[0])
        if value.op == "div" and number(value.operands[0]) is not None:
            value = peel(value.operands[1])  # one over the powers
        elif value.op == "mul":
            first = peel(value.operands[0])
            value = first if isinstance(first, Tensor) else peel(value.operands[1])
        elif value.op == "join":
            return any(is_spectrum(one) for one in value.operands)
        elif value.op in RESHAPED or value.op in (
            "div",
            "neg",
            "reciprocal",
            "mul",
            "where",
            "buffer",
        ):
            value = peel(value.operands[0])
        else:
            return False
    return False


def _of_range(value: Any) -> bool:
    """Whether a value is computed of evenly spaced numbers, and of nothing else."""
    return any(one.op in RANGES for one in behind(value, 12))


def _is_even(value: Any) -> bool:
    """Whether a value is evenly spaced: a range, scaled and shifted, not its square as in a bell curve."""
    return _of_range(value) and not any(one.op in ("pow", "square") for one in behind(value, 12))


def _source(value: Any) -> Tensor | None:
    """What an operand was before it was reshaped and cast."""
    value = peel(value)
    while (
        isinstance(value, Tensor)
        and value.op in RESHAPED
        and value.op not in ("cat", "stack", "join")
        and value.operands
    ):
        value = peel(value.operands[0])
    return value if isinstance(value, Tensor) else None


def _is_count(value: Any) -> bool:
    """Whether a tensor holds whole numbers, whatever its dtype."""
    value = peel(value)
    return any(
        one.op in RANGES or integral_modes(one) == dtypes.ALL_MODES for one in behind(value, 10)
    )


def angle_of(product: Tensor) -> Angle | None:
    """A product as positions times frequencies; None: nothing shows that it is one."""
    start = {"einsum": 1, "baddbmm": 1}.get(product.op, 0)
    operands = [peel(one) for one in product.operands[start : start + 2]]
    if len(operands) < 2 or not all(isinstance(one, Tensor) for one in operands):
        return None
    pair = (operands[0], operands[1])
    spectra = [one for one in pair if is_spectrum(one)]
    if len(spectra) == 1:
        return Angle(product, pair, spectra[0], True)
    for one, other in (pair, pair[::-1]):
        source = _source(one)
        if (
            source is not None
            and source.flags & PARAMETER
            and source.flags & BUFFER
            and _is_count(other)
        ):
            return Angle(product, pair, one, False)
    if product.op == "outer" or all(_is_cast(one) for one in pair):
        return Angle(product, pair, pair[1], False)
    return None


def _is_cast(value: Tensor) -> bool:
    return any(one.op == "cast" for one in _chain(value))


def _chain(value: Any) -> list[Tensor]:
    """An operand and what it was before it was reshaped and cast."""
    found: list[Tensor] = []
    value = peel(value)
    while isinstance(value, Tensor) and len(found) < 12:
        found.append(value)
        if value.op not in RESHAPED or value.op in ("cat", "stack", "join") or not value.operands:
            break
        value = peel(value.operands[0])
    return found


def _products(value: Any) -> list[Tensor]:
    """The products that angles are made by."""
    pending, seen, found = [peel(value)], set[int](), []
    while pending and len(seen) < 24:
        one = pending.pop()
        if not isinstance(one, Tensor) or id(one) in seen:
            continue
        seen.add(id(one))
        if one.op in ("mul", "div") and any(_is_constant(part) for part in one.operands[:2]):
            pending += [peel(part) for part in one.operands[:2]]
        elif one.op in MULTIPLIED:
            found.append(one)
        elif one.op in ("add", "sub"):
            pending += [peel(part) for part in one.operands[:2]]
        elif one.op in ("cat", "stack") and one.operands and isinstance(one.operands[0], Sequence):
            pending += [peel(part) for part in one.operands[0].items or ()]
        elif one.op in RESHAPED:
            pending += [
                peel(part) for part in (one.operands if one.op == "join" else one.operands[:1])
            ]
    return found


def _is_constant(value: Any) -> bool:
    return isinstance(value, Scalar)


@hazard("cos", "sin", "polar")
def turned(it: Interpreter, applied: Applied) -> None:
    """Angles whose cosine or sine is taken."""
    for product in _products(applied.tensor(1 if applied.name == "polar" else 0)):
        angle = angle_of(product)
        if angle is not None and _half(product):
            _report(it, angle, made_at_turn(it, applied, product))
            continue
        for operand in product.operands[:2]:
            for one in rounded_integers(operand):
                report_integers(it, one, "neighbours")


def made_at_turn(it: Interpreter, applied: Applied, product: Tensor) -> Place | None:
    return it.place(applied.node) if product.home is it.module else None


@hazard("einsum", "outer")
def multiplied_out(it: Interpreter, applied: Applied) -> None:
    """Positions times the powers of a constant, each by each: nothing else is made of these."""
    if applied.name == "einsum" and not _is_outer(text(applied.values[0])):
        return
    angle = angle_of(applied.result)
    if angle is not None and angle.proven:
        _report(it, angle, None)


def _is_outer(equation: str | None) -> bool:
    """Whether an equation sums over nothing, and no two operands share all dimensions."""
    if equation is None or "->" not in equation:
        return False
    inputs, _, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    letters = set("".join(terms)) - {"."}
    return len(terms) == 2 and letters <= set(output) and not set(terms[0]) & set(terms[1])


def _report(it: Interpreter, angle: Angle, turn: Place | None) -> None:
    product = angle.product
    if product.node is None or product.home is not it.module or _on_cpu(angle):
        return
    modes = _half(product)
    if not modes:
        return
    assumptions = product.assumptions
    rounded = _rounded(it, angle)
    for one in angle.operands:
        for part in _chain(one):
            source = part.operands[1] if part.op == "cast" and len(part.operands) > 1 else None
            if isinstance(source, DtypeValue) and source.source is not None:
                assumptions |= source.source.assumptions
    if _of_grid(angle) or (not _counts(angle) and _follows_positions(angle)):
        assumptions |= assume.SIZE
    for one in angle.operands:
        for part in behind(one, 6):
            it.retract("integers-in-half", part)
    start = {"einsum": 1, "baddbmm": 1}.get(product.op, 0)
    it.emit(
        "rotary-angle",
        product.node,
        modes,
        assumptions,
        about=angle.frequencies,
        half="float16" if any(d & FLOAT16 for d in product.dtypes) else "bfloat16",
        listed=product.op in LISTED and bool(modes & dtypes.AMP_MODES),
        operands=roots(it, product, range(start, start + 2)),
        anchor=anchor(it, product, start),
        rounded=rounded,
        turn=turn,
        frequencies=made_at(it, angle.frequencies),
    )


def _half(product: Tensor) -> int:
    return dtypes.modes_of(product.dtypes, LOW)


def _counts(angle: Angle) -> bool:
    """Whether the frequencies are multiplied by whole numbers, not by a time from 0 to 1."""
    other = angle.operands[0] if angle.operands[1] is angle.frequencies else angle.operands[1]
    return _is_count(other)


def _of_grid(angle: Angle) -> bool:
    """Whether positions are those of a grid: with two dimensions or more, none has thousands."""
    return any(
        one.data == "torch.meshgrid" for operand in angle.operands for one in behind(operand, 12)
    )


def _follows_positions(angle: Angle) -> bool:
    """Whether the frequencies take the dtype of what they multiply: then these are floats."""
    other = angle.operands[0] if angle.operands[1] is angle.frequencies else angle.operands[1]
    behind_other = [id(one) for one in behind(other, 6)]
    for part in _chain(angle.frequencies):
        given = part.operands[1] if part.op == "cast" and len(part.operands) > 1 else None
        if (
            isinstance(given, DtypeValue)
            and given.source is not None
            and id(peel(given.source)) in behind_other
        ):
            return True
    return False


def _rounded(it: Interpreter, angle: Angle) -> Place | None:
    """Where an operand is made in, or cast to, what may be half."""
    for one in angle.operands:
        for part in _chain(one):
            if part.op in ("cast", "arange") and dtypes.modes_of(part.dtypes, LOW):
                return made_at(it, part)
    return None


def _on_cpu(angle: Angle) -> bool:
    """Whether both operands are made here without a device: CUDA's autocast leaves these alone."""
    for one in angle.operands:
        leaves = [
            part
            for part in behind(one, 24)
            if not any(isinstance(peel(o), Tensor) for o in part.operands)
        ]
        if not leaves:
            return False
        for leaf in leaves:
            if leaf.op not in RANGES or not isinstance(leaf.node, ast.Call):
                return False
            if any(keyword.arg == "device" for keyword in leaf.node.keywords):
                return False
    return not any(dtypes.modes_of(one.dtypes, LOW) for one in angle.operands)
