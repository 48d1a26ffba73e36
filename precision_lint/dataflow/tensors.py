"""Transfer function of torch's operations: dtype by mode, range, and the hazards at each."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any, Final

from precision_lint.dataflow.graph import floats_behind
from precision_lint.dataflow.interpreter import Interpreter, Region, tensor_of
from precision_lint.dataflow.ranges import reach_of, result_bounds
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import Dtypes
from precision_lint.domains.joining import any_of
from precision_lint.domains.values import (
    BROUGHT,
    BUFFER,
    DETACHED,
    GRADIENT,
    IN_BFLOAT16,
    IN_FLOAT16,
    LEARNED,
    ON_DEVICE,
    REGIONAL,
    SOME_RANK,
    UNKNOWN_RANK,
    Array,
    DtypeValue,
    Reference,
    Scalar,
    Sequence,
    Symbol,
    Tensor,
    Unknown,
    Value,
    text,
    truth,
)
from precision_lint.torchmodel import creation
from precision_lint.torchmodel.operations import Operation
from precision_lint.torchmodel.operations import operation as known_operation

KEYS: Final = {
    "float": dtypes.FLOAT32, "float32": dtypes.FLOAT32, "half": dtypes.FLOAT16,
    "float16": dtypes.FLOAT16, "bfloat16": dtypes.BFLOAT16, "double": dtypes.FLOAT64,
    "float64": dtypes.FLOAT64, "bool": dtypes.BOOLEAN, "bool_": dtypes.BOOLEAN,
    **dict.fromkeys(
        ("int", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "long",
         "short", "intp"),
        dtypes.INTEGER,
    ),
    **dict.fromkeys(
        ("complex32", "complex64", "complex128", "cfloat", "cdouble", "chalf"), dtypes.COMPLEX
    ),
}  # fmt: skip
"""Names of dtypes."""


FOLLOWING: Final = assume.INPUT | assume.NETWORK | assume.BATCH | assume.CALL
"""Assumptions about the dtype of what comes in."""


SCALELESS: Final = frozenset({"sign", "sgn", "normalize", "argmax", "argmin", "argsort"})
"""Operations whose result says nothing of the size of what goes in."""


class Applied:
    """An operation at one place: what it was given, and what it gives.

    values: its operands, in the order of its parameters.  seen: the dtypes in which it computes, after
    autocast.  policy: autocast's, if it is on.  asked: the dtype of the result was asked for (``out_dtype``).
    out: the tensor that it writes to (``out=``).
    """

    __slots__ = (
        "asked", "inplace", "name", "node", "operation", "out", "policy", "result", "seen", "values",
    )  # fmt: skip

    def __init__(
        self,
        operation: Operation,
        values: list[Value | None],
        node: ast.AST,
        inplace: bool,
    ) -> None:
        self.operation = operation
        self.name = operation.name
        self.values = values
        self.node = node
        self.inplace = inplace
        self.result: Tensor
        self.seen: dict[int, Dtypes] = {}
        self.policy: str | None = None
        self.asked = False
        self.out: Tensor | None = None

    def __getitem__(self, name: str) -> Value | None:
        """The operand of a parameter, by its name."""
        parameters = self.operation.parameters
        if name in parameters:
            index = parameters.index(name)
            return self.values[index] if index < len(self.values) else None
        return None

    def parameter(self, index: int) -> str:
        """The name of an operand's parameter; none beyond the last, as of ``*tensors``."""
        parameters = self.operation.parameters
        return parameters[index] if index < len(parameters) else ""

    def tensor(self, index: int = 0) -> Tensor | None:
        value = self.values[index] if index < len(self.values) else None
        return value if isinstance(value, Tensor) else None


Hazard = Callable[[Interpreter, Applied], None]
HAZARDS: Final[dict[str, list[Hazard]]] = {}
"""What to look for at an operation, by its name; ``*``: at every operation."""


def hazard(*names: str) -> Callable[[Hazard], Hazard]:
    """Register a function that looks at these operations."""

    def register(function: Hazard) -> Hazard:
        for name in names:
            HAZARDS.setdefault(name, []).append(function)
        return function

    return register


def aligned(
    operation: Operation, arguments: list[Value], keywords: Mapping[str, Value]
) -> list[Value | None]:
    """Arguments in the order of the operation's parameters."""
    values: list[Value | None] = list(arguments)
    if keywords:
        parameters = operation.parameters
        for name, value in keywords.items():
            index = _position(parameters, name)
            if index is None:
                continue
            while len(values) <= index:
                values.append(None)
            values[index] = value
    return values


