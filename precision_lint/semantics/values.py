"""Abstract values: what the analysis knows of one expression.

dtypes are strings: torch's names for concrete ones (``float16``), ``low`` for the dtype of an
autocast region that is not known more exactly, ``~name`` for a dtype variable (whatever dtype the
caller's ``name`` has; two values with the same variable have the same dtype), ``int`` and ``bool``
for the integral ones, and ``""`` for nothing known.
"""

from __future__ import annotations

import ast
import dataclasses
import math
from dataclasses import dataclass
from typing import Any

FLOATS = ("bfloat16", "float16", "float32", "float64")
CONCRETE = ("float16", "bfloat16", "float32", "float64")
HALVES = frozenset({"float16", "bfloat16", "low"})
INF = math.inf


@dataclass(frozen=True)
class Value:
    """One abstract value.

    kind: ``tensor``, ``number``, ``dtype``, ``text``, ``tuple``, ``callable`` or ``unknown``
    (an object of which nothing is known, such as a parameter; it may be a tensor).
    ``lo``, ``hi``: bounds of every element.  ``wide``: under autocast this value is float32 for
    certain (an operation of the float32 list made it), so it is half only in eager half code.
    ``made``: the creation call without dtype that this float32 tensor comes from.
    """

    kind: str = "unknown"
    dtype: str = ""
    lo: float = -INF
    hi: float = INF
    ndim: int | None = None
    const: Any = None
    wide: bool = False
    made: ast.Call | None = None
    node: ast.expr | None = None
    tags: frozenset[str] = frozenset()
    items: tuple[Value, ...] = ()

    def but(self, **changes: Any) -> Value:
        return dataclasses.replace(self, **changes)

    @property
    def is_tensor(self) -> bool:
        return self.kind == "tensor"

    @property
    def maybe_tensor(self) -> bool:
        return self.kind in ("tensor", "unknown")

    @property
    def variable(self) -> bool:
        return self.dtype.startswith("~")

    @property
    def may_be_half(self) -> bool:
        return self.dtype in HALVES or self.variable


UNKNOWN = Value()


def number(value: float) -> Value:
    return Value("number", lo=float(value), hi=float(value), const=value)


def is_float(dtype: str) -> bool:
    return dtype in FLOATS or dtype == "low"


def promote(a: Value, b: Value) -> str:
    """dtype of an elementwise operation on two values, by torch's promotion rules.

    Python numbers and 0-d tensors do not promote a tensor with dimensions of the same category.
    """
    if a.kind == "number" or not a.dtype:
        return b.dtype if a.kind == "number" or not b.dtype else f"~{b.dtype.lstrip('~')}?"
    if b.kind == "number" or not b.dtype:
        return a.dtype if b.kind == "number" else f"~{a.dtype.lstrip('~')}?"
    x, y = a.dtype, b.dtype
    if x == y:
        return x
    if x in ("int", "bool"):
        return y
    if y in ("int", "bool"):
        return x
    if a.ndim == 0 and b.ndim != 0:
        return y
    if b.ndim == 0 and a.ndim != 0:
        return x
    if "float64" in (x, y):
        return "float64"
    if "float32" in (x, y):
        return "float32"
    if x in HALVES and y in HALVES:
        return "float32" if "low" not in (x, y) else "low"
    low, high = sorted((x.lstrip("~"), y.lstrip("~")))
    return f"~{low}+{high}"


def join(a: Value, b: Value) -> Value:
    """What is known where two paths meet."""
    if a == b:
        return a
    if a.kind != b.kind:
        if {a.kind, b.kind} == {"tensor", "unknown"}:
            kind = "tensor"
        else:
            return Value(tags=a.tags & b.tags)
    else:
        kind = a.kind
    dtype = a.dtype if a.dtype == b.dtype else _meet(a.dtype, b.dtype)
    return Value(
        kind,
        dtype,
        min(a.lo, b.lo),
        max(a.hi, b.hi),
        a.ndim if a.ndim == b.ndim else None,
        a.const if a.const == b.const else None,
        a.wide and b.wide,
        a.made if a.made is b.made else None,
        a.node if a.node is b.node else None,
        (a.tags & b.tags) | ((a.tags | b.tags) & {"spatial-last", "spatial-mid"}),
        a.items if a.items == b.items else (),
    )


def _meet(x: str, y: str) -> str:
    if not x or not y:
        return ""
    if x in ("float32", "float64") and y in ("float32", "float64"):
        return "float64"
    low, high = sorted((x.lstrip("~"), y.lstrip("~")))
    return f"~{low}|{high}"
