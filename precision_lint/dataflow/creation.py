"""Tensors that are made of nothing, of numbers, or like another tensor."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any, Final

from precision_lint.dataflow import devices
from precision_lint.dataflow.interpreter import Interpreter, tensor_of
from precision_lint.dataflow.operators import perhaps_number
from precision_lint.dataflow.ranges import bounds_of, hull
from precision_lint.dataflow.tensors import dtype_of, promoted
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import Dtypes
from precision_lint.domains.values import (
    BUFFER,
    DETACHED,
    EMPTY,
    INF,
    SOME_RANK,
    UNKNOWN_RANK,
    Array,
    DtypeValue,
    Scalar,
    Sequence,
    Special,
    Symbol,
    Tensor,
    Unknown,
    Value,
    counts,
    number,
)
from precision_lint.torchmodel.creation import Creation

DEFAULT, ASKED, FOLLOWS, DATA = "default", "asked", "follows", "data"
"""Where a new tensor has its dtype from (``Tensor.data``)."""


def create(
    it: Interpreter,
    creation: Creation,
    arguments: list[Value],
    keywords: Mapping[str, Value],
    node: ast.AST,
) -> Value:
    """What a creation function gives."""
    values = _aligned(creation, arguments, keywords)
    asked = dtype_of(it, values["dtype"]) if "dtype" in values else None
    first = arguments[0] if arguments else next(iter(keywords.values()), None)
    lo, hi = _range(creation, values, arguments)
    origin = ASKED if asked is not None else FOLLOWS
    given = values.get("dtype")
    assumptions = _rests_on(given)
    rank = creation.rank
    vector: Dtypes
    if asked is not None:
        vector = asked
        rank = _rank(creation, first, rank)
        if creation.random and creation.kind == "default" and isinstance(given, DtypeValue):
            holds_floats(given.source)
    elif creation.dtype:
        vector = dtypes.everywhere(creation.dtype)
    elif creation.kind in ("like", "new"):
        source = tensor_of(it, first, node) if first is not None else None
        vector = source.dtypes if source is not None else dtypes.V_ANY
        assumptions = source.assumptions if source is not None else 0
        if source is not None and creation.kind == "like":
            rank = source.rank
    elif creation.kind == "data":
        return _of_data(it, creation, first, node)
    elif creation.kind == "fill":
        vector, origin = _of_fill(it, values.get("fill_value")), DEFAULT
    elif creation.kind == "range":
        floats = [v for v in arguments if isinstance(v, Scalar) and v.kind == "float"]
        vector = it.program.default_dtype if floats else dtypes.V_INTEGER
        origin = DEFAULT if floats else FOLLOWS
    else:
        vector, origin = it.program.default_dtype, DEFAULT
    _sizes(creation, values, arguments)
    like = first if creation.kind in ("like", "new") else None
    shape = _shape(creation, arguments, keywords)
    made = Tensor(
        vector,
        creation.name,
        tuple(v for v in values.values() if v is not None),
        node,
        it.module,
        lo,
        hi,
        assumptions,
        _flags(shape, used_as_device(values.get("device")) or like),
        rank=_shape_rank(shape) if rank == UNKNOWN_RANK else rank,
        reach=_reach(creation, lo, hi),
        data=origin,
    )
    for look in CREATED:
        look(it, made, values.get("fill_value"))
    return made


def used_as_device(value: Value | None) -> Value | None:
    """A value, noted as a device."""
    if isinstance(value, Unknown):
        value.symbol.uses |= Symbol.DEVICE
    return value


def beside_weights(device: Value | None) -> bool:
    """Whether a device is that of weights: what is made there comes after they were moved and cast."""
    of = (
        device.fields.get("of") if isinstance(device, Special) and device.kind == "device" else None
    )
    return isinstance(of, Tensor) and of.op in ("weight", "parameter") and not of.flags & BUFFER


def is_beside(value: Tensor) -> bool:
    """Whether a tensor was made on the device of weights, in the default dtype."""
    made: Value | None = value
    for _ in range(4):
        if not isinstance(made, Tensor) or made.data == DEFAULT:
            break
        made = made.operands[0] if made.operands else None
    if not isinstance(made, Tensor) or made.data != DEFAULT:
        return False
    return any(isinstance(one, Special) and beside_weights(one) for one in made.operands)


def of_array(value: Any) -> bool:
    """Whether a tensor was made from a NumPy array: no mode changes the dtype of that."""
    for _ in range(6):
        if not isinstance(value, Tensor) or not value.operands:
            break
        value = value.operands[0]
    return isinstance(value, Array)


def holds_floats(source: Tensor | None) -> None:
    """Note that the dtype of a tensor is used where only a float's can be."""
    if source is not None and source.symbol is not None:
        source.symbol.uses |= Symbol.TENSOR | Symbol.FLOAT


