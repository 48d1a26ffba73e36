"""What functions of ``itertools`` give."""

from __future__ import annotations

import ast
from typing import Final

from precision_lint.dataflow.containers import elements
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.domains import dtypes
from precision_lint.domains.joining import join_all
from precision_lint.domains.values import INF, Sequence, Special, Value

Arguments = list[Value]
Keywords = dict[str, Value]
COMBINED: Final = frozenset({
    "product", "permutations", "combinations", "combinations_with_replacement", "pairwise",
})  # fmt: skip
"""Functions that give tuples of items."""


def call(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    """``itertools.chain(...)``"""
    last = name.rpartition(".")[2]
    if last == "from_iterable" and arguments:
        inner = elements(it, arguments[0], node)
        last, arguments = "chain", inner if isinstance(inner, list) else [inner]
    if last == "chain":
        owners = [v for v in arguments if isinstance(v, Special) and v.kind == "parameters"]
        if owners and len(owners) == len(arguments):
            return Special(
                "parameters", node, it.module, owner=owners[0].fields["owner"], named=False,
                owners=[o.fields["owner"] for o in owners],
            )  # fmt: skip
        return Sequence(None, join_all(list(_items(it, arguments, node))), "list")
    if last == "count":
        return Special("range", node, it.module, lo=0, hi=INF)
    starred = any(isinstance(one, ast.Starred) for one in getattr(node, "args", ()))
    if last in COMBINED and arguments and not starred:
        return Sequence(None, _combined(it, last, arguments, "repeat" in keywords, node), "list")
    return it.unknown(last, dtypes.V_ANY)


def _items(it: Interpreter, arguments: Arguments, node: ast.AST) -> Arguments:
    """What iterating gives, of all arguments."""
    found = [elements(it, value, node) for value in arguments]
    return [v for one in found for v in (one if isinstance(one, list) else [one])]


def _combined(
    it: Interpreter, name: str, arguments: Arguments, several: bool, node: ast.AST
) -> Sequence:
    """One of the tuples that are made of items: ``for i, j in product(rows, columns)``."""
    if name == "product" and not several:
        return Sequence(tuple(join_all(list(_items(it, [one], node))) for one in arguments))
    of = arguments if name == "product" else arguments[:1]
    return Sequence(None, join_all(list(_items(it, of, node))))
