"""Products of matrices that leave the range of float16, or lose what they are asked to keep.

Which dimension a product sums over is read off the shapes' history: what a layer gives last are its
features, what was flattened or comes second to last are positions, of which there are many.
"""

from __future__ import annotations

import ast
from typing import Any, Final, NamedTuple

from precision_lint.dataflow.graph import (
    alternatives,
    behind,
    is_square,
    may_be_number,
    peel,
    same,
    through,
)
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.objects import is_a
from precision_lint.dataflow.tensors import Applied, hazard
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import FLOAT32
from precision_lint.domains.values import (
    BUFFER,
    INF,
    PARAMETER,
    Scalar,
    Sequence,
    Special,
    Tensor,
    number,
    text,
)
from precision_lint.hazards.magnitudes import half_modes, magnitude
from precision_lint.hazards.places import made_at, operand_node
from precision_lint.hazards.rounding import FLOAT16_MAX
from precision_lint.hazards.zeros import NORMS, transparent
from precision_lint.torchmodel.operations import operation

FUNCTION: Final = ("torch.autograd.Function", "torch.autograd.function.Function")
PRODUCTS: Final = ("matmul", "bmm", "mm", "baddbmm", "addmm", "einsum", "mv", "addbmm")
FEATURES, POSITIONS, UNKNOWN = "features", "positions", "unknown"
LAYERS: Final = frozenset({"linear", "layer_norm", "rms_norm", "recurrent"})
MAPS: Final = frozenset({
    "conv1d", "conv2d", "conv3d", "conv_transpose2d", "conv_transpose1d", "interpolate", "max_pool2d",
    "avg_pool2d", "batch_norm", "group_norm", "adaptive_avg_pool2d",
})  # fmt: skip


class Factor(NamedTuple):
    """One operand of a product: its place among the operands, and the dimensions that are summed over.

    dims: counted from the end.
    """

    place: int
    value: Tensor
    dims: tuple[int, ...]


def factors(applied: Applied) -> list[Factor]:
    """The operands of a product with the dimensions that it sums over."""
    if applied.name == "einsum":
        return _of_equation(applied)
    start = {"baddbmm": 1, "addmm": 1, "addbmm": 1}.get(applied.name, 0)
    first, second = applied.tensor(start), applied.tensor(start + 1)
    if first is None or second is None:
        return []
    last = -1 if applied.name == "mv" or second.rank == 1 else -2
    return [Factor(start, first, (-1,)), Factor(start + 1, second, (last,))]


def _of_equation(applied: Applied) -> list[Factor]:
    equation = text(applied.values[0]) if applied.values else None
    if equation is None or "->" not in equation:
        return []
    inputs, _, output = equation.replace(" ", "").partition("->")
    terms = [_letters(term) for term in inputs.split(",")]
    kept = set(_letters(output))
    found = []
    for index, letters in enumerate(terms, 1):
        value = applied.tensor(index)
        if value is None:
            return []
        summed = [i - len(letters) for i, one in enumerate(letters) if one not in kept]
        found.append(Factor(index, value, tuple(summed)))
    return found if len(found) == 2 else []


def _letters(term: str) -> list[str]:
    return list(term.replace("...", "."))


def kind_of(value: Any, dim: int, depth: int = 12) -> str:
    """What a dimension (from the end) of a tensor stands for."""
    value = peel(value)
    if not isinstance(value, Tensor) or not depth:
        return UNKNOWN
    if value.op in LAYERS:
        return FEATURES if dim == -1 else POSITIONS
    if value.op in MAPS:
        return POSITIONS if dim >= (-1 if value.op == "conv1d" else -2) else FEATURES
    if value.op == "join":
        kinds = {kind_of(one, dim, depth - 1) for one in value.operands}
        return POSITIONS if POSITIONS in kinds else FEATURES if FEATURES in kinds else UNKNOWN
    moved = _before(value, dim)
    if moved is None:
        return POSITIONS if _flattens(value, dim) else UNKNOWN
    return kind_of(value.operands[0], moved, depth - 1)


def _before(value: Tensor, dim: int) -> int | None:
    """The dimension of the first operand that becomes a dimension of the result; None: unknown."""
    if not value.operands or not isinstance(peel(value.operands[0]), Tensor):
        return None
    if value.op == "t":
        return {-1: -2, -2: -1}.get(dim)
    if value.op in ("transpose", "swapaxes"):
        return _transposed(value, dim)
    if value.op == "permute":
        order = _numbers(value.operands[1:])
        if order is None or -dim > len(order):
            return None
        moved = order[dim]
        return moved - len(order) if moved >= 0 else moved
    if value.op in ("flatten", "view", "reshape", "unflatten", "rearrange", "unfold"):
        return None
    if value.op in ("unsqueeze", "squeeze", "index", "expand", "select"):
        return dim if value.op in ("expand", "index") else None
    if value.op in ("element", "unbind"):  # iterating takes the first dimension; a piece keeps all
        return dim if len(value.operands) == 1 else None
    known = operation(value.op)
    plain = known is not None and known.elementwise
    return dim if plain or value.op in SHAPE_KEPT else None


