"""Walks through the value graph: what a value was made of, across assignments, joins and calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from precision_lint.domains import dtypes
from precision_lint.domains.values import (
    INF,
    Scalar,
    Sequence,
    Symbol,
    Tensor,
    Unknown,
    Value,
    number,
)
from precision_lint.torchmodel.operations import operation

PASSED: Final = frozenset({"argument", "call"})
"""Values that are another one, seen from the other side of a call."""
COUNTING: Final = frozenset({"add", "sub", "mul", "div", "floor_divide", "remainder", "pow", "neg"})
"""Arithmetic that numbers of Python's have as well."""
DEEP: Final = 6
"""Levels of the graph that two values are compared on."""


def peel(value: Value | None) -> Any:
    """The value itself, wherever it was passed through calls."""
    while value.__class__ is Tensor and value.op in PASSED and value.operands:
        value = value.operands[0]
    return value


def may_be_number(value: Value | None) -> bool:
    """Whether a value may be a number of Python's: only arithmetic of numbers with what nothing shows to
    be a tensor."""
    one = peel(value)
    if isinstance(one, (Tensor, Unknown)) and one.symbol is not None:
        return not one.symbol.uses & (Symbol.TENSOR | Symbol.ARRAY)
    if isinstance(one, Tensor):
        return one.op in COUNTING and all(map(may_be_number, one.operands))
    return isinstance(one, Scalar) and one.is_number


def is_op(value: Value | None, *names: str) -> bool:
    """Whether a value was made by one of these operations."""
    value = peel(value)
    return isinstance(value, Tensor) and value.op in names


def operand(value: Value | None, index: int = 0) -> Any:
    """An operand of the operation that made a value; None: there is none."""
    value = peel(value)
    if isinstance(value, Tensor) and len(value.operands) > index:
        return peel(value.operands[index])
    return None


def alternatives(value: Value | None) -> Iterator[Any]:
    """The values that a value may be, where branches join."""
    value = peel(value)
    if isinstance(value, Tensor) and value.op == "join" and value.operands:
        for one in value.operands:
            yield from alternatives(one)
    else:
        yield value


def same(a: Any, b: Any, depth: int = DEEP) -> bool:
    """Whether two values are surely equal: the same object, or made by the same pure operations."""
    if a is not b and _sites(a) != _sites(b):
        return False
    a, b = peel(a), peel(b)
    if a is b:
        return True
    if a.__class__ is not b.__class__ or depth == 0:
        return False
    if isinstance(a, Scalar):
        if a.value is not None:
            return bool(a.kind == b.kind and a.value == b.value)
        pure = a.op and a.op == b.op and len(a.operands) == len(b.operands)
        return bool(pure and a.operands) and _all_same(a.operands, b.operands, depth)
    if isinstance(a, Sequence):
        return (
            a.items is not None
            and b.items is not None
            and len(a.items) == len(b.items)
            and _all_same(a.items, b.items, depth)
        )
    if not isinstance(a, Tensor):
        return False
    return (
        a.op == b.op
        and a.op not in IMPURE
        and bool(a.operands)
        and len(a.operands) == len(b.operands)
        and a.data == b.data
        and _all_same(a.operands, b.operands, depth)
    )


def _sites(value: Any) -> list[int]:
    """Calls that a value came through of which the arguments are not seen in it."""
    found = []
    while value.__class__ is Tensor and value.op in PASSED and value.operands:
        if len(value.operands) > 1:
            found.append(id(value.operands[1]))
        value = value.operands[0]
    return found


IMPURE: Final = frozenset({
    "join", "dropout", "random", "unknown", "input", "element", "multinomial", "parameter",
    "rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "randperm", "normal", "uniform",
    "bernoulli", "empty", "empty_like", "new_empty", "gumbel_softmax", "poisson", "exponential",
})  # fmt: skip
"""What two values may share and yet differ."""


def _all_same(a: tuple[Any, ...], b: tuple[Any, ...], depth: int) -> bool:
    return all(same(x, y, depth - 1) for x, y in zip(a, b, strict=True))


def through(value: Value | None, names: frozenset[str]) -> Any:
    """What a value was before operations of these names were applied to it."""
    value = peel(value)
    while isinstance(value, Tensor) and value.op in names and value.operands:
        value = peel(value.operands[0])
    return value


def behind(value: Value | None, limit: int = 200) -> Iterator[Tensor]:
    """A tensor and all tensors that it was made of, nearest first."""
    pending = [peel(value)]
    seen: set[int] = set()
    while pending and len(seen) < limit:
        one = pending.pop(0)
        if not isinstance(one, Tensor) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        for part in one.operands:
            if isinstance(part, Sequence):
                pending.extend(map(peel, part.items if part.items is not None else (part.element,)))
            else:
                pending.append(peel(part))


