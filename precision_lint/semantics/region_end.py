"""The statements behind a forward pass that need not stand in its region."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

from precision_lint.api import Edit

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context

_TRAINING = frozenset({
    "backward", "scale", "step", "update", "zero_grad", "unscale_", "clip_grad_norm_",
    "clip_grad_value_", "parameters", "item", "append", "get_scale", "set_to_none", "format",
    "print", "detach", "set_postfix", "float", "is_enabled", "sum", "mean", "len", "get_last_lr",
})  # fmt: skip
"""Calls that may stand behind the region as well as in it."""
_NEVER = ast.MatMult | ast.FunctionDef | ast.ClassDef | ast.With | ast.Return


class RegionEnd:
    """Where a region may end: in front of the backward pass and all that follows it."""

    @staticmethod
    def first_backward(body: Sequence[ast.stmt]) -> ast.Call | None:
        """The first backward pass of a block."""
        passes = [
            node
            for inner in body
            for node in ast.walk(inner)
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "backward"
        ]
        return min(passes, key=lambda call: (call.lineno, call.col_offset), default=None)

    @staticmethod
    def behind(body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The last statements of a block if they only take gradients, step and log."""
        first = RegionEnd.first_backward(body)
        for place, statement in enumerate(body):
            if first is not None and any(node is first for node in ast.walk(statement)):
                moved = list(body[place:])
                return moved if place and all(map(RegionEnd.trains, moved)) else []
        return []

    @staticmethod
    def outdented(moved: Sequence[ast.stmt], indent: str, at: Context) -> tuple[Edit, ...] | None:
        """Edits that bring consecutive statements to an indentation."""
        inner = at.edit.indentation(moved[0])
        if indent.strip() or inner.strip() or not inner.startswith(indent):
            return None
        extra, lines, text = len(inner) - len(indent), at.source.lines, at.source.text
        edits = []
        for row in range(moved[0].lineno, (moved[-1].end_lineno or 0) + 1):
            start = lines[row - 1] + len(indent)
            if text[start : start + extra] == inner[len(indent) :]:
                edits.append(Edit(start, start + extra, ""))
            elif text[lines[row - 1] :].split("\n", 1)[0].strip():
                return None
        return tuple(edits)

    @staticmethod
    def trains(statement: ast.stmt) -> bool:
        """Whether a statement only takes gradients, steps and logs."""
        for part in ast.walk(statement):
            if isinstance(part, ast.Call):
                name = getattr(part.func, "attr", getattr(part.func, "id", ""))
                if name not in _TRAINING:
                    return False
            elif isinstance(part, _NEVER):
                return False
            elif isinstance(part, ast.Constant | ast.JoinedStr) and part.end_lineno != part.lineno:
                return False  # a string keeps the blanks of its lines
        return True
