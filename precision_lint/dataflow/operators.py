"""Operators between values: tensors, numbers, arrays, strings and containers."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any, Final

from precision_lint.dataflow import devices, special_methods
from precision_lint.dataflow.choices import answer
from precision_lint.dataflow.graph import may_be_number
from precision_lint.dataflow.interpreter import Interpreter, tensor_of
from precision_lint.dataflow.protocol import note
from precision_lint.dataflow.ranges import divide, multiply, power
from precision_lint.dataflow.tensors import dtype_of, operate
from precision_lint.domains import dtypes
from precision_lint.domains.joining import any_of, join, unknown
from precision_lint.domains.values import (
    INF,
    ON_CPU,
    ON_OTHER,
    OPTIONAL,
    Array,
    Closure,
    DtypeValue,
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
    are_counts,
    begun,
    counts,
    number,
    truth,
)
from precision_lint.torchmodel.arrays import by_element
from precision_lint.torchmodel.creation import creation
from precision_lint.torchmodel.operations import operation

BINARY: Final[dict[type, str]] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.FloorDiv: "floor_divide",
    ast.Mod: "remainder",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
    ast.BitAnd: "bitwise_and",
    ast.BitOr: "bitwise_or",
    ast.BitXor: "bitwise_xor",
    ast.LShift: "bitwise_left_shift",
    ast.RShift: "bitwise_right_shift",
}
"""Operators by the operation of torch that they are."""
COMPARISONS: Final[dict[type, str]] = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
}
FOLD: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "pow": operator.pow,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_left_shift": operator.lshift,
    "bitwise_right_shift": operator.rshift,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
LARGEST: Final = 1e300
"""Numbers beyond are not folded."""


TESTED: Final[list[Callable[[Interpreter, Value, ast.AST], None]]] = []
"""What to look for where the truth of a value is asked (``hazards``)."""


def asked(it: Interpreter, value: Value, node: ast.AST) -> bool | None:
    """The truth of a value that the code asks for; None: unknown."""
    if value.__class__ is Special:
        for look in TESTED:
            look(it, value, node)
    known = truth_value(value)
    return known if known is not None else answer(it.region, value)


def truth_value(value: Value) -> bool | None:
    """Whether a value is true, if that is known."""
    return truth(value)


FUNCTIONS: Final = {
    "truediv": "div", "itruediv": "div", "floordiv": "floor_divide", "mod": "remainder",
    "and_": "bitwise_and", "or_": "bitwise_or", "concat": "add",
}  # fmt: skip
"""Operators by the names of functions of ``operator`` that differ from theirs."""
NAMES: Final = frozenset(BINARY.values())


def of_module(
    it: Interpreter, name: str, arguments: list[Value], keywords: dict[str, Value], node: ast.AST
) -> Value:
    """``operator.add(x, y)``, ``operator.imul(x, y)``"""
    last = name.rpartition(".")[2]
    op = FUNCTIONS.get(last, last)
    inplace = op not in NAMES and op[:1] == "i" and op[1:] in NAMES
    op = op[1:] if inplace else op
    if len(arguments) != 2 or op not in NAMES:
        return unknown()
    return binary(it, op, arguments[0], arguments[1], node, inplace)


def binary(
    it: Interpreter, op: str, left: Value, right: Value, node: ast.AST, inplace: bool = False
) -> Value:
    """``left op right``"""
    for side in (left, right):
        if isinstance(side, Scalar) and side.op == "scale":
            if op == "div" and side is left and number(right) is not None:
                return side  # the next scale
            note(it, "scale-used", node)
    left, right = _plain(left, right), _plain(right, left)
    kinds = (left.__class__, right.__class__)
    if Instance in kinds:
        return _of_objects(it, op, left, right, node)
    if Tensor in kinds or (op == "matmul" and Unknown in kinds and not _of_numpy(left, right)):
        return _tensors(it, op, left, right, node, inplace)
    if kinds == (Scalar, Scalar):
        return numbers(op, left, right)
    if Array in kinds:
        return _arrays(it, op, left, right, node)
    if isinstance(left, Sequence) or isinstance(right, Sequence):
        return _sequences(op, left, right)
    if isinstance(left, Table) and isinstance(right, Table) and op == "bitwise_or":
        return Table({**left.items, **right.items}, right.element or left.element)
    if Unknown in kinds:
        return _unknowns(it, op, left, right, node, inplace)
    if isinstance(left, Special) and isinstance(right, Special) and left.kind == "parameters":
        owners = [one for side in (left, right) for one in owners_of(side)]
        return Special("parameters", node, it.module, owner=owners[0], named=False, owners=owners)
    return unknown()


METHODS: Final = {
    "add": "add", "sub": "sub", "mul": "mul", "div": "truediv", "matmul": "matmul", "pow": "pow",
}  # fmt: skip
"""What the methods of classes are called that operators call."""


def _of_objects(it: Interpreter, op: str, left: Value, right: Value, node: ast.AST) -> Value:
    """An operator of a class of the project."""
    name, found = METHODS.get(op), None
    if name is not None:
        found = special_methods.called(it, left, f"__{name}__", [right], node)
    if name is not None and found is None:
        found = special_methods.called(it, right, f"__r{name}__", [left], node)
    return found if found is not None else unknown()


def _of_numpy(*sides: Any) -> bool:
    """Whether a side of a matrix product is an array: then both are, and what is unknown is shown to be."""
    if not any(
        one.__class__ is Array or (one.__class__ is Unknown and one.symbol.uses & Symbol.ARRAY)
        for one in sides
    ):
        return False
    for one in sides:
        if one.__class__ is Unknown:
            one.symbol.uses |= Symbol.ARRAY
    return True


def _plain(value: Value, other: Value) -> Value:
    """An operand beside another one: a number, if its uses or its neighbour say so."""
    if value.__class__ is Unknown or (value.__class__ is Tensor and are_counts(value)):
        return or_number(value)
    if value.__class__ is Tensor and other.__class__ is Array and not perhaps_number(other):
        return Scalar(None, "number") if may_be_number(value) else value
    return _beside(other, value) if value.__class__ is Array else value


def or_number(value: Any) -> Value:
    """An unknown object, or the number that its uses say it is."""
    return Scalar(None, "number") if are_counts(value) else value


def _beside(other: Any, value: Any) -> Value:
    """What is NumPy's, beside a tensor: a number leaves the tensor's dtype as it is.

    What is of an unknown dtype is a number there, as an array has to be made a tensor first.
    """
    if other.__class__ is Unknown:
        uses = other.symbol.uses
        tensor = not uses & Symbol.ARRAY and (uses & Symbol.TENSOR or _is_number(value))
    else:
        tensor = other.__class__ is Tensor
    if tensor and (value.dtypes == dtypes.V_ANY or perhaps_number(value)):
        return Scalar(None, "float", value.lo, value.hi, 0, value.node, value.home)
    return value  # type: ignore[no-any-return]


def _is_number(value: Any) -> bool:
    """Whether NumPy made something of numbers, one of each: ``np.sqrt(width)``."""
    if value.__class__ is not Array:
        return value.__class__ is Scalar
    return _by_element(value) and all(map(_is_number, value.operands))


def _by_element(value: Any) -> bool:
    by_item = (
        value.op in FOLD
        or value.op == "neg"
        or (value.op.startswith("numpy.") and by_element(value.op[6:]))
    )
    return by_item and bool(value.operands)


def perhaps_number(value: Any) -> bool:
    """Whether something of NumPy may be one number, which promotes no tensor: ``rates[step]``."""
    if value.__class__ is Unknown:
        return not value.symbol.uses & (Symbol.ARRAY | Symbol.TENSOR)
    if value.__class__ is not Array:
        return value.__class__ is Scalar
    if value.op == "index":
        return isinstance(value.node, ast.Subscript) and not _has_slice(value.node.slice)
    if value.op.removeprefix("numpy.") in REDUCTIONS:
        node = value.node
        given = len(node.args) + len(node.keywords) if isinstance(node, ast.Call) else 0
        return given <= value.op.startswith("numpy.")
    if value.op in DRAWS:
        node = value.node
        return (
            isinstance(node, ast.Call) and len(node.args) <= DRAWS[value.op] and not node.keywords
        )
    if value.op in ("element", "join"):
        return value.op == "element" or any(map(perhaps_number, value.operands))
    return _by_element(value) and all(map(perhaps_number, value.operands))


REDUCTIONS: Final = frozenset({"sum", "mean", "max", "min", "std", "var", "prod", "median"})
"""Methods of arrays, and functions, that give one number unless they are told an axis."""
DRAWS: Final = {
    "numpy.random.rand": 0, "numpy.random.randn": 0, "numpy.random.random": 0,
    "numpy.random.random_sample": 0, "numpy.random.uniform": 2, "numpy.random.normal": 2,
}  # fmt: skip
"""Functions that draw one number, with the most arguments that they take for it."""


def _has_slice(index: ast.expr) -> bool:
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return any(isinstance(part, ast.Slice) for part in parts)


def owners_of(value: Value | None) -> list[Value]:
    """Whose parameters a value is."""
    if not isinstance(value, Special) or value.kind != "parameters":
        return []
    return value.fields.get("owners") or [value.fields["owner"]]


def _tensors(
    it: Interpreter, op: str, left: Value, right: Value, node: ast.AST, inplace: bool
) -> Value:
    known = operation(op)
    if known is None:
        return unknown()
    operands = [_operand(it, value) for value in (left, right)]
    return operate(it, known, operands, {}, node, inplace and isinstance(left, Tensor))


def _operand(it: Interpreter, value: Value) -> Value:
    """An operand of arithmetic with a tensor."""
    if isinstance(value, Unknown):
        uses = value.symbol.uses
        made = tensor_of(it, value)
        value.symbol.uses = uses
        return made if made is not None else value
    if isinstance(value, Array):
        return Tensor(
            value.dtypes, "from_numpy", (value,), value.node, value.home, value.lo, value.hi
        )
    return value


def _unknowns(
    it: Interpreter, op: str, left: Value, right: Value, node: ast.AST, inplace: bool
) -> Value:
    """Arithmetic of unknown objects: of tensors, unless the code takes them for something else."""
    both = [v for v in (left, right) if isinstance(v, Unknown)]
    if any(v.symbol.uses & Symbol.ARRAY for v in both):
        return Array(dtypes.V_ANY, op, (left, right), node, it.module)
    if isinstance(left, Scalar) and left.kind == "int" and op in ("remainder", "floor_divide"):
        counts([right])  # every so many steps
        return Scalar(None, "number")
    other = right if both and both[0] is left else left
    if isinstance(other, Scalar) and not (other.is_number or other.kind == "complex"):
        return _put_together(op, left) if other.kind == "str" else unknown()
    if not isinstance(other, (Scalar, Unknown)):
        return unknown()
    uses = [v.symbol.uses for v in both]
    result = _tensors(it, op, left, right, node, inplace)
    for value, before in zip(both, uses, strict=True):
        value.symbol.uses = before
    return result


def _put_together(op: str, left: Value) -> Scalar:
    """``"layer" + name``, ``"layer%s" % name``: of the string its beginning is known."""
    if op not in ("add", "remainder"):
        return Scalar(None, "str")
    return begun(left, "%" if op == "remainder" else "")


def numbers(op: str, left: Value, right: Value) -> Value:
    """Arithmetic of Python numbers, folded where both are known."""
    a: Any = left
    b: Any = right
    assumptions = a.assumptions | b.assumptions
    if a.value is not None and b.value is not None:
        function = FOLD.get(op)
        if function is not None and _folds(op, a.value, b.value):
            try:
                value = function(a.value, b.value)
            except (ArithmeticError, TypeError, ValueError):
                return Scalar(None, "number", assumptions=assumptions)
            kind = {int: "int", float: "float", bool: "bool", str: "str"}.get(value.__class__)
            if kind is not None:
                return Scalar(value, kind, -INF, INF, assumptions, a.node, a.home)
    if a.kind == "str" or b.kind == "str":
        return _put_together(op, left)
    if "complex" in (a.kind, b.kind):
        return Scalar(None, "complex", assumptions=assumptions)
    lo, hi = _bounds(op, a, b)
    kind = "int" if a.kind == b.kind == "int" and op not in ("div", "pow") else "number"
    if "float" in (a.kind, b.kind) or op == "div":
        kind = "float"
    return Scalar(None, kind, lo, hi, assumptions, a.node or b.node, a.home or b.home, op, (a, b))


def absolute(value: Scalar) -> Scalar:
    """``abs(number)``"""
    if isinstance(value.value, (int, float)):
        return Scalar(abs(value.value), value.kind, assumptions=value.assumptions)
    lo, hi = value.lo, value.hi
    ends = (lo, hi) if lo >= 0 else (max(-hi, 0.0), max(-lo, hi))
    return Scalar(None, value.kind, *ends, value.assumptions)


def rounded_number(value: Scalar, digits: Value | None) -> Scalar:
    """``round(number)`` and ``round(number, digits)``"""
    kind, places = "int" if digits is None else value.kind, number(digits)
    known = value.value if isinstance(value.value, (int, float)) else None
    if digits is not None and places is None:
        return Scalar(None, kind, assumptions=value.assumptions)
    if known is not None and math.isfinite(known):
        return Scalar(_rounded(known, places), kind, assumptions=value.assumptions)
    return Scalar(
        None, kind, _rounded(value.lo, places), _rounded(value.hi, places), value.assumptions
    )


def _rounded(value: float, places: float | None) -> float:
    if not math.isfinite(value):
        return value
    return round(value) if places is None else round(value, int(places))


def _folds(op: str, a: Any, b: Any) -> bool:
    if not all(isinstance(x, (int, float)) for x in (a, b)):
        return op in ("add", "eq", "ne") and isinstance(a, str) and isinstance(b, str)
    if op == "pow":
        return bool(abs(a) < 1e6 and abs(b) < 64)
    if op in ("bitwise_left_shift",):
        return bool(0 <= b < 64)
    return bool(abs(a) < LARGEST and abs(b) < LARGEST)


def _bounds(op: str, a: Scalar, b: Scalar) -> tuple[float, float]:
    first, second = (a.lo, a.hi), (b.lo, b.hi)
    if op == "add":
        return _finite(a.lo + b.lo, -INF), _finite(a.hi + b.hi, INF)
    if op == "sub":
        return _finite(a.lo - b.hi, -INF), _finite(a.hi - b.lo, INF)
    if op == "mul":
        return multiply(first, second)
    if op in ("div", "floor_divide"):
        return divide(first, second)
    if op == "pow" and b.value is not None:
        return power(first, b.value)
    if op == "remainder" and b.lo > 0:
        return 0.0, b.hi
    return -INF, INF


def _finite(value: float, otherwise: float) -> float:
    return value if value == value else otherwise


def _arrays(it: Interpreter, op: str, left: Value, right: Value, node: ast.AST) -> Value:
    """NumPy's arithmetic: Python numbers are weak, integers with ``/`` become float64."""
    vectors = [v.dtypes for v in (left, right) if isinstance(v, Array)]
    vector = vectors[0] if len(vectors) == 1 else dtypes.promote(*vectors)
    if any(isinstance(v, Unknown) for v in (left, right)):
        vector = dtypes.V_ANY
    elif any(isinstance(v, Scalar) and v.kind == "complex" for v in (left, right)):
        vector = dtypes.V_COMPLEX
    if op == "div" or any(isinstance(v, Scalar) and v.kind == "float" for v in (left, right)):
        vector = tuple(
            [dtypes.FLOAT64 if x in (dtypes.INTEGER, dtypes.BOOLEAN) else x for x in vector]
        )
    return Array(vector, op, (left, right), node, it.module)


