"""Calls of functions of the project, which are what their decorators make of them."""

from __future__ import annotations

import ast

from precision_lint.dataflow.calls import CALLEES
from precision_lint.dataflow.interpreter import OUTSIDE, Interpreter
from precision_lint.dataflow.protocol import SAVED
from precision_lint.domains.values import ClassValue, Closure, Instance, Table, Value
from precision_lint.syntax.program import Function, scan


def _closure(
    it: Interpreter,
    callee: Closure,
    arguments: list[Value],
    keywords: dict[str, Value],
    node: ast.AST,
) -> Value:
    tables: list[Value] = [v for v in (*arguments, *keywords.values()) if isinstance(v, Table)]
    if tables and "save" in scan(callee.function).names:
        for look in SAVED:
            look(it, tables, node)
    made = decorated(it, callee)
    if made is not None:
        bound = [callee.owner] if callee.owner is not None else []
        return it.call(made, [*bound, *arguments], keywords, node)
    owner = callee.owner
    if owner is None and callee.function.kind == "method" and arguments:
        owner, *arguments = arguments  # ``Class.method(object)``, as a decorator calls it
    return it.run(callee.function, owner, arguments, keywords, node, callee.outer)


CALLEES[Closure] = _closure


def decorated(it: Interpreter, callee: Closure) -> Value | None:
    """What is called in the place of a function; None: the function itself.

    Decorators of libraries change no result, and those that open regions are entered with the function.
    """
    function = callee.function
    if callee.bare or callee.outer is not None or function.kind in ("class", "property", "lambda"):
        return None
    known: dict[Function, Value | None] = it.program.decorated
    if function not in known:
        known[function] = None  # a decorator that calls it finds the function itself
        frame, unpacked = it.save(), it.unpacked
        it.module, it.function, it.variables, it.outer = function.module, None, {}, None
        it.region, it.loop, it.trace = OUTSIDE, None, []
        try:
            known[function] = _made(it, function)
        finally:
            it.restore(frame)
            it.unpacked = unpacked
    return known[function]


def _made(it: Interpreter, function: Function) -> Value | None:
    made: Value = Closure(function, bare=True)
    for node in reversed(getattr(function.node, "decorator_list", ())):
        target = node.func if isinstance(node, ast.Call) else node
        maker = it.expr(target)
        if not isinstance(maker, (Closure, ClassValue)):
            continue
        applied = maker if target is node else it.expr(node)
        found = it.call(applied, [made], {}, node)
        if isinstance(found, (Closure, Instance)):
            made = found
    return None if isinstance(made, Closure) and made.function is function else made