_SYNONYMS: Final = {"self": "input", "x": "input", "tensors": "input", "axis": "dim", "x1": "input"}


def _position(parameters: tuple[str, ...], name: str) -> int | None:
    if name in parameters:
        return parameters.index(name)
    other = _SYNONYMS.get(name)
    return parameters.index(other) if other in parameters else None


MARKS: Final = IN_FLOAT16 | IN_BFLOAT16
"""Of what was computed in a region: the gradients of what is detached do not pass it."""
HANDED_ON: Final = DETACHED | GRADIENT | REGIONAL | IN_FLOAT16 | IN_BFLOAT16 | ON_DEVICE
"""What a result has of its operands."""


def _product_dtype(it: Interpreter, applied: Applied, asked: Value, vector: Dtypes) -> Dtypes:
    """``out_dtype`` of a product: the matrices agree; what is added to them has its own dtype."""
    applied.asked = True
    if len(applied.operation.strict) > 2 and 1 in applied.seen:
        applied.seen[0] = applied.seen[1]
    return dtype_of(it, asked) or vector


VARIADIC: Final = frozenset({"block_diag", "cartesian_prod"})
"""Operations whose arguments are the items of what others take as one sequence."""


def _given(
    operation: Operation, arguments: list[Value], keywords: Mapping[str, Value], node: ast.AST
) -> list[Value]:
    """All positional operands, also of a sequence of unknown length: ``mul(*values)``."""
    if operation.name in VARIADIC:
        return [Sequence(tuple(arguments), None)]
    missing = max(operation.operands, default=-1) + 1 - len(arguments)
    if missing <= 0 or keywords or not isinstance(node, ast.Call):
        return arguments
    spread = any(isinstance(one, ast.Starred) for one in node.args)
    return arguments + arguments[-1:] * missing if spread else arguments


def operate(
    it: Interpreter,
    operation: Operation,
    arguments: list[Value],
    keywords: Mapping[str, Value],
    node: ast.AST,
    inplace: bool = False,
) -> Value:
    """What an operation gives, with the hazards at it reported."""
    values = aligned(operation, _given(operation, arguments, keywords, node), keywords)
    if _lacks(operation, values):
        return it.unknown(operation.name, dtypes.V_ANY)
    applied = Applied(operation, values, node, inplace)
    tensors = _operands(it, operation, values, node)
    applied.out = _written_to(it, keywords.get("out"))
    _mark_index(applied["index"])
    _mark_complex(applied)
    vector = _result_dtypes(it, applied, tensors)
    if operation.dtype_argument and "dtype" in keywords:
        asked = dtype_of(it, keywords["dtype"])
        vector = asked if asked is not None else vector
        for i in applied.seen:
            applied.seen[i] = vector
    if "out_dtype" in keywords:
        vector = _product_dtype(it, applied, keywords["out_dtype"], vector)
    if applied.out is not None:
        vector = applied.out.dtypes
    assumptions, flags = 0, _passed_on(tensors)
    for one in tensors:
        assumptions |= one.assumptions
    if applied.policy and applied.policy != "widest":
        # the region decides the dtype, whatever came in
        assumptions = assumptions & ~FOLLOWING | it.region.assumptions
    if operation.name in SCALELESS:
        flags &= ~GRADIENT
    lo, hi = result_bounds(operation.name, values, operation.view, (operation.lo, operation.hi))
    applied.result = Tensor(
        vector,
        operation.name,
        tuple(values),
        node,
        it.module,
        lo,
        hi,
        assumptions,
        it.region.mark
        | (flags & (HANDED_ON | (LEARNED | BROUGHT if operation.view else 0)))
        | (REGIONAL if applied.policy == "lower" else 0)
        | (DETACHED if it.no_grad or operation.name == "detach" else 0),
        _rank(operation, tensors, values),
        reach_of(operation.name, values, operation.view),
        data=None,
    )
    for look in HAZARDS.get(operation.name, ()):
        look(it, applied)
    for look in HAZARDS.get("*", ()):
        look(it, applied)
    return _outputs(operation, applied)