CREATED: Final[list[Callable[[Interpreter, Tensor, Value | None], None]]] = []
"""What to look for at a tensor that is made (``hazards``)."""


def _aligned(
    creation: Creation, arguments: list[Value], keywords: Mapping[str, Value]
) -> dict[str, Value]:
    """Arguments by parameter; sizes that are given one by one stay unnamed."""
    named: dict[str, Value] = {}
    if (
        creation.kind not in ("default", "new")
        or creation.name in ("linspace", "logspace", "eye")
        or (creation.kind == "new" and creation.name in ("new_full", "new_tensor"))
    ):
        named.update(zip(creation.parameters, arguments, strict=False))
    elif arguments:
        named["size"] = (
            arguments[0] if len(arguments) == 1 else Sequence(tuple(arguments), None, "tuple")
        )
    named.update(keywords)
    if creation.kind == "range" and "end" not in named and "start" in named:
        named["end"] = named.pop("start")
    return named


def _rests_on(given: Value | None) -> int:
    """What a dtype rests on: that of a tensor on what the tensor's does."""
    if not isinstance(given, DtypeValue):
        return 0
    return given.assumptions | (given.source.assumptions if given.source is not None else 0)


def _sizes(creation: Creation, values: Mapping[str, Value], arguments: list[Value]) -> None:
    """What is given as a size or as an end is a number."""
    if creation.kind == "range" or creation.name in ("linspace", "logspace", "eye"):
        counts(
            values[name] for name in ("start", "end", "step", "steps", "n", "m") if name in values
        )
    elif creation.kind == "default" and len(arguments) > 1:
        counts(arguments)


def _shape(
    creation: Creation, arguments: list[Value], keywords: Mapping[str, Value]
) -> list[Value]:
    """The arguments that say sizes."""
    if creation.kind not in ("default", "new", "fill"):
        return []
    sizes = arguments[1:] if creation.kind == "new" else arguments
    if creation.kind == "fill" or creation.name == "new_full":
        sizes = sizes[:1]
    return [keywords["size"]] if not sizes and "size" in keywords else sizes


def _flags(sizes: list[Value], place: Value | None) -> int:
    """Where a new tensor is, and whether it is empty."""
    on = (devices.asked([place]) or 0) if place is not None else 0
    return on | (EMPTY if _is_empty(sizes) else 0)


def _is_empty(sizes: list[Value]) -> bool:
    """Whether each size is 0."""
    if len(sizes) == 1 and isinstance(sizes[0], Sequence):
        sizes = list(sizes[0].items or ())
    return bool(sizes) and all(isinstance(one, Scalar) and one.value == 0 for one in sizes)


def _shape_rank(sizes: list[Value]) -> int:
    """Dimensions by the sizes that are given."""
    if len(sizes) == 1:
        only = sizes[0]
        if isinstance(only, Sequence):
            return len(only.items) if only.items is not None else SOME_RANK
        return 1 if isinstance(only, Scalar) and only.is_number else SOME_RANK
    return len(sizes) if sizes else UNKNOWN_RANK


def _rank(creation: Creation, first: Value | None, rank: int) -> int:
    if creation.kind == "data":
        return 0 if _is_single(creation, first) else _data_rank(first)
    return rank


def _data_rank(value: Value | None) -> int:
    if isinstance(value, Tensor):
        return value.rank
    if isinstance(value, Scalar):
        return 0
    if isinstance(value, Sequence):
        items = value.items if value.items is not None else (value.element,)
        inner = max(map(_data_rank, items), default=0)
        return inner + 1 if inner >= 0 else SOME_RANK
    return UNKNOWN_RANK


def _of_fill(it: Interpreter, value: Value | None) -> Dtypes:
    if isinstance(value, Scalar):
        if value.kind == "int":
            return dtypes.V_INTEGER
        if value.kind == "bool":
            return dtypes.V_BOOLEAN
        if value.kind == "number":
            return dtypes.V_ANY
    return it.program.default_dtype  # type: ignore[no-any-return]