FIRST: Final = frozenset({
    "index", "gather", "index_select", "take_along_dim", "take", "cast", "sum", "mean", "view", "masked_select",
    "element", "output", "softmax", "clamp", "scatter", "masked_fill",
})  # fmt: skip
"""Operations of which only the first operand is a tensor of floats."""


KNOWN: Final = frozenset({
    "mean", "std", "var", "softmax", "log_softmax", "norm", "normalize", "layer_norm", "linear", "conv1d",
    "conv2d", "conv3d", "relu", "gelu", "silu", "sigmoid", "tanh", "dropout", "weight", "exp",
    "log", "sqrt", "rsqrt", "cosine_similarity", "interpolate", "batch_norm", "group_norm",
    "matmul", "bmm", "mm", "mv", "baddbmm", "addmm", "einsum", "scaled_dot_product_attention", "cdist",
    "cross_entropy", "nll_loss", "kl_div", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "mse_loss", "smooth_l1_loss", "huber_loss",
})  # fmt: skip
"""Operations whose operand is a tensor of floats, or whose result is one whatever goes in."""


def typed(value: Tensor) -> tuple[Any, ...]:
    """The operands that have a say in the dtype of a result: no sizes, no indices, no masks."""
    known = operation(value.op)
    if known is None or known.listed or value.op == "einsum":
        return value.operands
    return tuple([value.operands[i] for i in known.operands if i < len(value.operands)])


def floats_behind(value: Value | None, limit: int = 40) -> Iterator[Tensor]:
    """A tensor and the tensors of floats that it was made of."""
    pending = [peel(value)]
    seen: set[int] = set()
    while pending and len(seen) < limit:
        one = pending.pop(0)
        if not isinstance(one, Tensor) or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if (
            one.op in KNOWN
            or one.op == "input"
            or _is_share(one)
            or (one.op == "cast" and _settles(one))
        ):
            continue
        parts = one.operands[:1] if one.op in FIRST else typed(one)
        if one.op == "cast" and len(one.operands) > 1:  # it takes the dtype of another tensor
            parts = (one.operands[1].source,)
        if one.op in ARITHMETIC:  # one tensor of floats makes the result one
            parts = tuple(part for part in parts if is_certain(part)) or parts
        pending.extend(peel(part) for part in parts)


ARITHMETIC: Final = frozenset({"add", "sub", "mul", "div", "pow"})


def is_certain(value: Value | None, depth: int = 16) -> bool:
    """Whether a value is a tensor of floats whatever its operands are."""
    one = peel(value)
    if not isinstance(one, Tensor) or not depth:
        return False
    if one.op in KNOWN or _is_share(one) or (one.op == "cast" and _settles(one)):
        return True
    if all(dtype and not dtype & ~dtypes.FLOATS for dtype in one.dtypes):
        return True
    if one.op == "join":
        return bool(one.operands) and all(is_certain(part, depth - 1) for part in one.operands)
    if one.op in ARITHMETIC:
        return any(is_certain(part, depth - 1) for part in one.operands)
    known = operation(one.op)
    if one.op == "cast" and len(one.operands) > 1:
        return is_certain(one.operands[1].source, depth - 1)
    views = one.op in FIRST or (known is not None and known.view)
    return views and bool(one.operands) and is_certain(one.operands[0], depth - 1)


def _is_share(value: Tensor) -> bool:
    """Whether a tensor was clamped to a finite range: integers have no reason to be."""
    return value.op == "clamp" and abs(value.lo) < INF and abs(value.hi) < INF


def _settles(cast: Tensor) -> bool:
    """Whether a cast makes floats whatever it is given, or is of what holds none."""
    inner = peel(cast.operands[0]) if cast.operands else None
    whole = dtypes.INTEGER | dtypes.BOOLEAN
    return cast.data == "explicit" or (
        isinstance(inner, Tensor) and all(one and not one & ~whole for one in inner.dtypes)
    )


def factor(value: Tensor) -> tuple[Any, float] | None:
    """A tensor and the constant it is multiplied by."""
    value = peel(value)
    if value.op not in ("mul", "div") or len(value.operands) < 2:
        return None
    left, right = value.operands[:2]
    constant = number(right)
    if constant is not None:
        if value.op == "div":
            return (peel(left), 1 / constant) if constant else None
        return peel(left), constant
    constant = number(left)
    if constant is not None and value.op == "mul":
        return peel(right), constant
    return None


def is_square(value: Any) -> Any:
    """What a value is the square of, as it was passed, or None."""
    value = peel(value)
    if not isinstance(value, Tensor):
        return None
    if value.op == "square":
        return value.operands[0]
    if value.op == "pow" and len(value.operands) > 1 and number(value.operands[1]) == 2:
        return value.operands[0]
    if value.op == "mul" and len(value.operands) == 2 and same(*value.operands):
        return value.operands[0]
    return None