def _sequences(op: str, left: Value, right: Value) -> Value:
    if isinstance(left, Sequence) and isinstance(right, Sequence) and op == "add":
        if left.items is not None and right.items is not None:
            return Sequence(left.items + right.items, None, left.kind)
        a, b = any_of(left), any_of(right)
        if a is None or b is None:
            return Sequence(None, a or b, left.kind)
        return Sequence(None, join(a, b), left.kind)
    if op == "mul":
        value = left if isinstance(left, Sequence) else right
        assert isinstance(value, Sequence)
        return Sequence(None, any_of(value), value.kind)
    return unknown()


def negate(it: Interpreter, value: Value, node: ast.AST, op: str = "neg") -> Value:
    """``-value`` or ``~value``"""
    if isinstance(value, Scalar) and value.is_number and op == "neg":
        known = -value.value if value.value is not None else None
        return Scalar(
            known, value.kind, -value.hi, -value.lo, value.assumptions, value.node, value.home,
            f"-{value.op}", value.operands,
        )  # fmt: skip
    if isinstance(value, (Tensor, Unknown)):
        known_op = operation(op)
        made = _operand(it, value)
        if known_op is not None and isinstance(made, Tensor):
            return operate(it, known_op, [made], {}, node)
    if isinstance(value, Array):
        return Array(value.dtypes, op, (value,), node, it.module, -value.hi, -value.lo)
    return unknown()


