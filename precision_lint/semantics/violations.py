"""Broken steps of the GradScaler protocol, as rules receive them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from precision_lint.api import Confidence, Evidence, Position
from precision_lint.semantics.effects import Step


@dataclass(frozen=True, eq=False)
class Violation:
    """A broken step of the protocol.

    node: what to flag; backward: the scaled backward (None: it is in another function);
    first: the earlier ``unscale_`` of a double one; steps, unscales: ``scaler.step`` and
    ``scaler.unscale_`` calls of this function that follow on some path, before ``update`` and the
    next backward; helper: the called function in which it happens, and inner: where in it;
    sometimes_unscaled: another path reaches the node with unscaled gradients, or with whatever is
    right there; guessed: only the callee's name says that it reads or clips; caller: the scaled
    backward of a caller; how: which of a kind's defects it is; updates: ``scaler.update`` calls
    that follow.
    """

    kind: str
    node: ast.expr
    scaler: str
    optimizer: str
    backward: ast.expr | None
    first: ast.expr | None
    steps: tuple[ast.Call, ...]
    unscales: tuple[ast.Call, ...]
    helper: Helper | None
    sometimes_unscaled: bool
    after_step: bool = False
    unscaled: tuple[str, ...] = ()
    """Optimizers that were unscaled before, on the path that broke the protocol."""
    guessed: bool = False
    inner: Step | None = None
    origin: Step | None = None
    depth: int = 0
    caller: ast.expr | None = None
    how: str = ""
    updates: tuple[ast.Call, ...] = ()
    later: ast.expr | None = None
    """Where the gradients are used that the flagged node spoilt."""
    under: tuple[str, ...] = ()
    """Conditions around a backward that is not scaled, other than those that count iterations."""
    within: ast.expr | None = None
    """What to flag instead of ``node``: the place in a helper that knows the scaler itself."""

    @property
    def place(self) -> ast.expr:
        """What to flag."""
        return self.node if self.within is None else self.within

    @property
    def via(self) -> str:
        """`` in helper()`` where the flagged node is a call that leads there."""
        return f" in {self.helper.name}()" if self.helper and self.within is None else ""

    @property
    def confidence(self) -> Confidence:
        """How sure it is that this is wrong."""
        if self.sometimes_unscaled:
            return Confidence.POSSIBLE
        seen = self.backward is not None and not self.guessed
        return Confidence.CERTAIN if seen else Confidence.LIKELY

    def traced(self, note: Callable[[ast.expr, str], Evidence], message: str) -> list[Evidence]:
        """Where in the helper it happens, in this file or another one."""
        inner = self.inner
        if self.helper is None or inner is None:
            return []
        led = [note(self.node, "it is reached from here")] if self.within is not None else []
        if inner.node is not None:
            return led if inner.node is self.within else [*led, note(inner.node, message)]
        place = Position(inner.row, inner.column + 1)
        return [Evidence(message, place, place, inner.filename)]


@dataclass(frozen=True)
class Helper:
    """A called function; ``filename`` is None in the same file."""

    name: str
    filename: str | None
