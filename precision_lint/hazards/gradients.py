"""What code does to gradients between the backward and the step, for ``typestate``."""

from __future__ import annotations

from precision_lint.dataflow.graph import behind, peel
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.operators import owners_of
from precision_lint.dataflow.protocol import note
from precision_lint.dataflow.tensors import Applied, hazard
from precision_lint.domains.values import GRADIENT, Special, Tensor

READS = frozenset({
    "isnan", "isinf", "isfinite", "norm", "linalg.norm", "linalg.vector_norm", "histc", "histogram", "allclose",
    "abs", "square", "std", "var", "item", "format", "aminmax", "topk", "quantile", "count_nonzero",
})  # fmt: skip
"""Operations that ask how large a gradient is."""
FINITE = frozenset(
    {"isnan", "isinf", "isfinite", "eq", "ne", "logical_or", "logical_not", "bitwise_not"}
)


def _gradient(value: object) -> bool:
    return isinstance(value, Tensor) and bool(value.flags & GRADIENT)


@hazard("*", "item", "format")
def inspected(it: Interpreter, applied: Applied) -> None:
    """A gradient that is looked at, added to, clamped, or cleaned."""
    first = applied.tensor(0)
    if first is None or not first.flags & GRADIENT:
        return
    name = applied.name
    if name in ("zero", "fill") and applied.inplace and peel(first).op == "grad":
        _zeroed(it, applied, peel(first))
    elif name in ("nan_to_num", "nansum") or _cleans(applied):
        note(it, "scrub", applied.node, first)
    elif name in ("clamp", "clip", "hardtanh") and peel(first).op == "grad":
        note(it, "clip", applied.node, None)
    elif name == "cast" or name == "index":
        return
    elif name in READS or applied.operation.reduction or applied.operation.result == "bool":
        note(it, "read", applied.node, first)
    elif name in ("add", "sub") and _adds_foreign(applied):
        note(it, "gradient-added", applied.node, first)


def _zeroed(it: Interpreter, applied: Applied, gradient: Tensor) -> None:
    """``p.grad.zero_()``: the gradients of whoever holds ``p``."""
    parameter = peel(gradient.operands[0]) if gradient.operands else None
    held = parameter.data if isinstance(parameter, Tensor) else None
    for owner in owners_of(held) if isinstance(held, Special) else ():
        note(it, "zero", applied.node, owner)


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
