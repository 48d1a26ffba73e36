"""How large a value gets: bounds that are proven, and what layers usually give."""

from __future__ import annotations

from typing import Any, Final

from precision_lint.dataflow.graph import peel
from precision_lint.domains import assumptions as assume
from precision_lint.domains.dtypes import ANY, FLOAT16, MODES, OTHER, Dtypes
from precision_lint.domains.values import INF, Instance, Scalar, Tensor, number
from precision_lint.hazards.zeros import below_own_maximum, transparent

USUAL: Final[dict[str, float]] = {
    "layer_norm": 60.0, "rms_norm": 60.0, "group_norm": 60.0, "batch_norm": 60.0, "instance_norm": 60.0,
    "randn": 6.0, "randn_like": 6.0, "normal": 6.0, "weight": 16.0, "embedding": 16.0,
}  # fmt: skip
"""Magnitudes that are hardly ever exceeded, though nothing forbids it."""
KEEPS: Final = frozenset(
    {
        "mul",
        "add",
        "sub",
        "neg",
        "mean",
        "amax",
        "max",
        "cat",
        "stack",
        "dropout",
        "relu",
        "abs",
        "where",
    }
)


def magnitude(value: Any, depth: int = 6) -> float:
    """The largest magnitude that a value is known, or believed, to have; inf: unknown."""
    value = peel(value)
    if isinstance(value, Scalar):
        return max(abs(value.lo), abs(value.hi))
    if not isinstance(value, Tensor):
        return INF
    proven = max(abs(value.lo), abs(value.hi))
    if proven < INF:
        return proven
    usual = USUAL.get(value.op)
    if usual is not None:
        return usual
    if not depth or not value.operands:
        return INF
    return _of_parts(value, depth - 1)


def _of_parts(value: Tensor, depth: int) -> float:
    parts = value.operands
    if value.op == "join":
        return max(magnitude(one, depth) for one in parts)
    if transparent(value) or value.op in (
        "neg",
        "mean",
        "dropout",
        "relu",
        "leaky_relu",
        "gelu",
        "silu",
    ):
        if value.op in ("sum", "cumsum", "norm", "linalg.norm", "linalg.vector_norm", "square"):
            return INF
        return magnitude(parts[0], depth)
    if value.op in ("add", "sub") and len(parts) > 1:
        return magnitude(parts[0], depth) + magnitude(parts[1], depth)
    if value.op == "mul" and len(parts) > 1:
        first, second = magnitude(parts[0], depth), magnitude(parts[1], depth)
        return first * second if first and second else 0.0
    if value.op == "div" and len(parts) > 1:
        constant = number(parts[1])
        return magnitude(parts[0], depth) / abs(constant) if constant else INF
    if value.op == "where" and len(parts) > 2:
        return max(magnitude(parts[1], depth), magnitude(parts[2], depth))
    return INF


def half_modes(vector: Dtypes) -> int:
    """Mask of the modes in which a dtype is float16."""
    found = 0
    for mode in range(len(MODES)):
        one = vector[mode]
        if one & FLOAT16 and one <= ANY and not one & OTHER:
            found |= 1 << mode
    return found


def unbounded(size: float, limit: float, reach: float = 0.0) -> int | None:
    """What has to be assumed for a magnitude to exceed a limit; None: it does not."""
    if size <= limit:
        return None
    if size < INF or reach > limit:
        return 0
    return assume.MAGNITUDE


def is_shifted(value: Any) -> bool:
    """Whether a value is at most 0, or a tensor less its maximum."""
    value = peel(value)
    return isinstance(value, Tensor) and (value.hi <= 0 or below_own_maximum(value))


def holder(value: Any) -> Instance | None:
    """The layer that a value was computed by."""
    value = peel(value)
    data = value.data if isinstance(value, Tensor) else None
    return data if isinstance(data, Instance) else None
