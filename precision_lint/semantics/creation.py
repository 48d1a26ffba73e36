"""Tensors made out of nothing, out of numbers, or with the dtype of another tensor."""

from __future__ import annotations

import ast

from precision_lint.semantics import arrays, bounds
from precision_lint.semantics.shapes import created_rank, literal_dtype
from precision_lint.semantics.values import INF, UNKNOWN, Value, is_float

FLOATS = frozenset({
    "zeros", "ones", "empty", "rand", "randn", "linspace", "logspace", "eye", "empty_strided",
    "hann_window", "hamming_window", "blackman_window", "bartlett_window", "kaiser_window",
    "fft.fftfreq", "fft.rfftfreq", "range", "empty_permuted",
})  # fmt: skip
"""Functions that make a tensor of the default dtype."""
DATA = frozenset({"tensor", "as_tensor", "asarray", "from_numpy", "scalar_tensor"})
"""Functions that make a tensor out of data."""
CREATION = FLOATS | DATA | {"full", "arange", "normal"}
LIKE = frozenset({
    "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "randint_like",
})  # fmt: skip
NEW = frozenset({
    "new_zeros", "new_ones", "new_full", "new_empty", "new_tensor", "new", "new_empty_strided",
})  # fmt: skip
LEGACY = {
    "Tensor": "float32", "FloatTensor": "float32", "HalfTensor": "float16", "CharTensor": "int",
    "BFloat16Tensor": "bfloat16", "DoubleTensor": "float64", "LongTensor": "int",
    "IntTensor": "int", "ShortTensor": "int", "ByteTensor": "int", "BoolTensor": "bool",
}  # fmt: skip
"""Constructors that are named after a dtype."""

_RANGES = {
    "zeros": (0.0, 0.0), "ones": (1.0, 1.0), "eye": (0.0, 1.0), "rand": (0.0, 1.0),
    "hann_window": (0.0, 1.0), "hamming_window": (0.0, 1.0), "bartlett_window": (0.0, 1.0),
    "kaiser_window": (0.0, 1.0), "fft.rfftfreq": (0.0, INF),
}  # fmt: skip
_MADE = CREATION - {"scalar_tensor", "asarray", "empty_strided", "empty_permuted"}


def create(name: str, node: ast.Call, arguments: list[Value], keywords: dict[str, Value]) -> Value:
    """Result of one of the CREATION functions."""
    asked = keywords.get("dtype")
    if asked is not None and asked.kind == "none":
        asked = None
    lo, hi = _range(name, arguments, keywords)
    ndim = created_rank(name, node, arguments)
    if asked is not None:
        dtype = asked.dtype if asked.kind == "dtype" else "~dtype"
        return Value("tensor", dtype or "~dtype", lo, hi, ndim)
    first = arguments[0] if arguments else keywords.get("data", UNKNOWN)
    made = node if name in _MADE else None
    if name in DATA:
        return _of_data(name, node, first, ndim, made)
    if name == "full":
        fill = arguments[1] if len(arguments) > 1 else keywords.get("fill_value", UNKNOWN)
        dtype = "float32"
        if fill.kind == "number":
            dtype = literal_dtype(node, fill) or "float32"
        return Value("tensor", dtype, lo, hi, ndim, made=made if is_float(dtype) else None)
    if name == "arange":
        kinds = {a.dtype if a.kind == "number" else "" for a in arguments}
        if "float" in kinds:
            return Value("tensor", "float32", lo, hi, ndim, made=made)
        return Value("tensor", "int", lo, hi, ndim)
    tensors = [a for a in arguments[:2] if a.maybe_tensor]
    if name == "normal" and tensors:
        return Value("tensor", tensors[0].dtype)
    return Value("tensor", "float32", lo, hi, ndim, made=made)


def alike(name: str, first: Value, rest: list[Value], keywords: dict[str, Value]) -> Value:
    """Result of ``*_like`` and ``new_*``: of the dtype of another tensor."""
    asked = keywords.get("dtype")
    dtype = first.dtype
    if asked is not None and asked.kind != "none":
        dtype = asked.dtype if asked.kind == "dtype" else "~dtype"
    stem = name.removeprefix("new_").removesuffix("_like")
    values = rest if name in NEW else [first, *rest]
    lo, hi = _range(stem, values, keywords) if stem != "tensor" else (-INF, INF)
    return Value("tensor", dtype, lo, hi, first.ndim if name in LIKE else None)


def _range(name: str, arguments: list[Value], keywords: dict[str, Value]) -> tuple[float, float]:
    if name == "full":
        fill = arguments[1] if len(arguments) > 1 else keywords.get("fill_value", UNKNOWN)
        return (fill.lo, fill.hi) if fill.kind == "number" else (-INF, INF)
    if name == "linspace":
        ends = [*arguments[:2], *(keywords[k] for k in ("start", "end") if k in keywords)]
        return bounds.hull(*((v.lo, v.hi) for v in ends)) if len(ends) == 2 else (-INF, INF)
    if name == "arange":
        if not arguments or any(k in keywords for k in ("start", "end", "step")):
            return -INF, INF
        if len(arguments) == 1:
            return 0.0, max(arguments[0].hi, 0.0)
        step = arguments[2].lo if len(arguments) > 2 else 1.0
        return (arguments[0].lo, arguments[1].hi) if step > 0 else (-INF, INF)
    return _RANGES.get(name, (-INF, INF))


def _of_data(
    name: str, node: ast.Call, first: Value, ndim: int | None, made: ast.Call | None
) -> Value:
    if first.kind == "array":
        dtype = "" if first.dtype == arrays.OPEN else first.dtype
        made = None if dtype == "int" else made
        return Value("tensor", dtype, ndim=ndim, made=made, tags=first.tags)
    if first.is_tensor:
        return first.but(made=None, const=None)
    if name == "scalar_tensor":
        return Value("tensor", "float32", first.lo, first.hi, 0)
    dtype = literal_dtype(node.args[0], first) if node.args else ""
    if not dtype:
        place = first.dtype if first.variable and name in ("as_tensor", "asarray") else ""
        return Value("tensor", place, ndim=ndim)
    lo, hi = (first.lo, first.hi) if first.kind == "number" else _of_items(first)
    return Value("tensor", dtype, lo, hi, ndim, made=made if is_float(dtype) else None)


def _of_items(value: Value) -> tuple[float, float]:
    """Range of the numbers in nested sequences."""
    if value.kind == "number":
        return value.lo, value.hi
    if value.kind != "tuple" or not value.items:
        return -INF, INF
    return bounds.hull(*map(_of_items, value.items))