def _of_data(it: Interpreter, creation: Creation, value: Value | None, node: ast.AST) -> Value:
    """``tensor``, ``as_tensor``, ``from_numpy``: the dtype of what they are given."""
    if isinstance(value, Unknown) and ("stated of", "") in value.symbol.attributes:
        value = tensor_of(it, value)
    lo, hi = _data_range(value)
    number = isinstance(value, Tensor) and creation.name == "tensor" and _is_number(value)
    if isinstance(value, Tensor) and not number:
        return value.but(op=creation.name, operands=(value,), node=node, home=it.module, data=DATA)
    assumptions = 0
    origin = DATA
    if isinstance(value, Tensor):  # ``torch.tensor(1.0 - rate)``
        vector, origin, assumptions = it.program.default_dtype, DEFAULT, value.assumptions
    elif isinstance(value, Array):
        vector = value.dtypes
    elif isinstance(value, Unknown) and (
        creation.name == "from_numpy" or value.symbol.uses & Symbol.ARRAY
    ):
        vector, assumptions = dtypes.V_ANY, assume.KIND
        value.symbol.uses |= Symbol.ARRAY
    else:
        parts = _scalars(value)
        found = _literal(value) if not parts else 0
        vector = parts[0].dtypes if parts else dtypes.V_ANY
        for one in parts:
            vector = dtypes.promote(vector, one.dtypes)
            assumptions |= one.assumptions
        if found:
            vector = dtypes.everywhere(found)
            if found == dtypes.FLOAT32:
                vector, origin = it.program.default_dtype, DEFAULT
    return Tensor(
        vector,
        creation.name,
        (value,) if value is not None else (),
        node,
        it.module,
        lo,
        hi,
        assumptions,
        rank=0 if number else _rank(creation, value, UNKNOWN_RANK),
        reach=max(abs(lo), abs(hi)) if abs(lo) < INF and abs(hi) < INF else 0.0,
        data=origin,
        flags=DETACHED if creation.name == "from_numpy" else 0,
    )


def _is_single(creation: Creation, value: Value | None) -> bool:
    """Whether ``torch.tensor(np.log(x))`` is of one number."""
    return isinstance(value, Array) and creation.name != "from_numpy" and perhaps_number(value)


def _is_number(value: Tensor) -> bool:
    """Whether arithmetic with a Python float is of something that the code takes for no tensor."""
    if value.op not in ("add", "sub", "mul", "div") or value.symbol is not None:
        return False
    floats = others = 0
    for one in value.operands[:2]:
        symbol = one.symbol if isinstance(one, (Tensor, Unknown)) else None
        floats += isinstance(one, Scalar) and one.kind == "float"
        others += symbol is not None and not symbol.uses & (Symbol.TENSOR | Symbol.ARRAY)
    return floats == others == 1


def _scalars(value: Value | None) -> list[Tensor]:
    """The tensors without dimensions in a list of nothing else."""
    if not isinstance(value, Sequence):
        return []
    parts = value.items[:64] if value.items is not None else (value.element,)
    found = [part for part in parts if isinstance(part, Tensor)]
    return found if len(found) == len(parts) else []


def _literal(value: Value | None) -> int:
    """The dtype that torch gives to Python numbers; 0: unknown."""
    if isinstance(value, Scalar):
        kinds = {"int": dtypes.INTEGER, "float": dtypes.FLOAT32, "bool": dtypes.BOOLEAN}
        return kinds.get(value.kind, 0)
    if isinstance(value, Sequence):
        parts = value.items if value.items is not None else (value.element,)
        found = [_literal(part) for part in parts[:64]]
        if dtypes.FLOAT32 in found:
            return dtypes.FLOAT32
        if not found or 0 in found:
            return dtypes.FLOAT32 if value.items == () else 0
        return max(found, key=(dtypes.BOOLEAN, dtypes.INTEGER).index)
    return 0


def _data_range(value: Any) -> tuple[float, float]:
    if isinstance(value, Sequence):
        parts = value.items if value.items is not None else (value.element,)
        return hull(*[_data_range(part) for part in parts[:64]]) if parts else (-INF, INF)
    if isinstance(value, Array):
        return value.lo, value.hi
    return bounds_of(value)


