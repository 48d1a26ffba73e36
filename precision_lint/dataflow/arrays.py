"""Functions of NumPy: the arrays that they give."""

from __future__ import annotations

import ast
import math
from typing import Final

from precision_lint.dataflow.graph import may_be_number
from precision_lint.dataflow.interpreter import Interpreter, tensor_of
from precision_lint.dataflow.objects import ancestry
from precision_lint.dataflow.operators import or_number
from precision_lint.dataflow.ranges import hull
from precision_lint.dataflow.tensors import dtype_of
from precision_lint.domains import dtypes
from precision_lint.domains.joining import unknown
from precision_lint.domains.values import (
    INF,
    REGIONAL,
    Array,
    ClassValue,
    Instance,
    Reference,
    Scalar,
    Sequence,
    Special,
    Symbol,
    Table,
    Tensor,
    Unknown,
    Value,
    counts,
    number,
)
from precision_lint.syntax.program import Class
from precision_lint.torchmodel import arrays
from precision_lint.torchmodel.layers import layer

Arguments = list[Value]
Keywords = dict[str, Value]
COPIES: Final = frozenset({"asarray", "array", "ascontiguousarray"})
"""Functions that ask a tensor for its array."""


def call(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    """What a function of NumPy gives, by its dotted name."""
    plain = name.partition(".")[2]
    if plain in arrays.GENERATORS:
        return Reference("numpy.random")  # its methods are the functions of that module
    plain = "random.randint" if plain == "random.integers" else plain
    if plain == "finfo":
        vector = dtype_of(it, arguments[0]) if arguments else None
        return Special("finfo", node, it.module, dtypes=vector or dtypes.V_ANY)
    at = arrays.DTYPE_AT.get(plain, len(arguments))
    if at < len(arguments):
        keywords = {**keywords, "dtype": arguments[at]}
        arguments = arguments[:at] + arguments[at + 1 :]
    first = arguments[0] if arguments else None
    if plain in COPIES and isinstance(first, Unknown) and _is_used_as_tensor(first.symbol):
        first = tensor_of(it, first)
    if plain in COPIES and isinstance(first, Tensor):
        return it.call(Special("method", node, it.module, of=first, name="numpy"), [], {}, node)
    counts(value for key, value in keywords.items() if key in arrays.SIZES)
    arguments += [value for key, value in keywords.items() if key == "weights"]
    asked = dtype_of(it, keywords["dtype"]) if "dtype" in keywords else None
    arguments = [or_number(v) if isinstance(v, Unknown) else v for v in arguments]
    for value in arguments:
        if isinstance(value, Unknown) and not value.symbol.uses & Symbol.TENSOR:
            value.symbol.uses |= Symbol.ARRAY
    vector = asked or arrays.result(plain, [_array_kind(value) for value in arguments])
    first = arguments[0] if arguments else None
    if plain in ("float16", "float32", "float64", "int64", "int32") and isinstance(first, Scalar):
        return Array(vector, plain, (first,), node, it.module, first.lo, first.hi)
    lo, hi = _array_range(plain, arguments)
    return Array(vector, f"numpy.{plain}", tuple(arguments), node, it.module, lo, hi)


def _is_used_as_tensor(symbol: Symbol) -> bool:
    """Whether something unknown is surely a tensor: used as one, or computed in a region around models.

    What a call gives that nobody saw may be an array, a list or a picture as well, which is what
    functions of NumPy are given.
    """
    return bool(symbol.uses & Symbol.TENSOR or symbol.flags & REGIONAL) and symbol.proven(
        Symbol.TENSOR
    )


def of_method(
    it: Interpreter, name: str, value: Array, arguments: Arguments, keywords: Keywords
) -> dtypes.Dtypes:
    """The dtype of what a method of an array gives: ``mean(axis, dtype)``."""
    at = arrays.DTYPE_AT.get(name, 0) - 1  # the function is given the array as well
    given = keywords.get("dtype") or (arguments[at] if 0 <= at < len(arguments) else None)
    asked = dtype_of(it, given) if given is not None else None
    return asked or arrays.method(name, value.dtypes)


MOVED: Final = frozenset({"reshape", "flatten", "ravel", "squeeze", "copy", "transpose"})
"""Methods of arrays that leave an index an index."""


def used_as_index(it: Interpreter, index: Value) -> None:
    """What is an index holds integers or is a mask: so does the tensor that an array was made of."""
    for part in index.items or () if isinstance(index, Sequence) else (index,):
        while isinstance(part, Array) and part.op in MOVED and part.operands:
            part = part.operands[0]
        if isinstance(part, Array) and part.op == "numpy" and part.node is not None:
            it.retract_at("bfloat16-to-numpy", part.node, part.home)


def _array_kind(value: Value) -> dtypes.Dtypes:
    """The dtype of an operand of NumPy."""
    if isinstance(value, Tensor) and may_be_number(value):
        return dtypes.V_ANY
    if isinstance(value, (Array, Tensor)):
        return value.dtypes
    if isinstance(value, Scalar):
        kinds = {"int": dtypes.V_INTEGER, "float": dtypes.V_FLOAT64, "bool": dtypes.V_BOOLEAN}
        return kinds.get(value.kind, dtypes.V_ANY)
    if isinstance(value, Sequence):
        parts = value.items if value.items is not None else (value.element,)
        found: dtypes.Dtypes | None = None
        for part in parts[:32]:
            one = _array_kind(part) if part is not None else dtypes.V_ANY
            found = one if found is None else dtypes.promote(found, one)
        return found or dtypes.V_FLOAT64
    return dtypes.V_ANY


def _array_range(name: str, arguments: Arguments) -> tuple[float, float]:
    if name in ("zeros", "zeros_like"):
        return 0.0, 0.0
    if name in ("ones", "ones_like"):
        return 1.0, 1.0
    if name in ("array", "asarray") and arguments and isinstance(arguments[0], Sequence):
        return _spread(arguments[0])
    values = [number(one) for one in arguments]
    if name in ELEMENTARY and values and None not in values:
        try:
            found = getattr(math, name)(*values)
        except (ValueError, TypeError, ArithmeticError):
            return -INF, INF
        return found, found
    return -INF, INF


ELEMENTARY: Final = frozenset({"log", "log2", "log10", "log1p", "exp", "expm1", "sqrt"})
"""Functions of NumPy that ``math`` has as well."""


def _spread(value: Value | None) -> tuple[float, float]:
    if isinstance(value, Sequence) and value.items:
        return hull(*[_spread(item) for item in value.items[:64]])
    if isinstance(value, (Scalar, Array)):
        return value.lo, value.hi
    return -INF, INF


OTHERS: Final = frozenset({
    "list", "tuple", "dict", "set", "str", "bytes", "int", "float", "bool", "complex",
    "numpy.ndarray", "numpy.generic", "PIL.Image.Image", "collections.OrderedDict",
})  # fmt: skip
"""Classes that no tensor is of."""
ONLY_TENSORS: Final = frozenset({
    "cpu", "cuda", "numpy", "detach", "requires_grad", "is_cuda", "data_ptr", "half", "bfloat16",
    "float", "to", "type_as", "new_zeros", "backward",
})  # fmt: skip
"""Attributes that tensors have and NumPy's arrays have not."""


def is_instance(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    """``isinstance(value, torch.Tensor)`` and ``hasattr(value, "cpu")``, where no assumption made it one."""
    if len(arguments) != 2:
        return Scalar(None, "bool")
    name, (value, asked) = name.rpartition(".")[2], arguments
    if name == "isinstance" and isinstance(value, Instance):
        return Scalar(_is_object(it, value, asked), "bool")
    if name == "isinstance" and isinstance(value, (Sequence, Table)):
        return Scalar(_is_container(value, _names(asked)), "bool")
    if isinstance(value, Array) or _is_tensor(value):
        return Scalar(told(name, asked, isinstance(value, Tensor)), "bool")
    return Scalar(None, "bool")


def is_tensor(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    """``torch.is_tensor(value)``"""
    asked = [*arguments[:1], Reference("torch.Tensor")]
    return is_instance(it, "isinstance", asked, {}, node)


def _is_tensor(value: Value) -> bool:
    """Whether a value is surely a tensor: a layer's output is one, whatever its dtype rests on."""
    if not isinstance(value, Tensor) or may_be_number(value):
        return False
    layers = ("linear", "conv1d", "conv2d", "conv3d", "embedding", "layer_norm", "batch_norm")
    return not value.assumptions or value.op in layers


def _is_object(it: Interpreter, value: Instance, asked: Value) -> bool | None:
    """The same for an object of a class of the project, or for a layer of torch."""
    cls = value.cls
    line = [f"torch.nn.{cls}", "torch.nn.Module"] if isinstance(cls, str) else ancestry(it, cls)
    classes = asked.items or () if isinstance(asked, Sequence) else (asked,)
    if any(getattr(one, "cls", getattr(one, "name", None)) in line for one in classes):
        return True
    if isinstance(cls, str) and cls.startswith("Lazy"):
        return None  # it becomes another one
    others = [one.name if isinstance(one, Reference) else "" for one in classes]
    layers = all(layer(one.removeprefix("torch.nn.")) is not None for one in others)
    whole = isinstance(cls, str) or all(
        isinstance(one, Class) or one in WHOLE or _is_layer(one) for one in line
    )
    return False if layers and whole else None


def _is_layer(name: str) -> bool:
    """Whether a class is a layer of torch, and stays one."""
    inner = name.removeprefix("torch.nn.")
    return inner != name and not inner.startswith("Lazy") and layer(inner) is not None


WHOLE: Final = frozenset({"torch.nn.Module", "torch.nn.modules.module.Module", "builtins.object"})
"""Classes that are no layers, and derive from none."""


def _names(asked: Value) -> set[str]:
    """The classes that ``isinstance`` asks for; an empty name: one of the project, or unknown."""
    classes = asked.items or () if isinstance(asked, Sequence) else (asked,)
    found = [one.name if isinstance(one, Reference) else "" for one in classes]
    return {one.removeprefix("builtins.") for one in found}


def told(name: str, asked: Value, tensor: bool) -> bool | None:
    """What ``isinstance`` or ``hasattr`` gives for a tensor, or else for an array of NumPy."""
    if name == "hasattr":
        return tensor if isinstance(asked, Scalar) and asked.value in ONLY_TENSORS else None
    names = _names(asked)
    if not tensor:
        return False if names and all(one.startswith("torch.") for one in names) else None
    if "torch.Tensor" in names:
        return True
    return False if names and names <= OTHERS else None


def _is_container(value: Sequence | Table, names: set[str]) -> bool | None:
    """The same for a list, tuple, set or dict."""
    if value.__class__ is Table:  # a processor's is one only by its looks
        known = "dict" in names
    else:
        known = isinstance(value, Sequence) and (value.kind in names or names >= {"list", "tuple"})
    kinds = {"dict"} if isinstance(value, Table) else {"list", "tuple"}
    others = (OTHERS | {"torch.Tensor"}) - {*kinds, "set", "collections.OrderedDict"}
    return True if known else False if names and names <= others else None


def class_of(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    """``type(value)``"""
    value = arguments[0] if len(arguments) == 1 else None
    if isinstance(value, Instance) and not isinstance(value.cls, str):
        return ClassValue(value.cls)
    if isinstance(value, Sequence) and value.kind in ("list", "tuple", "set"):
        return Reference(f"builtins.{value.kind}")
    return Reference("builtins.dict") if value.__class__ is Table else unknown()