SHAPE_KEPT: Final = frozenset({
    "cast", "dropout", "softmax", "masked_fill", "where", "clone", "contiguous", "split", "chunk",
    "detach", "normalize", "pad",
})  # fmt: skip
"""Besides arithmetic: operations whose results have the dimensions of their first operand."""


def _transposed(value: Tensor, dim: int) -> int | None:
    if len(value.operands) < 3:
        return {-1: -2, -2: -1}.get(dim)  # an attribute (``x.mT``)
    ends = [number(one) for one in value.operands[1:3]]
    if None in ends:
        return None
    a, b = (int(one) for one in ends if one is not None)
    if a >= 0 or b >= 0:
        pairs = {(1, 2): (-2, -1), (2, 3): (-2, -1), (0, 1): (-2, -1)}
        found = pairs.get((min(a, b), max(a, b)))
        if found is None:
            return None
        a, b = found
    return b if dim == a else a if dim == b else dim


def _numbers(values: tuple[Any, ...]) -> list[int] | None:
    if len(values) == 1 and isinstance(values[0], Sequence) and values[0].items is not None:
        values = values[0].items
    found = [number(one) for one in values]
    return [int(one) for one in found if one is not None] if None not in found else None


def _flattens(value: Tensor, dim: int) -> bool:
    """Whether a dimension was made of several."""
    if value.op == "flatten":
        start = number(value.operands[1]) if len(value.operands) > 1 else 0
        return (dim == -1 and start is not None and start >= 1) or (
            dim == -2 and len(value.operands) > 2
        )
    if value.op in ("view", "reshape"):
        sizes = _sizes(value)
        if -dim > len(sizes):
            return False
        size = sizes[dim]
        if number(size) == -1 and dim == -2 and len(sizes) == 2:
            return _has_positions(value.operands[0])
        if number(size) == -1:
            return dim == -1 and len(sizes) >= 3 and not _splits(sizes)
        return isinstance(size, Scalar) and size.op == "mul"
    return False


def _has_positions(value: Any) -> bool:
    """Whether a tensor has dimensions of positions, besides that of the batch and of features."""
    value = peel(value)
    mapped = isinstance(value, Tensor) and value.rank >= 4
    return mapped or any(kind_of(value, dim) == POSITIONS for dim in (-2, -3, -4))


def _splits(sizes: tuple[Any, ...]) -> bool:
    """Whether the last dimension is parted: ``view(*x.shape[:2], heads, -1)`` keeps the first two."""
    kept = [
        number(one.operands[-1]) if isinstance(one, Scalar) and one.op == "size" else None
        for one in sizes[:2]
    ]
    return kept == [0, 1] and len(sizes) > 3


# large contractions


def _in_function(it: Interpreter) -> bool:
    """Whether this is the backward of an ``autograd.Function``: gradients of weights sum over all rows."""
    cls = it.function.cls if it.function is not None else None
    return cls is not None and is_a(it, cls, *FUNCTION)


@hazard(*PRODUCTS)
def large_contraction(it: Interpreter, applied: Applied) -> None:
    """A sum over many positions in float16, of terms that do not add up to 1."""
    parts = factors(applied)
    if len(parts) != 2 or it.backward is not None or _in_function(it):
        return
    modes = half_modes(applied.result.dtypes)
    if not modes or any(_any_wide64(part.value) for part in parts):
        return
    reason = _why_large(parts)
    if reason is None:
        reason = _lowered_operand(it, applied, parts)
    if reason is None:
        return
    size = magnitude(parts[0].value) * magnitude(parts[1].value)
    if size < 1e-2:
        return
    needed = assume.SIZE | (assume.MAGNITUDE if size == INF else 0)
    needed |= 0 if _add_up(parts) else assume.SIGN
    needed |= assume.MANY if size <= 1 else 0
    it.emit(
        "large-contraction",
        applied.node,
        modes,
        parts[0].value.assumptions | parts[1].value.assumptions | needed
        if reason != "operand"
        else parts[1].value.assumptions | assume.MAGNITUDE,
        about=parts[0].value,
        operation=applied.name,
        reason=reason,
        operands=operand_places(it, applied),
        device=it.region.device if it.region.explicit else "",
        region=bool(dtypes.regions_on(it.region.dtypes)),
    )