def _written_to(it: Interpreter, out: Value | None) -> Tensor | None:
    """The tensor that a result is written to, unless it may be None."""
    if isinstance(out, Unknown) and (out.symbol.tensor or out.symbol.uses & Symbol.TENSOR):
        return tensor_of(it, out)
    return out if isinstance(out, Tensor) else None


def _passed_on(tensors: list[Tensor]) -> int:
    """The flags that operands hand on; no gradient passes if none of them has one."""
    flags = 0
    for one in tensors:
        flags |= one.flags & ~MARKS if one.flags & DETACHED else one.flags
    if tensors and all(one.flags & (DETACHED | BUFFER) for one in tensors):
        return flags | DETACHED
    return flags & ~DETACHED


def _lacks(operation: Operation, values: list[Value | None]) -> bool:
    """Whether an operand is missing, as in a call that somebody still writes: it raises."""
    both = operation.operands[:2] == (0, 1) and operation.parameters[1] not in OPTIONAL
    return len(values) < (2 if both and not operation.listed else 1)


OPTIONAL: Final = frozenset({"dim", "bins", "spacing", "x"})
"""Second parameters that may be a tensor, and may be left out: ``x.max()``."""


def _operands(
    it: Interpreter, operation: Operation, values: list[Value | None], node: ast.AST
) -> list[Tensor]:
    """The tensors whose dtypes matter; unknown objects among them become tensors."""
    found: list[Tensor] = []
    if operation.name == "einsum":
        return _factors(it, values)
    if operation.listed:
        first = values[0] if values else None
        parts: list[Value] = []
        if isinstance(first, Sequence):
            joined = any_of(first) if first.items is None else None
            parts = list(first.items or ()) or ([joined] if joined is not None else [])
        tensors = [tensor_of(it, part) for part in parts]
        if isinstance(first, Sequence) and first.items is not None:
            items = [one or part for one, part in zip(tensors, parts, strict=True)]
            values[0] = Sequence(tuple(items), None, first.kind)
        return [one for one in tensors if one is not None]
    floats = operation.floats or operation.policy.get("cuda") == "lower"
    real = Symbol.REAL if _of_reals(operation) else 0
    use = Symbol.TENSOR | (Symbol.FLOAT if floats else real)
    written = operation.elementwise and isinstance(node, OPERATORS)
    for index in operation.operands:
        value = _given_as(operation, index, values)
        free = (operation.name, operation.parameters[index]) in NUMBERS
        if isinstance(value, Tensor):
            _mark(value, 0 if free or written else use)
            found.append(value)
        elif isinstance(value, Unknown):
            if not index or (operation.floats and index in operation.strict and not free):
                value.symbol.uses |= use
            made = tensor_of(it, value)
            if made is not None:
                values[index] = made
                found.append(made)
        elif isinstance(value, Array) and index and not isinstance(node, OPERATORS):
            # functions and methods take no array
            values[index] = Scalar(None, "float", value.lo, value.hi, 0, value.node, value.home)
        elif isinstance(value, Array):
            made = Tensor(value.dtypes, "from_numpy", (value,), value.node, value.home)
            values[index] = made
            found.append(made)
    return found


OPERATORS: Final = (ast.BinOp, ast.AugAssign, ast.Compare)
"""What numbers are given to as well."""
NUMBERS: Final = frozenset({("lerp", "weight")})
"""Parameters that take a tensor of the dtype of the others, or a number."""


SHARES: Final = frozenset({("quantile", "q"), ("nanquantile", "q")})
"""Parameters that are a number, or one made of numbers, unless something shows them to be a tensor."""


def _given_as(operation: Operation, index: int, values: list[Value | None]) -> Value | None:
    """An operand, which is a number where that is what an operation is given as a rule."""
    value = values[index] if index < len(values) else None
    if value is not None and (operation.name, operation.parameters[index]) in SHARES:
        value = values[index] = _as_number(value)
    return value


def _as_number(value: Value) -> Value:
    """A number, if it may be one: nothing but what it is given to shows that it is a tensor."""
    of = value if isinstance(value, Tensor) else None
    if of is not None and (of.rank == 0 or not _may_be_number(of)):
        return value  # a tensor is one without dimensions, too
    symbol = value.symbol if isinstance(value, Unknown) else None
    if symbol is not None and symbol.uses & (Symbol.TENSOR | Symbol.FLOAT):
        return value
    if symbol is not None and symbol.owner is not None and not symbol.label.isidentifier():
        return value  # an item, of a tensor as well as of a list
    return Scalar(None, "number") if of is not None or symbol is not None else value


