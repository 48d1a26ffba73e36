"""Where a region may end: in front of the backward pass and all that follows it."""

from __future__ import annotations

import ast
from typing import Final

TRAINING: Final = frozenset({
    "backward", "scale", "step", "update", "zero_grad", "unscale_", "clip_grad_norm_",
    "clip_grad_value_", "parameters", "item", "append", "get_scale", "set_to_none", "format",
    "print", "detach", "set_postfix", "float", "is_enabled", "sum", "mean", "len", "get_last_lr",
})  # fmt: skip
"""Calls that may stand behind the region as well as in it."""
NEVER: Final = (ast.MatMult, ast.FunctionDef, ast.ClassDef, ast.With, ast.Return)


def behind(body: list[ast.stmt], call: ast.AST) -> list[ast.stmt]:
    """The last statements of a block, from a call on, if they only take gradients, step and log."""
    for place, statement in enumerate(body):
        if any(node is call for node in ast.walk(statement)):
            moved = body[place:]
            return moved if place and all(map(_trains, moved)) else []
    return []


def _trains(statement: ast.stmt) -> bool:
    """Whether a statement only takes gradients, steps and logs."""
    for part in ast.walk(statement):
        if isinstance(part, ast.Call):
            name = getattr(part.func, "attr", getattr(part.func, "id", ""))
            if name not in TRAINING:
                return False
        elif isinstance(part, NEVER):
            return False
        elif isinstance(part, (ast.Constant, ast.JoinedStr)) and part.end_lineno != part.lineno:
            return False  # a string keeps the blanks of its lines
    return True
