"""NumPy's functions and methods: the dtype of the array that they give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from precision_lint.domains.dtypes import (
    ANY,
    BOOLEAN,
    COMPLEX,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    FLOATS,
    INTEGER,
    OTHER,
    V_ANY,
    V_BOOLEAN,
    V_COMPLEX,
    V_FLOAT16,
    V_FLOAT32,
    V_FLOAT64,
    V_INTEGER,
    Dtypes,
)
from precision_lint.torchmodel.tables import table

NAMED: Final[dict[str, Dtypes]] = {
    "float16": V_FLOAT16, "half": V_FLOAT16, "float32": V_FLOAT32, "single": V_FLOAT32,
    "float64": V_FLOAT64, "double": V_FLOAT64, "bool_": V_BOOLEAN, "bool": V_BOOLEAN,
    **dict.fromkeys(("complex64", "complex128", "csingle", "cdouble"), V_COMPLEX),
    **dict.fromkeys(
        ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "intp", "int_", "intc",
         "longlong", "byte", "ubyte", "short", "ushort", "uint", "uintp"),
        V_INTEGER,
    ),
}  # fmt: skip
"""Scalar types, which are functions as well."""
FIXED: Final = {"float64": V_FLOAT64, "int": V_INTEGER, "bool": V_BOOLEAN, "complex": V_COMPLEX}
BINARY: Final = frozenset({
    "add", "subtract", "multiply", "divide", "true_divide", "power", "pow", "maximum", "minimum", "fmax",
    "fmin", "arctan2", "atan2", "hypot", "mod", "remainder", "fmod", "floor_divide", "copysign",
    "where", "matmul",
    "dot", "inner", "outer", "kron", "tensordot", "vdot", "cross", "logaddexp", "logaddexp2", "heaviside",
    "nextafter", "linalg.solve", "concatenate", "stack", "vstack", "hstack", "dstack", "column_stack",
    "bitwise_and", "bitwise_or", "bitwise_xor", "einsum", "vecdot", "matvec", "vecmat", "gcd", "lcm",
})  # fmt: skip
"""Functions whose first arguments are arrays that promote each other."""
ELEMENTWISE: Final = frozenset({
    "add", "subtract", "multiply", "power", "pow", "ceil", "floor", "trunc", "rint", "round", "around",
    "maximum", "minimum", "fmax", "fmin", "clip", "abs", "absolute", "sign", "square", "negative", "mod",
    "remainder", "floor_divide",
})  # fmt: skip
"""Functions that keep the dtype and go element by element."""
DTYPE_AT: Final = {
    **dict.fromkeys(
        ("zeros", "ones", "empty", "zeros_like", "ones_like", "empty_like", "array", "asarray",
         "asanyarray", "ascontiguousarray", "asfortranarray", "asarray_chkfinite", "identity",
         "frombuffer", "fromiter", "fromfile", "fromstring", "loadtxt"),
        1,
    ),
    **dict.fromkeys(("full", "full_like", "sum", "mean", "prod", "cumsum", "cumprod", "std", "var"), 2),
    **dict.fromkeys(("arange", "eye", "tri"), 3),
    "linspace": 5, "logspace": 5, "geomspace": 4,
}  # fmt: skip
"""The position of ``dtype`` among a function's arguments."""
GENERATORS: Final = frozenset({"random.default_rng", "random.RandomState", "random.Generator"})
"""What draws random numbers by methods."""
SIZES: Final = frozenset({"minlength", "num", "axis", "ndmin"})
"""Arguments that are whole numbers."""
SKIPPED: Final = {"where": 1, "einsum": 1}
"""How many arguments come before those."""
SAME: Final = frozenset({
    "copy", "flatten", "ravel", "reshape", "transpose", "squeeze", "swapaxes", "repeat", "take",
    "clip", "round",
    "max", "min", "diagonal", "compress", "choose", "byteswap", "T", "flat", "view", "newbyteorder",
})  # fmt: skip
"""Methods and attributes of arrays that keep the dtype."""