def _of_reals(operation: Operation) -> bool:
    """Whether it is a function of one real number (``sin``, ``exp``), which integers are rarely given."""
    single = len(operation.operands) == 1 and operation.elementwise
    return single and operation.result == "floating"


def _factors(it: Interpreter, values: list[Value | None]) -> list[Tensor]:
    """The operands of ``einsum``, behind its equation."""
    given = values[1:]
    if len(given) == 1 and isinstance(given[0], Sequence) and given[0].items is not None:
        given = list(given[0].items)
        values[1:] = given
    found = []
    for index, value in enumerate(given, 1):
        made = tensor_of(it, value) if value is not None else None
        if made is not None:
            _mark(made, Symbol.TENSOR | Symbol.FLOAT)
            values[index] = made
            found.append(made)
    return found


MARKED: Final = frozenset({
    "argument", "view", "index", "neg", "sub", "add", "mul", "div", "cast", "element", "unbind", "output",
    "transpose", "reshape", "permute", "flatten", "unsqueeze", "squeeze", "chunk", "split", "pow",
    "softmax", "masked_fill", "clone", "detach", "clamp", "abs", "expand", "call",
})  # fmt: skip
"""Operations through which a use as a tensor of floats says something of the operand."""


VIEWS: Final = frozenset({
    "argument", "call", "index", "view", "reshape", "unsqueeze", "squeeze", "expand", "flatten", "repeat",
})  # fmt: skip
"""Operations that leave an index an index."""


OF_COMPLEX: Final = frozenset({"real", "imag", "angle", "view_as_real"})
"""Operations that only complex numbers are given."""


def _mark(value: Tensor, use: int) -> None:
    """Note what a tensor is used as, for the unknown object that it is or is made of.

    What tensors are exponents of is a number, as a rule: ``base ** (positions / width)``.
    """
    for _ in range(8):
        if value.symbol is not None:
            value.symbol.uses |= use
        if value.op not in MARKED:
            return
        inner = [one for one in value.operands if one.__class__ is Tensor]
        if not inner:
            return
        value = inner[-1] if value.op == "pow" else inner[0]


def _mark_complex(applied: Applied) -> None:
    """Note of what only complex numbers are given to that it, and what it is made of, is complex.

    A transform makes complex numbers of real ones, too.
    """
    parts = list(floats_behind(applied.tensor())) if applied.name in OF_COMPLEX else []
    if any(known.result == "complex" for one in parts if (known := known_operation(one.op))):
        return
    for one in parts:
        if one.symbol is not None:
            one.symbol.uses |= Symbol.COMPLEX


def _mark_index(index: Value | None) -> None:
    """What is an index holds integers."""
    while isinstance(index, Tensor) and index.symbol is None and index.op in VIEWS:
        index = index.operands[0] if index.operands else None
    symbol = index.symbol if isinstance(index, (Tensor, Unknown)) else None
    if symbol is not None:
        symbol.uses |= Symbol.INTEGER


def _result_dtypes(it: Interpreter, applied: Applied, tensors: list[Tensor]) -> Dtypes:
    region = it.region
    policy = applied.policy = _policy(region, applied)
    seen = [one.dtypes for one in tensors]
    if policy == "lower":
        seen = [dtypes.lowered(one, region.dtypes) for one in seen]
    elif policy in ("fp32", "fp32_dtype", "banned"):
        seen = [dtypes.raised(one, region.dtypes) for one in seen]
    _record(applied, seen)
    if applied.inplace and tensors:
        return tensors[0].dtypes
    vector = _of_kind(applied, tensors, seen)
    return tuple(map(_whole, vector)) if applied.name in OF_BITS else vector


def _policy(region: Region, applied: Applied) -> str | None:
    """What autocast does to an operation."""
    if region.dtypes == dtypes.V_OFF or applied.inplace or applied.out is not None:
        return None  # it leaves alone what writes to a tensor that is there
    of_number = applied.name == "div" and isinstance(applied.values[0], Scalar)
    done_by = known_operation("reciprocal") if of_number else None  # ``1 / x``
    policies = (done_by or applied.operation).policy
    found = policies.get(region.device)
    if found is None and region.device not in ("cpu", "cuda"):
        found = policies.get("cuda")
    return found


