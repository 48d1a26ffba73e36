"""Functions of autograd whose backward runs once more, without autocast, what their forward ran."""

from __future__ import annotations

import ast

from precision_lint.dataflow import objects
from precision_lint.dataflow.building import CALLED
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.parameters import is_outside
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.values import Instance, Symbol, Unknown, Value
from precision_lint.events import Place
from precision_lint.hazards.mismatch import methods_of
from precision_lint.syntax.program import Class, Function


def recomputed(it: Interpreter, callee: Value, node: ast.AST) -> None:
    """A backward calls something that its forward has kept and called as well."""
    if dtypes.regions_on(it.region.dtypes) or it.region.sites or not isinstance(node, ast.Call):
        return
    function, place = it.function, it.place(node)
    if it.backward is not None and (function is None or function.cls is not it.backward):
        function, place = _caller(it, it.backward)
    if function is None or function.cls is None or not is_outside(it, function):
        return
    forward = objects.find_method(it, function.cls, "forward")
    if forward is None or not (node.args or node.keywords) or _opens(function.cls):
        return
    called = _called(forward)
    again = called & _kept(it, function, callee) if function is it.function else called
    if again and (function is it.function or objects.of_own_parts(it)):
        assumed = assume.ENTRY | assume.NETWORK
        methods = methods_of(function.cls)
        it.emit_at("recomputed", place, dtypes.AMP_MODES & it.live, assumed, methods=methods)


def _caller(it: Interpreter, cls: Class) -> tuple[Function | None, Place]:
    """The function of a class that led here, and the call that it did so by."""
    call = it.calls
    while call is not None and call.outer is not None:
        if call.function is not None and call.function.cls is cls:
            return call.function, call.place
        call = call.outer
    return None, Place("", 0, 0, 0, 0)


def _kept(it: Interpreter, backward: Function, callee: Value) -> frozenset[str]:
    """The attributes of a context that lead to an unknown object."""
    if not isinstance(callee, Unknown):
        return frozenset()
    symbol, line = callee.symbol, list[Symbol]()
    while len(line) < 8:
        line.append(symbol)
        if symbol.owner is None:
            break
        symbol = symbol.owner
    context = it.variables.get(backward.parameters[0].arg) if backward.parameters else None
    if isinstance(context, Unknown):
        below = zip(line[1:], line, strict=False)
        return frozenset(one.label for owner, one in below if owner is context.symbol)
    if not isinstance(context, Instance):
        return frozenset()
    return frozenset(
        name
        for name, value in context.attributes.items()
        if isinstance(value, Unknown) and value.symbol in line
    )


def _called(forward: Function) -> frozenset[str]:
    """Attributes of a context that hold what ``forward`` calls, or whose items it calls."""
    if not forward.parameters:
        return frozenset()
    called: set[str] = set()
    items: dict[str, str] = {}
    kept: dict[str, str] = {}
    for node in ast.walk(forward.node):
        if isinstance(node, ast.Call):
            called.add(ast.unparse(node.func))
        elif isinstance(node, ast.For):
            items[ast.unparse(node.target)] = ast.unparse(node.iter)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            kept[ast.unparse(node.targets[0])] = ast.unparse(node.value)
    called |= {items[one] for one in called if one in items}
    context = forward.parameters[0].arg + "."
    return frozenset(
        name[len(context) :]
        for name, value in kept.items()
        if name.startswith(context) and (name in called or value in called)
    )


def _opens(cls: Class) -> bool:
    """Whether a method of a class notes the state of autocast, which its backward goes back to."""
    backward = cls.methods["backward"]
    return any(
        isinstance(node, ast.Attribute) and "autocast" in node.attr
        for node in ast.walk(backward.node)
    )


CALLED.append(recomputed)
