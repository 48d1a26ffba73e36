"""Abstract values: what the analysis knows of one expression.

dtypes are strings: torch's names for concrete ones (``float16``), ``low`` for the dtype of an
autocast region that is not known more exactly, ``~name`` for a dtype variable (whatever dtype the
caller's ``name`` has; two values with the same variable have the same dtype), ``int`` and ``bool``
for the integral ones, ``complex64`` and so on (``complex``: of unknown precision), and ``""`` for
nothing known.  Python numbers have ``int``, ``float``, ``bool`` or ``complex``.
"""

from __future__ import annotations

import ast
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

FLOATS = ("bfloat16", "float16", "float32", "float64")
WIDE = ("float32", "float64")
CONCRETE = ("float16", "bfloat16", "float32", "float64")
HALVES = frozenset({"float16", "bfloat16", "low"})
INTEGRAL = frozenset({"int", "bool"})
COMPLEX = {"float16": "complex32", "float32": "complex64", "float64": "complex128"}
NEVER_HALF = frozenset({"float32", "float64", "int", "bool", "complex", *COMPLEX.values()})
_EXCLUDED = (
    ("float16", NEVER_HALF | {"bfloat16"}),
    ("bfloat16", NEVER_HALF | {"float16"}),
)
INF = math.inf
LONGEST = 120
"""Characters of a dtype variable's name."""