def _record(applied: Applied, seen: list[Dtypes]) -> None:
    """Keep in which dtypes each operand is computed."""
    if applied.operation.listed:
        applied.seen = dict(enumerate(seen))
        return
    indices: Any = applied.operation.operands
    if applied.name == "einsum":
        indices = range(1, len(applied.values))
    for number, index in enumerate([i for i in indices if _is_tensor(applied.values, i)]):
        if number < len(seen):
            applied.seen[index] = seen[number]


def _complex(applied: Applied, vector: Dtypes) -> Dtypes:
    if truth(applied["return_complex"]) is False:
        return vector  # of the real and the imaginary parts
    return tuple([dtypes.ANY if one & dtypes.OTHER else dtypes.COMPLEX for one in vector])


def _of_kind(applied: Applied, tensors: list[Tensor], seen: list[Dtypes]) -> Dtypes:
    """The dtype of a result by what the table says of the operation."""
    result = applied.operation.result
    if result == "bool":
        return dtypes.V_BOOLEAN
    if result == "int":
        return dtypes.V_INTEGER
    if not seen:
        return dtypes.V_FLOAT32 if _of_numbers(applied) else dtypes.V_ANY
    if result == "first" or (result == "real" and len(seen) == 1):
        vector = seen[0]
        return _real(vector, applied.name in OF_COMPLEX) if result == "real" else vector
    if result == "second":
        return seen[1] if len(seen) > 1 else seen[0]
    if result == "complex":
        return _complex(applied, seen[0])
    if result == "int_like":
        return tuple([_integral(one) for one in seen[0]])
    if applied.name == "cross_entropy" and len(seen) > 1 and seen[1][dtypes.CODE] & dtypes.OTHER:
        tensors, seen = tensors[:1], seen[:1]  # the numbers of classes, as a rule
    if applied.operation.strict and len(seen) > 1:
        seen = dtypes.agreed(seen)
    vector = promoted(tensors, seen)
    vector = _with_numbers(applied, vector)
    if result in ("unknown", "number"):
        return dtypes.V_ANY
    if result == "float32":
        return dtypes.V_FLOAT32
    rounded = text(applied["rounding_mode"]) is not None  # integers stay integers
    return dtypes.floating(vector) if result in ("floating", "real") and not rounded else vector


def _of_numbers(applied: Applied) -> bool:
    """Whether an operand is a number of Python's, which becomes a tensor of the default dtype."""
    if applied.operation.listed:
        return False
    given = [applied.values[i] for i in applied.operation.operands if i < len(applied.values)]
    return any(isinstance(one, Scalar) and one.is_number for one in given)


def _is_tensor(values: list[Value | None], index: int) -> bool:
    return index < len(values) and isinstance(values[index], Tensor)


def _real(vector: Dtypes, parts: bool) -> Dtypes:
    """The dtype of an absolute value, or of what only complex numbers have, which no mode makes half."""
    low = dtypes.LOW if parts else 0
    return tuple([
        dtypes.FLOAT32 if one == dtypes.COMPLEX else one & ~low | (one & low and dtypes.FLOAT32)
        for one in vector
    ])  # fmt: skip


OF_BITS: Final = frozenset({
    "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "bitwise_left_shift",
    "bitwise_right_shift",
})  # fmt: skip
"""Operations on bits, which floats have not: torch refuses them."""


def _whole(one: int) -> int:
    """The dtypes of integers and masks among those of what is not refused."""
    known = one & (dtypes.INTEGER | dtypes.BOOLEAN) if one <= dtypes.ANY else 0
    return known or dtypes.INTEGER | dtypes.BOOLEAN


def _integral(one: int) -> int:
    if one & dtypes.BOOLEAN and one <= dtypes.ANY and not one & dtypes.OTHER:
        return one & ~dtypes.BOOLEAN | dtypes.INTEGER
    return one


def promoted(tensors: list[Tensor], seen: list[Dtypes]) -> Dtypes:
    """Promotion: tensors without dimensions count only where their category is higher.

    Nor do objects count, beside such a tensor, that nothing shows to be tensors: they may be numbers.
    """
    strong: Dtypes | None = None
    weak: Dtypes | None = None
    scalar = any(one.rank == 0 for one in tensors)
    for one, vector in zip(tensors, seen, strict=True):
        if scalar and _may_be_number(one):
            weak = vector if weak is None else dtypes.promote(weak, vector)
        else:
            strong = vector if strong is None else dtypes.promote(strong, vector)
    if strong is None:
        return weak if weak is not None else dtypes.V_ANY
    return strong if weak is None else _above(strong, weak)


