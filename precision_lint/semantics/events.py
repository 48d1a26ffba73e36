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
BYPASSED = "scaler-bypassed"
PLAIN_BACKWARD = "backward-unscaled"
UPDATE = "update-misplaced"
PARTLY_UNSCALED = "partly-unscaled-clip"
SCRUBBED = "scaled-gradient-scrubbed"
ZEROED = "zeroed-before-step"
PROTOCOL = frozenset({
    READ_SCALED, CLIP_SCALED, UNSCALED_TWICE, BYPASSED, PLAIN_BACKWARD, UPDATE, PARTLY_UNSCALED,
    SCRUBBED, ZEROED,
})  # fmt: skip
"""What the protocol of a GradScaler can be broken by."""

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
