"""What makes half precision of an object what it says, so that it is that of no other model."""

from __future__ import annotations

import ast
import re

from precision_lint.project.literals import dotted
from precision_lint.project.spellings import is_setting, normal, switch

_ONE = re.compile(
    r"^(?!.*(?i:train|runner|engine|accelerator|fabric|plugin|strategy|config|arg|precision|amp))"
    r"(?:[A-Z]|(?:get|build|make|create)_)"
)
"""Names of classes and functions that make one model of a project, and nothing that runs others."""


class Objects:
    """Statements of methods, their parameters, and parameters of what makes one object."""

    def __init__(self) -> None:
        self._parts: set[int] = set()
        self._held: dict[int, str] = {}
        """Attributes of ``self`` that statements' values call a method of."""
        self._built: set[str] = set()
        """Attributes of ``self`` that an object of a class is made for."""

    def add(self, node: ast.Assign | ast.AnnAssign | ast.Expr) -> None:
        """Note a statement of a method."""
        call = node.value
        self._parts.add(id(call))
        if not isinstance(call, ast.Call):
            return
        called = dotted(call.func)
        if called[:1] == ["self"] and len(called) == 3:
            self._held[id(call)] = called[1]
        elif called[-1][:1].isupper():
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", 0)]
            paths = [dotted(t) for t in targets if isinstance(t, ast.AST)]
            self._built.update(path[1] for path in paths if path[:1] == ["self"] and len(path) == 2)

    def add_parameters(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, *, of_method: bool
    ) -> None:
        """Note the settings among the parameters of a method, or of what makes one object."""
        if of_method or _makes_one(node):
            is_one = switch if of_method else is_setting
            parameters = (p for p in ast.walk(node.args) if isinstance(p, ast.arg))
            self._parts.update(id(p) for p in parameters if is_one(normal(p.arg)))

    def keep(self, node: ast.AST, trains: bool) -> bool:
        """Whether what a node says is of one object; where a file trains, if that was made here."""
        built = self._held.get(id(node)) in self._built
        return id(node) in self._parts and (built or not trains)


def _makes_one(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function makes one object, such as a detector, by its name or what it returns."""
    last = function.body[-1]
    made = last.value if isinstance(last, ast.Return) else None
    called = dotted(made.func)[-1] if isinstance(made, ast.Call) else ""
    return _ONE.match(function.name) is not None or _ONE.match(called) is not None