ARITHMETIC: Final = frozenset({"join", "add", "sub", "mul", "div", "floor_divide", "remainder"})


def _may_be_number(value: Value | None, depth: int = 4) -> bool:
    """Whether something is a number, or arithmetic of objects that nothing shows to be tensors."""
    if not isinstance(value, Tensor) or value.rank == 0:
        return isinstance(value, (Scalar, Tensor))
    if value.op in ARITHMETIC:
        return depth > 0 and all(_may_be_number(one, depth - 1) for one in value.operands)
    symbol = value.symbol if value.op == "input" else None
    return symbol is not None and not symbol.proven(Symbol.TENSOR | Symbol.FLOAT)


_CATEGORY: Final = {
    dtypes.BOOLEAN: 0,
    dtypes.INTEGER: 1,
    dtypes.BFLOAT16: 2,
    dtypes.FLOAT16: 2,
    dtypes.FLOAT32: 2,
    dtypes.FLOAT64: 2,
    dtypes.COMPLEX: 3,
}
_above_known: dict[tuple[Dtypes, Dtypes], Dtypes] = {}


def _above(strong: Dtypes, weak: Dtypes) -> Dtypes:
    """The dtype of a tensor with dimensions, raised to the category of one without."""
    key = (strong, weak)
    found = _above_known.get(key)
    if found is None:
        if len(_above_known) >= dtypes.REMEMBERED:
            _above_known.clear()
        found = _above_known[key] = tuple(
            [
                y if _CATEGORY.get(y, 0) > _CATEGORY.get(x, 9) else x
                for x, y in zip(strong, weak, strict=True)
            ]
        )
    return found


_COMPLEX: Final = dict.fromkeys(
    (dtypes.BOOLEAN, dtypes.INTEGER, dtypes.BFLOAT16, dtypes.FLOAT32, dtypes.COMPLEX),
    dtypes.COMPLEX,
)
"""What a complex number makes of a dtype: complex64, whose real part is float32."""


def _with_numbers(applied: Applied, vector: Dtypes) -> Dtypes:
    """Python numbers among the operands: a float makes floats of integers, ``1j`` complex numbers."""
    for index in applied.operation.operands:
        value = applied.values[index] if index < len(applied.values) else None
        if isinstance(value, Scalar):
            if value.kind == "float":
                return dtypes.floating(vector)
            if value.kind == "complex":
                return tuple([_COMPLEX.get(one, dtypes.ANY) for one in vector])
    return vector


def _rank(operation: Operation, tensors: list[Tensor], values: list[Value | None]) -> int:
    """Number of dimensions of a result, as far as it is easy to say."""
    if operation.name in KEEP_RANK:
        return tensors[0].rank if tensors else UNKNOWN_RANK
    if operation.reduction:
        others = [
            v for v in values[1:] if v is not None and not isinstance(v, (DtypeValue, Tensor))
        ]
        dims = [v for v in others if not (isinstance(v, Scalar) and v.kind in ("none", "bool"))]
        if text(values[-1] if values else None) == "none":
            return UNKNOWN_RANK
        return UNKNOWN_RANK if dims else 0
    if operation.elementwise or operation.view:
        ranks = [one.rank for one in tensors]
        if 0 in ranks:
            ranks = [0 if _may_be_number(one) else one.rank for one in tensors]
        if operation.view and operation.name in RESHAPES:
            return SOME_RANK
        if not ranks:
            return UNKNOWN_RANK
        if all(rank == 0 for rank in ranks):
            return 0
        known = max(ranks)
        if known > 0:
            return known if min(ranks) >= 0 else SOME_RANK
        return SOME_RANK if SOME_RANK in ranks else UNKNOWN_RANK
    return SOME_RANK if operation.listed else UNKNOWN_RANK


KEEP_RANK: Final = frozenset(
    {"cumsum", "cumprod", "softmax", "log_softmax", "logcumsumexp", "softmin"}
)
RESHAPES: Final = frozenset({
    "view", "reshape", "flatten", "unsqueeze", "squeeze", "expand", "select", "unbind", "permute",
    "chunk", "split", "diag", "diagonal", "unflatten", "tile", "repeat", "take", "masked_select",
})  # fmt: skip
"""Views whose result may have another rank."""