def compare(it: Interpreter, op: ast.cmpop, left: Value, right: Value, node: ast.AST) -> Value:
    """``left op right`` for a comparison."""
    name = COMPARISONS.get(op.__class__)
    if name is not None and Tensor in (left.__class__, right.__class__):
        known = operation(name)
        if known is not None and not isinstance(right, (DtypeValue, Instance)):
            operands = [_operand(it, value) for value in (left, right)]
            return operate(it, known, operands, {}, node)
    if isinstance(left, Scalar) and isinstance(right, Scalar):
        return _compared(op, left, right)
    if isinstance(left, DtypeValue) or isinstance(right, DtypeValue):
        return _same_dtype(op, left, right, dtype_of(it, left), dtype_of(it, right))
    if isinstance(op, (ast.Is, ast.IsNot)):
        return _identity(op, left, right)
    if isinstance(op, (ast.In, ast.NotIn)):
        return _membership(op, left, right)
    others = (Unknown, Scalar)
    if name is not None and isinstance(left, others) and isinstance(right, others):
        mask = it.unknown("comparison", dtypes.V_BOOLEAN)  # a mask, if they are tensors
        mask.symbol.compared = name, left, right
        return mask
    return Scalar(None, "bool")


def _same_dtype(
    op: ast.cmpop, left: Value, right: Value, a: dtypes.Dtypes | None, b: dtypes.Dtypes | None
) -> Value:
    """Whether two dtypes are the same, where that is known in every mode."""
    assumptions = getattr(left, "assumptions", 0) | getattr(right, "assumptions", 0)
    equal: bool | None = None
    if (
        a is not None
        and b is not None
        and not any((x | y) & dtypes.OTHER for x, y in zip(a, b, strict=True))
    ):
        if a == b and all(bin(one).count("1") == 1 for one in a):
            equal = True
        elif not any(x & y for x, y in zip(a, b, strict=True)):
            equal = False
    if equal is not None and isinstance(op, (ast.NotEq, ast.IsNot)):
        equal = not equal
    return Scalar(equal, "bool", assumptions=assumptions)