def _add_up(parts: list[Factor]) -> bool:
    """Whether a sum grows with the number of its terms: they have one sign, or are squares over positions.

    Masks and features share several dimensions in one place, features and weights do not.
    """
    spatial = len(parts[0].dims) > 1 and parts[0].dims == parts[1].dims
    if spatial or any(part.value.lo >= 0 for part in parts):
        return True
    first, second = (through(part.value, TURNED) for part in parts)
    kinds = [kind_of(part.value, part.dims[0]) for part in parts if len(part.dims) == 1]
    return same(first, second) and (POSITIONS in kinds or not kinds)


TURNED: Final = frozenset(
    {"transpose", "t", "permute", "view", "reshape", "flatten", "conj", "contiguous"}
)


def _any_wide64(value: Tensor) -> bool:
    return all(one == dtypes.FLOAT64 for one in value.dtypes)


def operand_places(it: Interpreter, applied: Applied) -> tuple[Any, ...]:
    found = []
    for index, value in enumerate(applied.values):
        node = operand_node(applied.node, it.module, index) if isinstance(value, Tensor) else None
        if node is not None:
            found.append(it.place(node))
    return tuple(found)


def _why_large(parts: list[Factor]) -> str | None:
    """Why the sum has many terms that add up: over positions, or over several dimensions."""
    a, b = parts
    if any(_normalised(part) or _is_weight(part.value) or _is_short(part) for part in parts):
        return None
    if min(len(a.dims), len(b.dims)) >= 2:
        return "dimensions"
    if len(a.dims) != 1 or len(b.dims) != 1:
        return None
    kinds = {kind_of(a.value, a.dims[0]), kind_of(b.value, b.dims[0])}
    both_last = a.dims[0] == b.dims[0] == -1
    if POSITIONS in kinds and FEATURES not in kinds and not _are_scores(parts):
        return "positions"
    if both_last:
        return None
    tokens = _second_to_last(a) and _second_to_last(b)
    if tokens and FEATURES not in kinds:
        return "positions"
    if (_are_weights(a.value) or _are_weights(b.value)) and FEATURES not in kinds:
        return "weights"
    return None


SHORT: Final = 64
"""Terms of a sum that are few, whatever they are."""


def _is_short(part: Factor) -> bool:
    """Whether the dimension that is summed over has a few entries, as written: ``view(-1, 3, 3)``."""
    value = peel(part.value)
    if len(part.dims) != 1 or not isinstance(value, Tensor) or value.op not in ("view", "reshape"):
        return False
    sizes = _sizes(value)
    size = number(sizes[part.dims[0]]) if -part.dims[0] <= len(sizes) else None
    return size is not None and 0 < size <= SHORT


def _sizes(value: Tensor) -> tuple[Any, ...]:
    """The sizes that a view is given."""
    sizes: Any = value.operands[1:]
    if len(sizes) == 1 and isinstance(sizes[0], Sequence) and sizes[0].items is not None:
        sizes = sizes[0].items
    return tuple(sizes)


def _is_weight(value: Any, depth: int = 8) -> bool:
    """Whether a tensor is a layer's own weight: what is summed over are features."""
    value = peel(value)
    if not isinstance(value, Tensor) or not depth:
        return False
    if (value.flags & PARAMETER and not value.flags & BUFFER) or value.op == "weight":
        return True
    if (
        value.op in ("mul", "div") and len(value.operands) > 1
    ):  # what a number scales stays a weight
        scaled, by = value.operands[:2]
        plain = not isinstance(by, Tensor) or by.rank == 0 or may_be_number(by)
        return plain and _is_weight(scaled, depth - 1)
    moved = value.op in (
        "transpose",
        "t",
        "permute",
        "view",
        "reshape",
        "cast",
        "index",
        "mm",
        "matmul",
    )
    return moved and bool(value.operands) and _is_weight(value.operands[0], depth - 1)


def _second_to_last(part: Factor) -> bool:
    """Whether a tensor's own second to last dimension is summed over (``k.mT @ v``)."""
    value, dim = peel(part.value), part.dims[0]
    for _ in range(8):
        if not isinstance(value, Tensor):
            return False
        if value.op in ("transpose", "t", "permute"):
            moved = _before(value, dim)
            if moved is None:
                return False
            value, dim = peel(value.operands[0]), moved
            return dim != -1 if dim != part.dims[0] else False
        if value.op in ("input", "linear", "split", "unbind", "output", "index"):
            return dim != -1
        if not value.operands or not isinstance(peel(value.operands[0]), Tensor):
            return dim != -1
        value = peel(value.operands[0])
    return dim != -1