def _outputs(operation: Operation, applied: Applied) -> Value:
    """The result, or the tuple of several."""
    result = applied.result
    if operation.pieces:
        made = applied.name, applied.values[1] if len(applied.values) > 1 else None
        return Sequence(None, result.but(op="view", operands=(result,), data=made), "tuple")
    if operation.result == "number":
        return Scalar(None, "bool")
    if not operation.outputs or not _gives_several(applied):
        return result
    items: list[Value] = []
    for number, rule in enumerate(operation.outputs):
        vector = result.dtypes
        if rule == "int":
            vector = dtypes.V_INTEGER
        elif rule == "complex":
            vector = dtypes.V_COMPLEX
        part = result.but(dtypes=vector, op="output", operands=(result,), data=number)
        items.append(part if number or rule == "int" else result)
    return Sequence(tuple(items), None, "tuple")


SINGLE: Final = frozenset({"max", "min", "median", "nanmedian", "unique"})
"""Operations that give one tensor unless they are told a dimension."""


def _gives_several(applied: Applied) -> bool:
    if applied.name not in SINGLE:
        return True
    second = applied.values[1] if len(applied.values) > 1 else None
    return second is not None and not isinstance(second, Tensor)


# dtypes


def dtype_of(it: Interpreter, value: Value | None) -> Dtypes | None:
    """The dtype that an argument ``dtype=`` asks for; None: it asks for none."""
    if isinstance(value, DtypeValue):
        return value.dtypes
    if isinstance(value, Reference):
        if value.name == "builtins.float":
            return dtypes.V_FLOAT64
        return _named(value.name)
    if isinstance(value, Scalar):
        return None if value.kind == "none" else _named(text(value) or "")
    if isinstance(value, Unknown):
        return followed(value.symbol)
    if isinstance(value, Tensor):
        return value.dtypes
    return dtypes.V_ANY


def _named(qualified: str) -> Dtypes:
    """The dtype of a dotted name, also of the class of tensors that is named after it."""
    name = qualified.rpartition(".")[2]
    found = KEYS.get(name)
    if found is None:
        made = creation.of_function(qualified)
        found = made.dtype if made is not None and made.kind == "legacy" else None
    return dtypes.everywhere(found) if found else dtypes.V_ANY


def followed(symbol: Symbol) -> Dtypes:
    """The dtype that an unknown object stands for: the same in every mode, and equal to itself."""
    if ("stated of", "") in symbol.attributes:
        return symbol.vector
    return dtypes.everywhere(dtypes.symbol(symbol.number))


def cast(
    it: Interpreter,
    value: Tensor,
    vector: Dtypes,
    node: ast.AST,
    explicit: bool = True,
    source: Tensor | None = None,
    chosen: int = 0,
) -> Tensor:
    """A tensor in another dtype; ``explicit``: the code names it (``.half()``, ``.to(torch.float16)``).

    source: the tensor whose dtype it takes.  chosen: what that this is the dtype rests on.
    """
    followed = (DtypeValue(vector, source=source),) if source is not None else ()
    if source is not None:
        chosen |= source.assumptions
    made = Tensor(
        vector,
        "cast",
        (value, *followed),
        node,
        it.module,
        value.lo,
        value.hi,
        chosen | (value.assumptions if vector == value.dtypes else _needed(value, vector)),
        (value.flags if vector == value.dtypes else value.flags & ~REGIONAL) & ~BROUGHT,
        value.rank,
        value.reach,
        data="explicit" if explicit else "follows",
    )
    for look in HAZARDS.get("cast", ()):
        applied = Applied(CAST, [value], node, False)
        applied.result = made
        applied.seen = {0: value.dtypes}
        look(it, applied)
    return made


def looked_at(it: Interpreter, how: str, value: Tensor, node: ast.AST) -> None:
    """A tensor that leaves torch: it is printed, read, or kept without its gradient."""
    applied = Applied(CAST, [value], node, False)
    applied.result = value
    applied.seen = {0: value.dtypes}
    for look in HAZARDS.get(how, ()):
        look(it, applied)


def _needed(value: Tensor, vector: Dtypes) -> int:
    """Assumptions that are left once the dtype is stated."""
    settled = FOLLOWING | assume.WEIGHTS | assume.KIND
    return value.assumptions & ~settled


CAST: Final = Operation(
    "cast", ("input", "dtype"), result="first", policy={}, missing={}, view=True, elementwise=True
)