def _compared(op: ast.cmpop, left: Scalar, right: Scalar) -> Value:
    if isinstance(op, (ast.Is, ast.IsNot)):
        return _identity(op, left, right)
    name = COMPARISONS.get(op.__class__)
    if name is not None and left.value is not None and right.value is not None:
        found = numbers(name, left, right)
        if isinstance(found, Scalar):
            return found
    if "device" in (left.op, right.op) and isinstance(op, (ast.Eq, ast.NotEq)):
        here, there = devices.type_of(left), devices.type_of(right)
        known = {ON_CPU, ON_OTHER}  # which other one is open
        if ON_CPU in (here, there) and {here, there} <= known:
            return Scalar((here == there) is isinstance(op, ast.Eq), "bool")
    return Scalar(None, "bool", assumptions=left.assumptions | right.assumptions)


def _identity(op: ast.cmpop, left: Value, right: Value) -> Value:
    """``is None`` and ``is True``, and their contraries."""
    if isinstance(left, Scalar) and isinstance(right, Scalar) and left.kind == right.kind == "bool":
        assumptions = left.assumptions | right.assumptions
        if None in (left.value, right.value):
            return Scalar(None, "bool", assumptions=assumptions)
        same = left.value is right.value
        return Scalar(same is isinstance(op, ast.Is), "bool", assumptions=assumptions)
    nothing = [isinstance(v, Scalar) and v.kind == "none" for v in (left, right)]
    if all(nothing):
        return Scalar(isinstance(op, ast.Is), "bool")
    if any(nothing) and any(_is_something(one) for one in (left, right)):
        return Scalar(isinstance(op, ast.IsNot), "bool")
    return Scalar(None, "bool")


