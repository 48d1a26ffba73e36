"""What annotations state: jaxtyping's ``Float32[Tensor, "b n"]``, torch's classes of tensors, ``int``."""

from __future__ import annotations

import ast
from typing import Final

from precision_lint.dataflow import objects
from precision_lint.dataflow.graph import may_be_number
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.stated import with_dtype
from precision_lint.domains import dtypes
from precision_lint.domains.joining import unknown
from precision_lint.domains.values import (
    NONE,
    Array,
    Instance,
    Reference,
    Scalar,
    Sequence,
    Symbol,
    Tensor,
    Unknown,
    Value,
)
from precision_lint.syntax.program import Class, Function, Module, annotation

SIZES: Final = (2, 4, 8, 16, 32, 64)
JAXTYPING: Final[dict[str, int]] = {
    "Float16": dtypes.FLOAT16, "BFloat16": dtypes.BFLOAT16, "Float32": dtypes.FLOAT32,
    "Float64": dtypes.FLOAT64, "Bool": dtypes.BOOLEAN,
    **dict.fromkeys(("Complex", "Complex64", "Complex128"), dtypes.COMPLEX),
    **dict.fromkeys(("Int", "UInt", "Integer"), dtypes.INTEGER),
    **{f"{sign}{size}": dtypes.INTEGER for sign in ("Int", "UInt") for size in SIZES},
}  # fmt: skip
FLOATS: Final = frozenset({"Float", "Inexact"})
"""Annotations that say "some float"."""
ANYTHING: Final = frozenset({"Num", "Real", "Shaped"})
"""Annotations that say "a tensor"."""
NUMBERS: Final = {"int": "int", "float": "float", "bool": "bool", "str": "str", "bytes": "bytes"}
TENSOR_CLASSES: Final = {
    "LongTensor": dtypes.INTEGER, "IntTensor": dtypes.INTEGER, "BoolTensor": dtypes.BOOLEAN,
    "ShortTensor": dtypes.INTEGER, "CharTensor": dtypes.INTEGER,
    "ByteTensor": dtypes.INTEGER, "HalfTensor": dtypes.FLOAT16,
    "BFloat16Tensor": dtypes.BFLOAT16, "DoubleTensor": dtypes.FLOAT64,
}  # fmt: skip
"""``FloatTensor`` is not among them: much code says it of any tensor of floats."""
PAIRED: Final = frozenset({"tuple", "Tuple"})
MANY: Final = frozenset({"list", "List", "Sequence", "Iterable", "set"})
EITHER: Final = frozenset({"Optional", "Union"})