def _range(
    creation: Creation, values: Mapping[str, Value], arguments: list[Value]
) -> tuple[float, float]:
    """Bounds of the elements."""
    if creation.name in ("full", "full_like", "new_full"):
        return bounds_of(values.get("fill_value"))
    if creation.kind == "data" or creation.name == "new_tensor":
        return _data_range(values.get(creation.parameters[0 if creation.kind == "data" else 1]))
    if creation.name in ("linspace", "logspace"):
        ends = bounds_of(values.get("start")), bounds_of(values.get("end"))
        return hull(*ends) if creation.name == "linspace" else (0.0, INF)
    if creation.kind == "range":
        start, step = values.get("start"), values.get("step")
        first = bounds_of(start) if start is not None else (0.0, 0.0)
        stride = bounds_of(step) if step is not None else (1.0, 1.0)
        last = bounds_of(values.get("end"))
        if stride[0] > 0:
            whole = number(values.get("end")) is not None and stride == (1.0, 1.0)
            return first[0], max(last[1] - (1.0 if whole else 0.0), first[0])
        return -INF, INF
    if creation.name == "randint":
        return _between(arguments)
    return creation.lo, creation.hi


def _between(ends: list[Value]) -> tuple[float, float]:
    """Bounds of ``randint(high, size)`` and ``randint(low, high, size)``."""
    if len(ends) > 2 or (len(ends) == 2 and isinstance(ends[1], Scalar)):
        return bounds_of(ends[0])[0], bounds_of(ends[1])[1] - 1
    return (0.0, bounds_of(ends[0])[1] - 1) if ends else (-INF, INF)


def _reach(creation: Creation, lo: float, hi: float) -> float:
    """The largest magnitude, where the last element is known."""
    whole = creation.kind in ("range", "data") or creation.name == "new_tensor"
    if whole or creation.name in ("full", "linspace", "ones", "full_like"):
        return max(abs(lo), abs(hi)) if abs(lo) < INF and abs(hi) < INF else 0.0
    return 0.0


def sampled(it: Interpreter, value: Special, shaped: bool, node: ast.AST) -> Value:
    """A sample of a distribution, in the dtype that its parameters promote to."""
    of = [made for one in value.fields["of"] if (made := tensor_of(it, one)) is not None]
    if not of:
        return it.unknown("sample", dtypes.V_ANY, assume.CALL)
    vector = dtypes.floating(promoted(of, [one.dtypes for one in of]))
    made = Tensor(
        vector, "sample", tuple(of), node, it.module, rank=SOME_RANK if shaped else UNKNOWN_RANK
    )
    for one in of:
        made.assumptions |= one.assumptions
    return made


LIMITS: Final[dict[str, tuple[float, float]]] = {
    "min": (-INF, -65504.0), "max": (65504.0, INF), "eps": (0.0, 0.0078125), "resolution": (0.0, 0.01),
    "tiny": (0.0, 6.2e-5), "smallest_normal": (0.0, 6.2e-5), "bits": (8, 64),
}  # fmt: skip


FINFO: Final[dict[int, dict[str, float]]] = {
    dtype: {
        "eps": 2.0**-bits, "tiny": tiny, "smallest_normal": tiny, "max": most, "min": -most,
    }
    for dtype, bits, tiny, most in (
        (dtypes.FLOAT64, 52, 2.0**-1022, 1.7976931348623157e308),
        (dtypes.FLOAT32, 23, 2.0**-126, 3.4028234663852886e38),
        (dtypes.FLOAT16, 10, 2.0**-14, 65504.0),
        (dtypes.BFLOAT16, 7, 2.0**-126, 3.3895313892515355e38),
    )
}  # fmt: skip
"""What ``torch.finfo`` says of each dtype."""


def limit_of(it: Interpreter, value: Special, name: str, node: ast.AST) -> Value:
    """``torch.finfo(dtype).min`` and the like: a number that depends on a dtype."""
    lo, hi = LIMITS.get(name, (-INF, INF))
    vector = value.fields["dtypes"]
    numbers = FINFO.get(vector[dtypes.CODE]) if len(set(vector)) == 1 else None
    return Scalar(
        numbers and numbers.get(name), "float", lo, hi, 0, node, it.module, f"finfo.{name}",
        (DtypeValue(vector),),
    )  # fmt: skip