def _membership(op: ast.cmpop, left: Value, right: Value) -> Value:
    """``name in ("fp16", "half")``, where all are known."""
    items = right.items if isinstance(right, Sequence) else None
    found = [is_equal(left, one) for one in items or ()]
    if items is None or None in found:
        return Scalar(None, "bool")
    assumptions = getattr(left, "assumptions", 0)
    return Scalar((True in found) is isinstance(op, ast.In), "bool", assumptions=assumptions)


def is_equal(left: Value, right: Value) -> bool | None:
    """Whether two strings or numbers are the same; None: one of them is not known."""
    if isinstance(left, Scalar) and isinstance(right, Scalar):
        if left.value is not None and right.value is not None:
            return bool(left.value == right.value)
    return None


TENSORS: Final = Symbol.TENSOR | Symbol.FLOAT
MADE: Final = frozenset({"cast", "view", "index", "clone"})


def _is_something(value: Value) -> bool:
    """Whether a value was seen to be made on every way (a constant, a result, a scaler): it is not None."""
    if isinstance(value, Tensor):
        if value.op == "argument" and value.operands:
            return _is_something(value.operands[0])
        made = bool(operation(value.op) or creation(value.op) or value.op in MADE)
        return made and value.symbol is None and not value.flags & OPTIONAL
    if isinstance(value, Scalar):
        return value.value is not None and not value.assumptions
    if isinstance(value, Closure):
        return not value.optional
    if isinstance(value, Reference):
        return "." not in value.name  # a module, without which nothing of this runs
    if not isinstance(value, Special):
        return False
    if value.kind == "device":
        of = value.fields.get("of")
        return isinstance(of, Tensor) or (
            isinstance(of, Unknown) and bool(of.symbol.uses & TENSORS)
        )
    known = value.kind == "scaler" and not value.assumptions
    return known and not value.fields.get("optional")