@dataclass(frozen=True)
class Value:
    """One abstract value.

    kind: ``tensor``, ``number``, ``dtype``, ``text``, ``tuple``, ``dict``, ``callable`` or
    ``unknown`` (an object of which nothing is known, such as a parameter; it may be a tensor).
    ``items``: of a tuple, a dict (``const`` has its keys) or a named tuple (``const`` has its
    fields); the only one of a ``comprehension`` stands for all.
    ``lo``, ``hi``: bounds of every element.  ``wide``: under autocast this value is float32 for
    certain (an operation of the float32 list made it), so it is half only in eager half code.
    ``made``: the creation call without dtype that this float32 tensor comes from.
    ``store``: the bindings whose memory this value may share: changed in place, all change.
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
    store: frozenset[int] = frozenset()

    def but(self, **changes: Any) -> Value:
        """A copy with changes; `dataclasses.replace` takes six times as long."""
        copy = object.__new__(Value)
        copy.__dict__.update(self.__dict__, **changes)
        return copy

    @property
    def is_tensor(self) -> bool:
        return self.kind == "tensor"

    @property
    def maybe_tensor(self) -> bool:
        return self.kind in ("tensor", "unknown")

    @property
    def promoted(self) -> bool:
        """Whether the dtype is what several promote to, whichever branch was taken."""
        return all("+" in choice for choice in self.dtype.split("|"))

    @property
    def variable(self) -> bool:
        return self.dtype.startswith("~")

    @property
    def may_be_half(self) -> bool:
        return self.dtype in HALVES or self.variable


UNKNOWN = Value()


def number(value: float) -> Value:
    kind = type(value).__name__
    if isinstance(value, int) and value.bit_length() > 1000:  # no float holds it
        return Value("number", "int")
    return Value(
        "number", kind if kind in ("int", "bool") else "float", float(value), float(value),
        const=value,
    )  # fmt: skip


def is_float(dtype: str) -> bool:
    return dtype in FLOATS or dtype == "low"


def complex_of(dtype: str) -> str:
    """The complex dtype whose parts have a real dtype."""
    return COMPLEX.get(dtype, "complex")


def real_of(dtype: str) -> str:
    """The dtype of the parts of a complex dtype; a real dtype is its own."""
    if not dtype.startswith("complex"):
        return dtype
    return next((real for real, whole in COMPLEX.items() if whole == dtype), "")


def promote(a: Value, b: Value) -> str:
    """dtype of an elementwise operation on two values, by torch's promotion rules.

    Python numbers and 0-d tensors do not promote a tensor with dimensions of the same category.
    """
    if a.kind == "number":
        return _with_number(b.dtype, a) if b.kind != "number" else b.dtype
    if b.kind == "number":
        return _with_number(a.dtype, b)
    x, y = a.dtype, b.dtype
    if x == y:
        return x
    if not x or not y:
        known, rank = (x, a.ndim) if x else (y, b.ndim)
        if known in ("float32", "float64") and rank != 0:
            return known  # or wider
        return f"~{known.strip('~?')}?"
    if x.startswith("complex") or y.startswith("complex"):
        parts = promote(a.but(dtype=real_of(x)), b.but(dtype=real_of(y)))
        return complex_of(parts) if real_of(x) and real_of(y) else "complex"
    if x in INTEGRAL or y in INTEGRAL:
        if x not in INTEGRAL:
            return x
        if y not in INTEGRAL:
            return y
        return "int"
    if "picked" in a.tags | b.tags:  # perhaps one element, without dimensions
        return _either(x, y, "|")
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
    return _either(x, y, "+")


def _either(x: str, y: str, sign: str) -> str:
    """The variable for one of two dtypes (``|``), or for what they promote to (``+``)."""
    parts = {*x.lstrip("~").split(sign), *y.lstrip("~").split(sign)}
    name = sign.join(sorted(parts))
    if len(name) > LONGEST:  # paths that meet in loops of loops would double it each time
        name = "#" + hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
    return f"~{name}"


def _with_number(dtype: str, other: Value) -> str:
    """dtype of a tensor and a Python number; the default dtype if only the number is a float."""
    if other.dtype == "complex":
        return complex_of(real_of(dtype))
    if dtype not in INTEGRAL or other.dtype == "bool":
        return dtype
    if other.dtype == "float":
        return "float32"
    # a default such as ``scale=1`` may well be given as a float
    return "int" if other.dtype == "int" and "default" not in other.tags else ""


def widens(a: Value, b: Value) -> bool:
    """Whether an elementwise result is float32 under autocast because of a ``wide`` operand."""
    if a.wide and b.wide:
        return True
    wide, other = (a, b) if a.wide else (b, a)
    # without dimensions it promotes nothing that has some
    return wide.wide and (wide.ndim != 0 or other.ndim == 0 or not other.maybe_tensor)


def join(a: Value, b: Value) -> Value:
    """What is known where two paths meet."""
    if a is b or a == b:
        return a
    for one, other in ((a, b), (b, a)):
        if "empty" in one.tags and "comprehension" in other.tags:
            return other  # a list that a loop fills
    if a.kind != b.kind:
        if {a.kind, b.kind} == {"tensor", "unknown"}:
            kind = "tensor"
        else:
            return Value(tags=a.tags & b.tags, store=a.store | b.store)
    else:
        kind = a.kind
    dtype = a.dtype if a.dtype == b.dtype else _meet(a.dtype, b.dtype)
    if kind == "number" and a.dtype != b.dtype:
        dtype = ""
    same = a.const == b.const
    if kind == "callable" and same:
        dtype = a.dtype or b.dtype  # a module that is made half in one branch
    alike = same and "comprehension" not in a.tags ^ b.tags
    tags = (a.tags & b.tags) | ((a.tags | b.tags) & {"spatial-last", "spatial-mid"})
    for side, other in ((a, b), (b, a)):  # a dtype that excludes a half one says what the tag says
        tags |= {
            f"not-{half}" for half, others in _EXCLUDED
            if f"not-{half}" in side.tags and other.dtype in others
        }  # fmt: skip
    return Value(
        kind,
        dtype,
        min(a.lo, b.lo),
        max(a.hi, b.hi),
        a.ndim if a.ndim == b.ndim else None,
        a.const if same else None,
        a.wide and b.wide,
        a.made if a.made is b.made else None,
        a.node if a.node is b.node else None,
        tags,
        tuple(map(join, a.items, b.items)) if alike and len(a.items) == len(b.items) else (),
        a.store | b.store,
    )


def _meet(x: str, y: str) -> str:
    if not x or not y:
        return ""
    if x in ("float32", "float64") and y in ("float32", "float64"):
        return "float64"
    if x in NEVER_HALF and y in NEVER_HALF:
        return ""
    return _either(x, y, "|")


def joined(values: Sequence[Value]) -> Value:
    """What is known of every one of some values."""
    result = values[0] if values else UNKNOWN
    for value in values[1:]:
        result = join(result, value)
    return result


def widen(before: Value, after: Value) -> Value:
    """``after`` with each bound that moved since ``before`` given up, so that a loop ends."""
    lo = after.lo if after.lo >= before.lo else -INF
    hi = after.hi if after.hi <= before.hi else INF
    return after if (lo, hi) == (after.lo, after.hi) else after.but(lo=lo, hi=hi)