def _are_scores(parts: list[Factor]) -> bool:
    """Whether two tensors of positions are compared (``q.flatten(2) @ k.flatten(2).mT``)."""
    return all(part.value.op == "input" for part in parts)


def _are_weights(value: Any) -> bool:
    """Whether a tensor holds positive weights that nothing normalised."""
    value = peel(value)
    if not isinstance(value, Tensor) or value.lo < 0 or _is_share(value):
        return False
    base = value
    while isinstance(base, Tensor) and transparent(base) and base.op not in ("sum", "mean"):
        base = peel(base.operands[0])
    return isinstance(base, Tensor) and base.op in (
        "exp",
        "relu",
        "sigmoid",
        "softplus",
        "join",
        "add",
        "mul",
    )


def _is_share(value: Any) -> bool:
    """Whether a value is a softmax, one-hot, or divided by its own sum."""
    for one in behind(value, 10):
        if one.op in ("softmax", "gumbel_softmax", "one_hot"):
            return True
        if one.op == "div" and len(one.operands) > 1:
            below = peel(one.operands[1])
            if isinstance(below, Tensor) and any(
                (b.op in ("sum", "max", "amax") or b.op in NORMS) for b in behind(below, 6)
            ):
                return True
        if one.op not in ("cast", "index", "view", "masked_fill", "mul", "transpose", "flatten",
                          "unsqueeze", "reshape",
                          "permute", "clone", "expand", "join", "squeeze", "element",
                          "contiguous"):  # fmt: skip
            return False
    return False


def _normalised(part: Factor) -> bool:
    """Whether a tensor's entries along the dimension that is summed over add up to about 1."""
    value = peel(part.value)
    dims = part.dims
    for _ in range(12):
        if not isinstance(value, Tensor):
            return False
        if value.op in ("softmax", "gumbel_softmax", "softmin"):
            return _softmax_over(value, dims)
        if value.op == "one_hot":
            return True
        if value.op == "div" and len(value.operands) > 1:
            below = value.operands[1]
            if isinstance(below, (Scalar, Special)) and _counts(below):
                return True
            if isinstance(peel(below), Tensor) and any(
                b.op in ("sum", "cumsum") for b in behind(below, 8)
            ):
                return True
        if value.op == "mul" and len(value.operands) > 1 and _is_reciprocal(value.operands[1]):
            return True
        if value.op in ("normalize",):
            return dims == (-1,)
        moved: int | None = dims[0] if len(dims) == 1 else None
        if moved is not None and value.op in ("transpose", "t", "permute"):
            moved = _before(value, moved)
            dims = (moved,) if moved is not None else ()
        if not value.operands or value.op in (
            "matmul",
            "linear",
            "exp",
            "relu",
            "sigmoid",
            "input",
            "sum",
            "einsum",
            "join",
        ):
            return _join_normalised(value, part) if value.op == "join" else False
        value = peel(value.operands[0])
    return False


def _join_normalised(value: Tensor, part: Factor) -> bool:
    return bool(value.operands) and all(
        isinstance(one, Tensor) and _normalised(Factor(part.place, one, part.dims))
        for one in value.operands
    )


def _is_reciprocal(value: Any) -> bool:
    """Whether a number is one over a size."""
    return isinstance(value, Scalar) and value.op == "div" and _counts(value.operands[1])


def _counts(value: Any) -> bool:
    """Whether a number is a size, or made of sizes."""
    if not isinstance(value, Scalar):
        return False
    if value.op in ("size", "numel", "nelement"):
        return True
    return any(_counts(one) for one in value.operands)


def _softmax_over(value: Tensor, dims: tuple[int, ...]) -> bool:
    """Whether a softmax runs over (one of) the dimensions that are summed over."""
    given = number(value.operands[1]) if len(value.operands) > 1 else None
    if given is None or not dims:
        return True
    if given < 0:
        return int(given) in dims or len(dims) > 1
    return True


def _lowered_operand(it: Interpreter, applied: Applied, parts: list[Factor]) -> str | None:
    """A float32 operand of squares or sums, which autocast casts to float16 first."""
    if applied.policy != "lower":
        return None
    for part in parts:
        value = peel(part.value)
        while (
            isinstance(value, Tensor) and transparent(value) and value.op not in ("sum", "square")
        ):
            value = peel(value.operands[0])
        wide = dtypes.modes_of(part.value.dtypes, FLOAT32)
        if not isinstance(value, Tensor) or not wide or value.flags & PARAMETER:
            continue
        if value.op == "add" and all(is_square(one) is not None for one in value.operands[:2]):
            return "operand"
        base = peel(is_square(value))
        if base is not None and magnitude(base) > FLOAT16_MAX**0.5:
            return "operand"
    return None