def parsed(node: ast.expr) -> ast.expr | None:
    """An annotation, also one that is written as text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return annotation(node.value)
    return node


def last(node: ast.expr) -> str:
    """The last part of a name."""
    if isinstance(node, ast.Subscript):
        return last(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def jaxtyped(it: Interpreter, module: Module, node: ast.expr) -> str:
    """The name of jaxtyping by which an annotation says a dtype; empty: it does not."""
    name = last(node)
    if not isinstance(node, ast.Subscript) or not (
        name in JAXTYPING or name in FLOATS or name in ANYTHING
    ):
        return ""
    value = it.evaluate_in(module, node.value)
    if isinstance(value, Reference):
        return name if value.name.startswith("jaxtyping.") else ""
    return name if isinstance(value, Unknown) else ""  # imported for type checkers only


def single(node: ast.expr) -> ast.expr | None:
    """The one type besides None that ``Optional``, ``Union`` or ``|`` names; None: there are several."""
    parts = [node]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        parts = [node.left, node.right]
    elif isinstance(node, ast.Subscript) and last(node) in EITHER:
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    left = [part for part in parts if not is_none(part)]
    return left[0] if len(left) == 1 else None


WORDS: Final = frozenset({*JAXTYPING, *FLOATS, *TENSOR_CLASSES, "int", "bool", "str"})


def states(node: ast.expr | None) -> ast.expr | None:
    """An annotation that may say a dtype; None: it says none."""
    return parsed(node) if node is not None and _speaks(node) else None


def _speaks(node: ast.expr) -> bool:
    kind = node.__class__
    if kind is ast.Name:
        return node.id in WORDS  # type: ignore[attr-defined]
    if kind is ast.Attribute:
        return node.attr in WORDS  # type: ignore[attr-defined]
    if isinstance(node, ast.Subscript):
        return _speaks(node.value) or _speaks(node.slice)
    if isinstance(node, ast.Tuple):
        return any(map(_speaks, node.elts))
    if isinstance(node, ast.BinOp):
        return _speaks(node.left) or _speaks(node.right)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return any(word in node.value for word in WORDS)
    return False


def of_function(function: Function) -> dict[str, ast.expr]:
    """The annotations of a function that say dtypes, by parameter; that of its result as ``return``."""
    known: dict[str, ast.expr] | None = function.facts.get("annotated")
    if known is None:
        given = function.node.args
        parameters = (*given.posonlyargs, *given.args, *given.kwonlyargs)
        every: dict[str, ast.expr | None] = {one.arg: one.annotation for one in parameters}
        every["return"] = getattr(function.node, "returns", None)
        found = {name: states(node) for name, node in every.items()}
        known = {name: node for name, node in found.items() if node is not None}
        function.facts["annotated"] = known
    return known


def of_class(cls: Class) -> dict[str, ast.expr]:
    """The annotations of a class that say dtypes, by attribute."""
    found = {name: states(node) for name, node in cls.annotations.items()}
    return {name: node for name, node in found.items() if node is not None}


def of_attribute(it: Interpreter, value: Instance, name: str) -> tuple[Module, ast.expr] | None:
    """The annotation by which a class states the dtype of an attribute."""
    cls = value.cls
    if isinstance(cls, str):
        return None
    known: dict[str, tuple[Module, ast.expr]] | None = cls.facts.get("declared")
    if known is None:
        known = cls.facts["declared"] = {}
        for base in reversed(objects.ancestry(it, cls)):
            if isinstance(base, Class):
                known |= {one: (base.module, said) for one, said in of_class(base).items()}
    return known.get(name)


def as_annotated(it: Interpreter, module: Module, value: Value, node: ast.expr) -> Value:
    """A value in the dtype that an annotation states, where nothing else is proved."""
    inner = single(node)
    inner = parsed(inner) if inner is not None else None
    if inner is None:
        return value
    name = last(inner)
    if isinstance(inner, ast.Subscript) and name in PAIRED | MANY:
        return _of_items(it, module, value, inner, name)
    if name in TENSOR_CLASSES and not isinstance(inner, ast.Subscript):
        return _typed(it, value, TENSOR_CLASSES[name], inner is not node)
    if name in NUMBERS:
        open_ = isinstance(value, Unknown) or may_be_number(value)
        return Scalar(None, NUMBERS[name]) if open_ and not isinstance(value, Scalar) else value
    said = jaxtyped(it, module, inner)
    if not said:
        return value
    if said in JAXTYPING:
        return _typed(it, value, JAXTYPING[said], inner is not node, _is_array(inner))
    if isinstance(value, (Tensor, Unknown)):
        symbol = value.symbol
        if symbol is not None:
            symbol.uses |= Symbol.TENSOR | (Symbol.FLOAT if said in FLOATS else 0)
    return value


def _is_array(node: ast.expr) -> bool:
    inside = node.slice if isinstance(node, ast.Subscript) else node
    first = inside.elts[0] if isinstance(inside, ast.Tuple) and inside.elts else inside
    return last(first) == "ndarray"


def _typed(it: Interpreter, value: Value, dtype: int, optional: bool, array: bool = False) -> Value:
    vector = dtypes.everywhere(dtype)
    if value is NONE and not optional:
        value = unknown()  # of an abstract method
    if isinstance(value, Unknown):
        if array:
            return Array(vector, "input")
        value.symbol.uses |= Symbol.TENSOR
    return with_dtype(it, value, vector, None).value


def _of_items(
    it: Interpreter, module: Module, value: Value, node: ast.Subscript, name: str
) -> Value:
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    plain = [p for p in parts if not (isinstance(p, ast.Constant) and p.value is Ellipsis)]
    same = name in MANY or len(plain) < len(parts)
    if isinstance(value, Unknown) and not same:
        value = Sequence(tuple([unknown() for _ in plain]), None, "tuple")
    if not isinstance(value, Sequence) or not plain:
        return value
    if value.items is None:
        if not same or value.element is None:
            return value
        return Sequence(None, as_annotated(it, module, value.element, plain[0]), value.kind)
    if same:
        plain = plain[:1] * len(value.items)
    if len(plain) != len(value.items):
        return value
    pairs = zip(value.items, plain, strict=True)
    return Sequence(
        tuple([as_annotated(it, module, one, part) for one, part in pairs]), None, value.kind
    )
