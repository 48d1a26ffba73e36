"""Arithmetic of Python's own numbers and sequences."""

from __future__ import annotations

import ast

from precision_lint.semantics import bounds
from precision_lint.semantics.values import INF, UNKNOWN, Value, joined, number

BFLOAT16_MAX = (2 - 2.0**-7) * 2.0**127
FLOAT32_MAX = (2 - 2.0**-23) * 2.0**127
FINFO = {
    "float16": {"eps": 2.0**-10, "tiny": 2.0**-14, "min": -65504.0, "max": 65504.0},
    "bfloat16": {"eps": 2.0**-7, "tiny": 2.0**-126, "min": -BFLOAT16_MAX, "max": BFLOAT16_MAX},
    "float32": {"eps": 2.0**-23, "tiny": 2.0**-126, "min": -FLOAT32_MAX, "max": FLOAT32_MAX},
    "float64": {"eps": 2.0**-52, "tiny": 2.0**-1022, "min": -1.797e308, "max": 1.797e308},
}


def fold(op: ast.operator, a: Value, b: Value) -> Value:
    kinds = {a.dtype, b.dtype}
    if a.const is None or b.const is None:
        kind = "float" if "float" in kinds or isinstance(op, ast.Div) else ""
        if kinds <= {"int", "bool"} and not isinstance(op, (ast.Div, ast.Pow)):
            kind = "int"
        lo, hi = -INF, INF
        if isinstance(op, _ARITHMETIC):
            ranged = {ast.Add: bounds.plus, ast.Sub: bounds.minus, ast.Mult: bounds.times}
            lo, hi = ranged.get(type(op), bounds.over)(a, b)
        return Value("number", kind, lo, hi, tags=(a.tags | b.tags) & {"finfo", "default"})
    x, y = a.const, b.const
    try:
        match op:
            case ast.Add():
                return number(x + y)
            case ast.Sub():
                return number(x - y)
            case ast.Mult():
                return number(x * y)
            case ast.Div():
                return number(x / y)
            case ast.FloorDiv():
                return number(x // y)
            case ast.Pow() if abs(y) < 400:
                return number(x**y)
    except (ArithmeticError, TypeError, ValueError):
        pass
    return Value("number")


_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div)


def sequence(op: ast.operator, a: Value, b: Value) -> Value:
    """Sum of two lists, or a list times a number."""
    if isinstance(op, ast.Add) and a.kind == b.kind == "tuple":
        if "comprehension" in a.tags | b.tags:
            return Value(
                "tuple", items=(joined(a.items + b.items),), tags=frozenset({"comprehension"})
            )
        return Value("tuple", items=a.items + b.items)
    if isinstance(op, ast.Mult) and {a.kind, b.kind} == {"tuple", "number"}:
        items = (a if a.kind == "tuple" else b).items
        return Value("tuple", items=(joined(items),), tags=frozenset({"comprehension"}))
    return UNKNOWN
