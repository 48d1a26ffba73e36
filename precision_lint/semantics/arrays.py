"""The dtypes of NumPy's arrays, which tensors made of them take over."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from precision_lint.semantics.names import dotted
from precision_lint.semantics.values import Value, joined

OPEN = "int?"
"""The dtype of integers that may be float64 as well, as of ``numpy.arange(n)``."""
_DOUBLE = frozenset({
    "zeros", "ones", "eye", "identity", "linspace", "logspace", "hanning", "hamming", "blackman",
    "bartlett", "kaiser", "geomspace",
})  # fmt: skip
"""Functions whose default is float64."""
_WHOLE = frozenset(
    {"bincount", "argsort", "argmax", "argmin", "indices", "nonzero", "searchsorted"}
)
_FLOATING = frozenset({
    "sin", "cos", "tan", "exp", "log", "log2", "log10", "log1p", "expm1", "sqrt", "arctan2", "tanh",
    "hypot", "deg2rad", "radians", "cbrt", "true_divide", "divide", "reciprocal",
})  # fmt: skip
"""Functions that make floats of integers, and float64 of Python's numbers."""
_PROMOTING = frozenset({
    "outer", "concatenate", "stack", "hstack", "vstack", "meshgrid", "multiply", "add", "subtract",
    "power", "square", "abs", "maximum", "minimum", "cumsum", "sum", "dot", "reshape", "transpose",
    "tile", "repeat", "expand_dims", "array", "asarray", "where", "clip", "column_stack",
})  # fmt: skip
"""Functions whose result has the dtype that their operands promote to."""


def call(
    name: str, node: ast.Call, arguments: Sequence[Value], keywords: Mapping[str, Value]
) -> Value:
    """The array that a function of NumPy gives."""
    dtype = named(node)
    if not dtype and "dtype" not in keywords:
        if name in _DOUBLE:
            dtype = "float64"
        elif name in _WHOLE:
            dtype = "int" if "weights" not in keywords and len(arguments) < 3 else ""
        elif name == "arange":
            kinds = {a.dtype if a.kind == "number" else "" for a in arguments}
            dtype = "float64" if "float" in kinds else "int" if kinds == {"int"} else OPEN
        elif name in _FLOATING | _PROMOTING:
            dtype = promoted(arguments[1:] if name == "where" else arguments)
            dtype = "float64" if dtype in ("int", OPEN) and name in _FLOATING else dtype
    dtype = "" if dtype == "float16" else dtype
    return Value("array", dtype, tags=frozenset({"numpy"}))


def named(node: ast.Call) -> str:
    """The dtype of floats that an argument of a call names."""
    given = [*node.args, *(k.value for k in node.keywords)]
    text = " ".join(dotted(a) or str(getattr(a, "value", "")) for a in given)
    return next((d for d in ("float32", "float64", "float16") if d in text), "")


def promoted(operands: Sequence[Value]) -> str:
    """The dtype of arrays together; "" if it is not known."""
    parts = [_whole(operand) for operand in operands if operand.kind in ("array", "tuple")]
    dtypes = {part.dtype for part in parts if part.kind == "array"}
    if not dtypes or any(part.kind != "array" for part in parts):
        return ""
    if not dtypes <= {"int", OPEN, "float64"}:
        return dtypes.pop() if len(dtypes) == 1 else ""
    return next(dtype for dtype in ("float64", OPEN, "int") if dtype in dtypes)


def binary(op: ast.operator, a: Value, b: Value) -> Value:
    """An operator between arrays, or an array and a number."""
    dtype = promoted([v for v in (a, b) if v.kind == "array"])
    other = next((v for v in (a, b) if v.kind != "array"), None)
    if dtype in ("int", OPEN):
        if isinstance(op, ast.Div) or (other is not None and other.dtype == "float"):
            dtype = "float64"
        elif other is not None and other.dtype != "int":
            dtype = ""
    elif dtype != "float64" and other is not None and other.kind != "number":
        dtype = ""
    return Value("array", dtype, tags=frozenset({"numpy"}))


def _whole(value: Value) -> Value:
    return joined(value.items) if value.kind == "tuple" and value.items else value
