"""Training loops: scalers and optimizers that do not fit the precision, checkpoints, regions around steps."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.libraries import SAVED
from precision_lint.dataflow.objects import weights_of
from precision_lint.dataflow.operators import TESTED, owners_of
from precision_lint.dataflow.training import HANDLED, OPTIMIZERS_MADE
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import ALL_MODES, BFLOAT16, CODE, FLOAT16, OTHER
from precision_lint.domains.values import (
    PARAMETER,
    Instance,
    Sequence,
    Special,
    Table,
    Tensor,
    Unknown,
    Value,
    number,
)
from precision_lint.events import Place
from precision_lint.torchmodel import optimizers

VANISHES = 2.98e-8
"""Up to here an epsilon is 0 in float16."""
COARSE = {FLOAT16: 2e-4, BFLOAT16: 2e-3}
"""Learning rates up to which updates of weights near 1 are rounded away."""


# dtypes of what is trained


def trained_dtype(it: Interpreter, parameters: Value | None) -> tuple[int, int, Place | None]:
    """The half dtype of what an optimizer trains, as written; the assumptions; where it was cast."""
    for vector, place in _trained(it, parameters):
        code = vector[CODE]
        half = code & (FLOAT16 | BFLOAT16)
        if half and not code & OTHER:
            return half, 0 if code == half else assume.BRANCH, place
    return 0, 0, None


def _trained(
    it: Interpreter, value: Value | None, depth: int = 4
) -> Iterator[tuple[dtypes.Dtypes, Place | None]]:
    """The dtypes of the parameters in what an optimizer is given: modules' parameters, lists, groups."""
    for owner in owners_of(value) if value is not None else ():
        yield _weights(it, owner)
    if isinstance(value, Tensor) and value.flags & PARAMETER:
        yield value.dtypes, None
    elif isinstance(value, Sequence) and depth:
        for item in value.items if value.items is not None else (value.element,):
            yield from _trained(it, item, depth - 1)
    elif isinstance(value, Table) and depth:
        yield from _trained(it, value.items.get("params"), depth - 1)


def _weights(it: Interpreter, owner: Value) -> tuple[dtypes.Dtypes, Place | None]:
    if isinstance(owner, Instance):
        vector, place = weights_of(it, owner)
        made = owner.root.node
        if place is None and made is not None and owner.root.home is not None:
            place = it.place(made, owner.root.home)
        return vector, place
    if isinstance(owner, Unknown) and owner.symbol.node is not None:
        symbol = owner.symbol
        return symbol.vector, it.place(
            symbol.node, symbol.home
        ) if symbol.node is not None else None
    return dtypes.V_ANY, None


def optimizer_made(it: Interpreter, made: Special) -> None:
    """An optimizer of half parameters: its epsilon is 0, or its updates are rounded away."""
    known = optimizers.optimizer(made["name"])
    half, assumptions, place = trained_dtype(it, made["parameters"])
    if not half or known is None or made.node is None:
        return
    given = {
        **dict(zip(known.parameters[1:], made["arguments"][1:], strict=False)),
        **made["keywords"],
    }
    if half & FLOAT16 and known.has_eps:
        epsilon = number(given.get("eps")) if "eps" in given else float(str(known.defaults["eps"]))
        if epsilon is not None and epsilon <= VANISHES:
            it.emit(
                "optimizer-epsilon", made.node, ALL_MODES, assumptions, name=made["name"],
                epsilon=epsilon, default="eps" not in given, cast=place,
            )  # fmt: skip
            return
    rate = number(given.get("lr")) if "lr" in given else None
    dtype = FLOAT16 if half & FLOAT16 else BFLOAT16
    if rate is None or rate <= COARSE[dtype]:
        it.emit(
            "half-parameters", made.node, ALL_MODES, assumptions, dtype=dtypes.NAMES[dtype],
            rate=rate, cast=place,
        )  # fmt: skip


OPTIMIZERS_MADE.append(optimizer_made)


def scaler_steps(it: Interpreter, scaler: Special | None, optimizer: Value, node: ast.AST) -> None:
    """A scaler that unscales float16 gradients."""
    if (
        scaler is None
        or not isinstance(optimizer, Special)
        or scaler.fields.get("enabled") is False
    ):
        return
    half, assumptions, place = trained_dtype(it, optimizer.fields.get("parameters"))
    if half & FLOAT16:
        it.emit_at(
            "half-parameters-scaled",
            place or it.place(node),
            ALL_MODES,
            assumptions | scaler.assumptions,
            optimizer=it.place(optimizer.node, optimizer.home)
            if optimizer.node is not None
            else None,
            step=it.place(node),
        )


HANDLED.append(scaler_steps)


# scalers


def scaler_truth(it: Interpreter, value: Value, node: ast.AST) -> None:
    """``if scaler:`` is true whether or not the scaler is enabled."""
    if isinstance(value, Special) and value.kind == "scaler" and "of" not in value.fields:
        if value.fields.get("optional"):
            return
        pointless = value.fields.get("enabled") is True
        assumptions = assume.MAGNITUDE if pointless else value.assumptions & ~assume.FLAG
        it.emit("scaler-truth", node, ALL_MODES, assumptions)


TESTED.append(scaler_truth)


# checkpoints


def saved(it: Interpreter, values: list[Value], node: ast.AST) -> None:
    """A checkpoint with the optimizer's state and without the scaler's."""
    states = [one for value in values for one in _states(value)]
    held = {one.fields["of"].kind for one in states if isinstance(one.fields.get("of"), Special)}
    if "optimizer" not in held or "scaler" in held:
        return
    scaler = next((one for one in _in_reach(it) if one.fields.get("enabled") is not False), None)
    if scaler is not None:
        made = it.place(scaler.node, scaler.home) if scaler.node is not None else None
        state = next(
            one
            for one in states
            if isinstance(one.fields.get("of"), Special) and one.fields["of"].kind == "optimizer"
        )
        it.emit(
            "scaler-not-saved", node, ALL_MODES, scaler.assumptions & ~assume.FLAG, scaler=made,
            state=it.place(state.node or node, state.home),
        )  # fmt: skip


SAVED.append(saved)


def _states(value: Any, depth: int = 4) -> Iterator[Special]:
    """State dicts in what is saved."""
    if isinstance(value, Special) and value.kind == "state":
        yield value
    elif isinstance(value, Table) and depth:
        for item in value.items.values():
            yield from _states(item, depth - 1)
    elif isinstance(value, Sequence) and depth:
        for item in value.items or ():
            yield from _states(item, depth - 1)


def _in_reach(it: Interpreter) -> Iterator[Special]:
    """Scalers that are held by the variables and the object at hand."""
    for value in list(it.variables.values()):
        if isinstance(value, Special) and value.kind == "scaler":
            yield value
        elif isinstance(value, Instance):
            for part in list(value.attributes.values()):
                if isinstance(part, Special) and part.kind == "scaler":
                    yield part
