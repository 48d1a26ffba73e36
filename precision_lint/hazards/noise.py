"""Random numbers that are drawn in half, for a computation in float32."""

from __future__ import annotations

import ast
from typing import Final

from precision_lint.dataflow.graph import peel
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.tensors import Applied, hazard
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import FLOAT16, LOW, OTHER, WIDE
from precision_lint.domains.values import DtypeValue, Tensor
from precision_lint.hazards.places import in_sight
from precision_lint.syntax.program import every

DRAWN: Final = frozenset({"randn", "randn_like", "rand", "rand_like"})


@hazard("cast")
def coarse(it: Interpreter, applied: Applied) -> None:
    """``torch.randn(shape, dtype=x.dtype).float()``: the numbers lie on the grid of half."""
    value = peel(applied.tensor(0))
    if not isinstance(value, Tensor) or value.op not in DRAWN or value.home is not it.module:
        return
    node = _named(it, value)
    if node is None or not in_sight(it, value):
        return  # who is handed numbers casts up what it is given
    if _handed_on(it, applied.node):
        return  # half is what another function is to be given
    half = dtypes.surely(value.dtypes, LOW)
    modes = half & dtypes.surely(applied.result.dtypes, WIDE)
    assumptions = value.assumptions
    if half == dtypes.ALL_MODES and all(one & OTHER for one in applied.result.dtypes):
        modes, assumptions = half, assumptions | assume.BRANCH  # who asks for float32 gets half
    if modes:
        it.emit(
            "coarse-noise",
            node,
            modes,
            assumptions,
            about=value,
            half="float16" if any(one & FLOAT16 for one in value.dtypes) else "bfloat16",
            cast=it.place(applied.node),
        )


CAST_OR_ASKED: Final = frozenset({
    "float", "double", "to", "type", "shape", "dtype", "device", "size", "numel", "dim", "ndim",
})  # fmt: skip
"""What is done with numbers that only a computation in float32 uses."""


def _handed_on(it: Interpreter, cast: ast.AST) -> bool:
    """Whether the function at hand uses what is cast in other ways, too, as an argument or a copy."""
    drawn = getattr(getattr(cast, "func", None), "value", None)
    while isinstance(drawn, ast.Call) and getattr(drawn.func, "attr", "") in ("detach", "clone"):
        drawn = getattr(drawn.func, "value", None)
    if not isinstance(drawn, ast.Name) or it.function is None:
        return False
    uses = plain = 0
    for one in every(it.function.node):
        inner = one.value if isinstance(one, ast.Attribute) else None
        if isinstance(one, ast.Name) and one.id == drawn.id and isinstance(one.ctx, ast.Load):
            uses += 1
        elif isinstance(inner, ast.Name) and inner.id == drawn.id and one.attr in CAST_OR_ASKED:
            plain += 1
    return uses > plain


def _named(it: Interpreter, value: Tensor) -> ast.AST | None:
    """Where the dtype is written that numbers are drawn in; None: torch's own, or a mode's."""
    for one in value.operands:
        if isinstance(one, DtypeValue) and one.node is not None and one.home is it.module:
            return one.node
    return value.node if value.op.endswith("_like") else None