# attention


@hazard("softmax")
def scaled_too_late(it: Interpreter, applied: Applied) -> None:
    """``softmax((q @ k.mT) * scale)``: the product overflows before it is scaled down."""
    _late(it, applied.tensor(0), False)


def _late(it: Interpreter, value: Any, scaled: bool, depth: int = 4) -> None:
    value = peel(value)
    around: tuple[Tensor, int] | None = None
    for _ in range(12):
        if not isinstance(value, Tensor):
            return
        if value.op in PRODUCTS:
            break
        if value.op in ("join", "add") and depth:
            parts = alternatives(value) if value.op == "join" else value.operands[:2]
            for one in parts:
                _late(it, one, scaled, depth - 1)
            return
        if value.op in ("mul", "div") and len(value.operands) > 1:
            index = _scale_of(value)
            if index is None:
                return
            scaled = scaled or _shrinks(value, index)
            around = (value, index)
            value = peel(value.operands[1 - index])
        elif value.op in (
            "masked_fill",
            "where",
            "add",
            "sub",
            "index",
            "view",
            "cast",
            "clamp",
            "reshape",
            "flatten",
        ):
            value = peel(value.operands[:2][-1] if value.op == "where" else value.operands[0])
        else:
            return
    if not scaled or not isinstance(value, Tensor) or value.node is None:
        return
    _report_late(it, value, around)


def _scale_of(value: Tensor) -> int | None:
    """Which operand of a product is a number."""
    for index in (1, 0):
        one = peel(value.operands[index])
        if isinstance(one, Scalar) or (isinstance(one, Tensor) and may_be_number(one)):
            return index
        if (
            isinstance(one, Tensor)
            and (one.rank == 0 or one.flags & PARAMETER)
            and value.op == "mul"
        ):
            return index
    return None


def _shrinks(value: Tensor, index: int) -> bool:
    constant = number(value.operands[index])
    if constant is None:
        return True
    return abs(constant) < 1 if value.op == "mul" else abs(constant) > 1


HEAD: Final = 256
"""How many products a score is the sum of: heads are hardly ever wider."""


def _report_late(it: Interpreter, product: Tensor, around: tuple[Tensor, int] | None) -> None:
    """A product whose operands are neither scaled nor normalised."""
    modes = half_modes(product.dtypes)
    start = 1 if product.op in ("baddbmm", "einsum") else 0
    operands = [peel(one) for one in product.operands[start : start + 2]]
    if not modes or len(operands) < 2:
        return
    if any(not isinstance(one, Tensor) or _is_prepared(one) for one in operands):
        return
    first, second = operands
    if product.home is not it.module or magnitude(first) * magnitude(second) * HEAD <= FLOAT16_MAX:
        return
    applied_places = [operand_node(product.node, it.module, i) for i in range(start, start + 2)]
    it.retract("large-contraction", product)
    assert product.node is not None
    it.emit(
        "late-scale",
        product.node,
        modes,
        first.assumptions | second.assumptions | assume.MAGNITUDE,
        about=first,
        operation=product.op,
        factor=it.place(applied_places[0]) if applied_places[0] is not None else None,
        product=it.place(product.node),
        **_written(it, product, around),
        second=made_at(it, second),
    )


def _written(it: Interpreter, product: Tensor, around: tuple[Tensor, int] | None) -> dict[str, Any]:
    """How a product is scaled, where that is one expression: ``(q @ k) / s``, ``s * (q @ k)``."""
    found: dict[str, Any] = {"whole": None, "scale": None, "sign": "*"}
    if around is None:
        return found
    whole, index = around
    found["sign"] = "/" if whole.op == "div" else "*"
    scaled, scale = (operand_node(whole.node, it.module, i) for i in (1 - index, index))
    if isinstance(whole.node, ast.BinOp) and scaled is product.node and scale is not None:
        found |= {"whole": it.place(whole.node), "scale": it.place(scale)}
    return found


def _is_prepared(value: Tensor) -> bool:
    """Whether a query or key was scaled or normalised before."""
    for one in behind(value, 8):
        if one.op in ("normalize", "layer_norm", "rms_norm", "softmax"):
            return True
        if (
            one.op in ("mul", "div")
            and len(one.operands) > 1
            and isinstance(one.operands[1], Scalar)
        ):
            return True
        if one.op in ("linear", "matmul", "input", "conv1d", "conv2d"):
            return False
    return False
