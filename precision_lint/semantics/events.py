"""Events that the analysis emits for rules that look at a state rather than at one node."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from precision_lint.semantics.regions import Region
from precision_lint.semantics.values import Value

PROMOTION = "creation-promotes"
READ_SCALED = "scaled-gradient-read"
CLIP_SCALED = "scaled-gradient-clipped"
UNSCALED_TWICE = "unscaled-twice"

CREATIONS = (
    "zeros", "ones", "full", "empty", "rand", "randn", "linspace", "logspace", "arange", "eye",
    "tensor", "as_tensor", "from_numpy", "normal",
)  # fmt: skip
"""Calls whose result may carry a promotion event."""


@dataclass(frozen=True, eq=False)
class Promotion:
    """A tensor created without dtype widens a tensor that may be half.

    made: the creation call; use: the operation that promotes; other: the operand it widens.
    """

    made: ast.Call
    use: ast.expr
    other: ast.expr
    value: Value
    region: Region
    kind: str = PROMOTION

    @property
    def node(self) -> ast.expr:
        return self.made
