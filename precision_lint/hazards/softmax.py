"""Probabilities of classes, and their logarithms, in half."""

from __future__ import annotations

from typing import Any, Final

from precision_lint.dataflow.graph import is_op, peel, same, through
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.tensors import Applied, hazard
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import LOW
from precision_lint.domains.values import (
    DETACHED,
    GRADIENT,
    Scalar,
    Sequence,
    Tensor,
    Value,
    number,
    text,
)
from precision_lint.events import Link
from precision_lint.hazards.overflow import report
from precision_lint.hazards.places import operand_place

SOME: Final = ("index", "masked_fill", "index_put")
"""What takes some of the numbers, or puts another one in the place of some."""


@hazard("softmax")
def half_probabilities(it: Interpreter, applied: Applied) -> None:
    """Probabilities of classes, straight from a layer, in half."""
    value = peel(applied.tensor(0))
    if isinstance(value, Tensor) and _is_layer(value):
        modes = dtypes.modes_of(applied.seen.get(0, value.dtypes), LOW)
        report(it, "half-softmax", applied, value, modes, 0, reduction="")


def _is_layer(value: Value | None, depth: int = 6) -> bool:
    """Whether a value is what a linear layer gives, also as a product with weights, at a temperature or with
    some of the numbers masked."""
    value = peel(value) if value is not None else None
    if not isinstance(value, Tensor) or not depth:
        return False
    if value.op == "join":
        return all(_is_layer(one, depth - 1) for one in value.operands)
    if value.op == "where":
        return any(_is_layer(one, depth - 1) for one in value.operands[1:])
    if value.op in SOME or (value.op in ("mul", "div") and isinstance(value.operands[1], Scalar)):
        return _is_layer(value.operands[0], depth - 1)
    if value.op not in ("matmul", "mm"):
        return value.op == "linear"
    second = peel(value.operands[1]) if len(value.operands) > 1 else None
    while isinstance(second, Tensor) and second.op in ("t", "transpose", "mT"):
        second = peel(second.operands[0])
    return isinstance(second, Tensor) and second.op in ("weight", "parameter")


@hazard("sub")
def doubt(it: Interpreter, applied: Applied) -> None:
    """One minus the largest of the probabilities, in half: 0, or a multiple of the step below 1."""
    value = peel(applied.tensor(1))
    if number(applied.values[0]) != 1 or not is_op(value, "amax", "max"):
        return
    made = peel(value.operands[0])
    if is_op(made, "softmax"):
        place = operand_place(it, made, 0)
        it.emit(
            "half-softmax",
            made.node if made.home is it.module else applied.node,
            dtypes.modes_of(value.dtypes, LOW) & dtypes.modes_of(made.dtypes, LOW),
            value.assumptions,
            (Link("one minus the largest probability", it.place(applied.node)),),
            about=value,
            operation="softmax",
            reduction="",
            upcast=(place,) if place is not None else (),
            doubt=True,
            key="doubt",  # which class is the most probable may be asked as well
        )


@hazard("log_softmax", "cross_entropy", "nll_loss", "logsigmoid")
def half_softmax(it: Interpreter, applied: Applied) -> None:
    """Log probabilities in half: three digits, of numbers between 0 and -20."""
    value = peel(applied.tensor(0))
    if not isinstance(value, Tensor) or applied.name == "nll_loss":
        return
    if applied.name == "logsigmoid" and value.op != "sub":
        return
    modes = dtypes.modes_of(applied.seen.get(0, value.dtypes), LOW)
    if value.flags & GRADIENT or (value.flags & DETACHED and applied.name == "logsigmoid"):
        return
    report(it, "half-softmax", applied, value, modes, 0, reduction=text(applied["reduction"]) or "")


SELECTS: Final = frozenset({
    "index", "gather", "view", "squeeze", "unsqueeze", "element", "unbind", "take_along_dim", "index_select",
})  # fmt: skip
"""What takes some of the scores, or all of them in another shape."""


@hazard("sub")
def log_softmax_by_hand(it: Interpreter, applied: Applied) -> None:
    """``scores.gather(...) - scores.logsumexp(...)`` in half: their difference is smaller than either."""
    total = peel(applied.tensor(1))
    while is_op(total, "stack", "cat") or (isinstance(total, Tensor) and total.op in SELECTS):
        total = _first(total)
    if not isinstance(total, Tensor) or total.op != "logsumexp" or total.home is not it.module:
        return
    scores = _whole(total.operands[0])
    if not isinstance(scores, Tensor) or not same(_whole(applied.tensor(0)), scores):
        return
    modes = dtypes.modes_of(applied.result.dtypes, LOW) & dtypes.modes_of(total.dtypes, LOW)
    place = operand_place(it, total, 0)
    outside = 0 if it.region.explicit else assume.OUTSIDE  # inside, ``logsumexp`` gives float32
    it.emit(
        "half-softmax", applied.node, modes, scores.assumptions | total.assumptions | outside,
        about=scores, operation="logsumexp", reduction="", upcast=(place,) if place is not None else (),
    )  # fmt: skip


def _whole(value: Value | None) -> Any:
    """The scores that some were taken of, also by a loop over what nothing is known of."""
    value = through(value, SELECTS)
    symbol = value.symbol if isinstance(value, Tensor) else None
    if symbol is None or symbol.owner is None or symbol.label != "*":
        return value
    return _whole(symbol.owner.tensor)


def _first(value: Tensor) -> Value | None:
    """What an operation was given first, or the first of what it puts together."""
    inner = value.operands[0] if value.operands else None
    if isinstance(inner, Sequence):
        inner = inner.items[0] if inner.items else inner.element
    return peel(inner) if inner is not None else None


@hazard("argmax")
def chosen(it: Interpreter, applied: Applied) -> None:
    """Which class is the most probable, which is all that is asked."""
    made = peel(applied.tensor(0))
    if is_op(made, "softmax", "log_softmax"):
        it.retract("half-softmax", made)
