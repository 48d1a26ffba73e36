"""Methods that are read, kept and called later: ``step = optimizer.step; step()``."""

from __future__ import annotations

import ast
from typing import NamedTuple

from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.domains.values import Sequence, Special, Table, Unknown, Value


class Bound(NamedTuple):
    """An object, the name of its method, and the call as it would be written in one expression."""

    owner: Value
    name: str
    node: ast.Call


def bound(it: Interpreter, owner: Value, name: str, node: ast.AST) -> Special:
    """``owner.name`` of an object whose methods are known."""
    return Special("method", node, it.module, of=owner, name=name, scope=it.function)


def read(it: Interpreter, value: Value, owner: Value, node: ast.AST) -> Value:
    """An attribute that may be a method; where it was read is remembered."""
    if isinstance(value, Unknown) and isinstance(node, ast.Attribute):
        it.reads[value.symbol.number] = owner, node, it.function
    return value


def called(it: Interpreter, callee: Value, node: ast.Call) -> Bound | None:
    """What a call of a value stands for; None: that is no method that was read before."""
    if isinstance(callee, Special) and callee.kind == "method":
        owner, at, scope = callee.fields["of"], callee.node, callee.fields.get("scope")
    elif isinstance(callee, Unknown) and callee.symbol.number in it.reads:
        owner, at, scope = it.reads[callee.symbol.number]
    else:
        return None
    if not isinstance(at, ast.Attribute):
        return None
    if scope is not it.function:
        return Bound(owner, at.attr, node)
    if isinstance(owner, (Sequence, Table)):
        owner = it.expr(at.value)  # what it holds by now
    return Bound(owner, at.attr, _written_out(it, at, node))


def _written_out(it: Interpreter, read: ast.Attribute, node: ast.Call) -> ast.Call:
    """The call with the attribute in the place of the name; one node for each call."""
    known: dict[tuple[int, int], ast.Call] = it.module.facts.setdefault("written out", {})
    key = id(read), id(node)
    if key not in known:
        known[key] = ast.copy_location(ast.Call(read, node.args, node.keywords), node)
    return known[key]
