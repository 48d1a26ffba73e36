"""Functions of the project that do to their parameters what the caller could do itself."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precision_lint.api import Evidence
from precision_lint.semantics.index import Function
from precision_lint.semantics.module import Module

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context

LONGEST = 40
"""Rows of a helper; what longer functions do depends on more than two of their parameters."""


@dataclass(frozen=True)
class Helper:
    """A short function, and what one call gives its parameters."""

    function: Function
    module: Module
    given: Mapping[str, ast.expr]

    @classmethod
    def of(cls, call: ast.Call, at: Context) -> Helper | None:
        """The function of the project that a call names; None: it is none, or a long one."""
        found = at.module.callee(call.func, at.function, objects=False)
        if found is None or any(isinstance(a, ast.Starred) for a in call.args):
            return None
        function, module = found
        if isinstance(function.node, ast.Module) or function.length > LONGEST:
            return None
        taken = function.node.args
        names = [p.arg for p in (*taken.posonlyargs, *taken.args)]
        if function.is_method and not function.is_static:
            names = names[1:]
        given = dict(zip(names, call.args, strict=False))
        given |= {k.arg: k.value for k in call.keywords if k.arg is not None}
        return cls(function, module, given)

    def passed(self, node: ast.expr) -> ast.expr | None:
        """The argument that an expression of the helper is, if the helper never rebinds it."""
        if not isinstance(node, ast.Name):
            return None
        names = self.function.names.get(node.id, [])
        bound = any(isinstance(name.ctx, (ast.Store, ast.Del)) for name in names)
        return None if bound else self.given.get(node.id)

    def note(self, node: ast.expr, message: str) -> Evidence:
        """A link of the evidence chain at a place in the helper."""
        return self.module.note(node, message)
