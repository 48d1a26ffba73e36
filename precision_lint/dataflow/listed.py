"""Methods of lists, sets and dicts."""

from __future__ import annotations

import ast

from precision_lint.dataflow.containers import chosen, element_of, rebind
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.domains.joining import any_of, join, unknown
from precision_lint.domains.values import NONE, Scalar, Sequence, Special, Table, Value, number

Arguments = list[Value]
Keywords = dict[str, Value]


def of_sequence(
    it: Interpreter,
    value: Sequence,
    name: str,
    arguments: Arguments,
    keywords: Keywords,
    node: ast.Call,
) -> Value:
    """``found.append(x)``, ``found.pop()``"""
    target = node.func.value if isinstance(node.func, ast.Attribute) else node
    first = arguments[-1] if arguments else unknown()
    if name in ("append", "add", "insert", "appendleft"):
        rebind(it, target, _with(it, value, first, _place_of(name, value, arguments)))
        return NONE
    if name in ("extend", "update"):
        more = element_of(it, first, node)
        if (
            isinstance(first, Sequence)
            and first.items is not None
            and value.items is not None
            and not it.depth
        ):
            rebind(it, target, Sequence(value.items + first.items, None, value.kind))
        elif more is not None:
            rebind(it, target, Sequence(None, _joined(value, more), value.kind))
        return NONE
    if name in ("pop", "popleft"):
        return _taken(it, target, value, 0 if name == "popleft" else _index(arguments, -1))
    if name in ("copy", "union"):
        return value
    if name in ("index", "count", "__len__"):
        return Scalar(None, "int", 0)
    return unknown()


def _index(arguments: Arguments, otherwise: int) -> int | None:
    """The index that a method is given; None: it is not known."""
    found = number(arguments[0]) if arguments else otherwise
    return int(found) if found is not None else None


def _place_of(name: str, value: Sequence, arguments: Arguments) -> int | None:
    """Before which item something is put; None: it is not known."""
    if name == "appendleft":
        return 0
    if name == "insert" and len(arguments) == 2:
        return _index(arguments, 0)
    return len(value.items) if value.items is not None else None


def _with(it: Interpreter, value: Sequence, item: Value, at: int | None) -> Sequence:
    """A list with one more item; in a loop one value stands for all."""
    items = value.items
    if items is not None and at is not None and not it.depth and len(items) < 64:
        return Sequence((*items[:at], item, *items[at:]), None, value.kind)
    return Sequence(None, _joined(value, item), value.kind)


def _joined(value: Sequence, item: Value) -> Value:
    old = any_of(value)
    return item if old is None else join(old, item)


def _taken(it: Interpreter, target: ast.AST, value: Sequence, at: int | None) -> Value:
    """The item that is taken out of a list, which is left without it."""
    items = value.items
    if items is None or at is None or it.depth or not -len(items) <= at < len(items):
        found = any_of(value)
        return found if found is not None else unknown()
    left = list(items)
    found = left.pop(at)
    rebind(it, target, Sequence(tuple(left), None, value.kind))
    return found


def of_table(
    it: Interpreter,
    value: Table,
    name: str,
    arguments: Arguments,
    keywords: Keywords,
    node: ast.Call,
) -> Value:
    """``table.get(key)``, ``table.update(other)``"""
    target = node.func.value if isinstance(node.func, ast.Attribute) else node
    first = arguments[0] if arguments else None
    key = first.value if isinstance(first, Scalar) else None
    if name in ("get", "pop", "setdefault"):
        if key is not None and key in value.items:
            if name == "pop" and not it.depth:
                left = {k: one for k, one in value.items.items() if k != key}
                rebind(it, target, Table(left, value.element))
            return value.items[key]
        other = arguments[1] if len(arguments) > 1 else unknown()
        if name == "setdefault" and key is not None:
            rebind(it, target, Table({**value.items, key: other}, value.element))
        return chosen(value, other, node) if key is None else value.element or other
    if name in ("items", "values", "keys"):
        return Special("items", node, it.module, of=value, what=name)
    if name == "update":
        items, element = dict(value.items), value.element
        if isinstance(first, Table):
            items.update(first.items)
            element = element if element is not None else first.element
        items.update(keywords)
        rebind(it, target, Table(items, element))
        return NONE
    return value if name == "copy" else unknown()