def rule(name: str) -> str:
    """How the dtype of a function's result follows from that of its arrays.

    ``float64``, ``int``, ``bool``, ``complex``: always.  ``floating``: float64 for integers and booleans,
    floats as they are.  ``keeps``: as the arrays promote.  ``int_like``: the same, with integers for
    booleans.  ``unknown``.
    """
    found: str = table("arrays").get(name, "unknown")
    return found


def by_element(name: str) -> bool:
    """Whether a function gives one number if it is given numbers."""
    return rule(name) == "floating" or name in ELEMENTWISE


def promote_sets(a: int, b: int) -> int:
    """NumPy's promotion of two arrays' dtypes: integers of unknown width may widen a float."""
    if a == b or (a | b) & OTHER:
        return a if a == b else ANY
    found = 0
    for x in (1 << i for i in range(8) if a >> i & 1):
        for y in (1 << i for i in range(8) if b >> i & 1):
            found |= _promoted(x, y)
    return found


def _promoted(a: int, b: int) -> int:
    if a == b or b == BOOLEAN:
        return a
    if a == BOOLEAN:
        return b
    if COMPLEX in (a, b):
        return COMPLEX
    if INTEGER in (a, b):
        low = {FLOAT16: FLOAT16 | FLOAT32 | FLOAT64, FLOAT32: FLOAT32 | FLOAT64}
        return low.get(a | b ^ INTEGER if b != INTEGER else a, FLOAT64)
    return FLOAT64 if FLOAT64 in (a, b) else FLOAT32


def promote(a: Dtypes, b: Dtypes) -> Dtypes:
    """What two arrays promote to, in every mode.  Python's numbers are weak: they do not take part."""
    return a if a == b else tuple([promote_sets(x, y) for x, y in zip(a, b, strict=True)])


def floating(vector: Dtypes) -> Dtypes:
    """Integers and booleans become float64."""
    whole = INTEGER | BOOLEAN
    return tuple([x & ~whole | FLOAT64 if x & whole and x < ANY else x for x in vector])


def _counted(vector: Dtypes) -> Dtypes:
    return tuple([x & ~BOOLEAN | INTEGER if x & BOOLEAN and x < ANY else x for x in vector])


def result(name: str, operands: Sequence[Dtypes], weak: Sequence[bool] = ()) -> Dtypes:
    """The dtype of what ``numpy.<name>`` gives.

    operands: dtypes of the positional arguments, lists by their items.  weak: which of them are Python's
    numbers; what is unknown of that stays open.
    """
    fixed = NAMED.get(name)
    if fixed is not None:
        return fixed
    if name == "arange":
        floats = any(one[0] & FLOATS for one in operands)
        return V_FLOAT64 if floats else V_INTEGER
    if name == "full":
        return operands[1] if len(operands) > 1 else V_ANY
    if name == "bincount":
        return V_FLOAT64 if len(operands) > 1 else V_INTEGER  # sums of weights, or counts
    how = rule(name)
    if how in FIXED:
        return FIXED[how]
    given = operands[SKIPPED.get(name, 0) :]
    if how == "unknown" or not given:
        return V_ANY
    vector = given[0]
    if name in BINARY:
        numbers = weak[SKIPPED.get(name, 0) :] or [False] * len(given)
        vector = _together(given, numbers, bool(weak))
    if how == "floating":
        return floating(vector)
    return _counted(vector) if how == "int_like" else vector


def _together(given: Sequence[Dtypes], numbers: Sequence[bool], known: bool) -> Dtypes:
    """Promotion of arrays and numbers; a float64 beside a float32 may be a number, if nobody knows."""
    strong = [one for one, number in zip(given, numbers, strict=True) if not number]
    vector = strong[0] if strong else given[0]
    for other in strong[1:]:
        wider = promote(vector, other)
        if not known and other == V_FLOAT64:
            wider = tuple([x | y if x & FLOATS else y for x, y in zip(vector, wider, strict=True)])
        vector = wider
    for other, number in zip(given, numbers, strict=True):
        if number and other == V_FLOAT64:
            vector = floating(vector)
    return vector


def method(name: str, vector: Dtypes) -> Dtypes:
    """The dtype of what a method of an array gives that takes no dtype."""
    return vector if name in SAME else result(name, [vector])
