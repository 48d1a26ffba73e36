"""Methods of the project's classes that operators, items, ``with`` and assignments call."""

from __future__ import annotations

import ast

from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.objects import ancestry, find_method
from precision_lint.domains.values import NONE, Instance, Special, Value
from precision_lint.syntax.program import Class, Function


def called(
    it: Interpreter, owner: Value, name: str, arguments: list[Value], node: ast.AST
) -> Value | None:
    """What a method gives that ``owner[index]`` and the like call; None: the class has none."""
    if not isinstance(owner, Instance) or isinstance(owner.cls, str):
        return None
    method = find_method(it, owner.cls, name)
    return it.run(method, owner, arguments, {}, node) if method is not None else None


def entered(it: Interpreter, value: Value, node: ast.AST) -> Value:
    """What ``with value as name`` binds."""
    if isinstance(value, Special) and value.kind == "generator":  # under ``contextmanager``
        element: Value | None = value.fields["element"]
        return element if element is not None else NONE
    given = called(it, value, "__enter__", [], node)
    return value if given is None else given


def setter(it: Interpreter, cls: Class | str, name: str) -> Function | None:
    """The method that an assignment to a property calls."""
    line = ancestry(it, cls) if isinstance(cls, Class) else []
    found = (base.setters.get(name) for base in line if isinstance(base, Class))
    return next((one for one in found if one is not None), None)
