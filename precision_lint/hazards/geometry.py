"""Products of geometry in half: cameras, poses, rotations, and matrices that were computed once.

What is geometry shows in what is done: a quotient by the last coordinate, a coordinate of ones, the
inverse of a matrix, the corner of a 4 x 4 matrix, frames that are chained.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from precision_lint.dataflow.graph import alternatives, behind, is_op, peel, same
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.regions import opens
from precision_lint.dataflow.tensors import Applied, hazard
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import FLOAT64, INTEGER, LOW, WIDE
from precision_lint.domains.values import (
    BUFFER,
    INF,
    LEARNED,
    PARAMETER,
    Array,
    Sequence,
    Tensor,
    Unknown,
    number,
)
from precision_lint.hazards.contractions import FEATURES, PRODUCTS, kind_of
from precision_lint.hazards.contractions import factors as summed_over
from precision_lint.hazards.places import anchor, names_in, operand_node, roots

RESHAPED: Final = frozenset({
    "cast", "view", "reshape", "unsqueeze", "squeeze", "transpose", "t", "permute", "flatten",
    "expand", "index", "clone", "detach", "swapaxes", "select", "repeat", "element", "output",
    "unbind", "unflatten", "rearrange",
})  # fmt: skip
FEATURE_MAPS: Final = frozenset({"relu", "elu", "exp", "softplus", "softmax", "sigmoid", "gelu"})
"""What kernels and attention are made of."""
INVERSES: Final = frozenset({"linalg.inv", "inverse", "linalg.pinv", "pinverse", "linalg.inv_ex"})
STARTS: Final = {"einsum": 1, "baddbmm": 1, "addmm": 1}
"""Where the factors of products begin, if not with the first operand."""
SUMS: Final = frozenset({"add", "sub", "sum", "mean", "cov", "corrcoef", "addmm", "baddbmm"})
EXACT: Final = frozenset({"numpy.eye", "numpy.identity", "numpy.ones", "numpy.zeros"})
"""Arrays of ones and zeros, of which half loses nothing."""
BOUNDED: Final = frozenset({"clamp", "clamp_min", "maximum", "abs", "cast", "add", "where"})
SPOKEN: Final = re.compile(
    r"(?i:intrins|extrins|camera)|(^|_)K(_|$)|"
    r"(^|_)(poses?|rots?|rotations?|homograph\w*|c2w|w2c|cam2\w+|\w+2cam)(_|$)"
)
"""Names of geometry, which say so without proof."""
SAID, CONSTANT = "names of geometry", "constant matrix"


def core(value: Any) -> Any:
    """An operand before it was reshaped."""
    value = peel(value)
    while isinstance(value, Tensor) and value.op in RESHAPED and value.operands:
        value = peel(value.operands[0])
    return value


def pair(product: Tensor) -> tuple[Tensor, Tensor] | None:
    """The two factors of a product; of a grid of an affine map, which torch multiplies, the map."""
    theta = peel(product.operands[0]) if product.op in UNARY else None
    if isinstance(theta, Tensor):
        return theta, theta
    start = STARTS.get(product.op, 0)
    parts = [peel(one) for one in product.operands[start : start + 2]]
    if len(parts) < 2 or not all(isinstance(one, Tensor) for one in parts):
        return None
    return parts[0], parts[1]


@hazard(*PRODUCTS)
def geometry_product(it: Interpreter, applied: Applied) -> None:
    """A product whose operands show that it is geometry."""
    factors = pair(applied.result)
    if factors is None:
        return
    reason = next(
        (r for one, other in (factors, factors[::-1]) if (r := _reason(one, other))), None
    )
    if reason == CONSTANT and any(
        kind_of(f.value, f.dims[0]) == FEATURES for f in summed_over(applied) if f.dims
    ):
        return  # a projection of features, which need no more than three digits
    for one, other in (factors, factors[::-1]):
        inner = core(one)
        if isinstance(inner, Tensor) and inner.op in PRODUCTS and _is_form(inner, core(other)):
            it.retract("geometry-product", inner)
            return
    if reason is not None:
        _report(it, applied.result, reason)
    elif _chained(it, applied.result, factors):
        _report(it, applied.result, "frames that are chained")
    elif names := [name for one in factors if (name := _spoken(one))]:
        weak = 0 if any(len(name) > 1 for name in names) else assume.MAGNITUDE
        _report(it, applied.result, SAID, assume.NAME | weak)


PIXELS: Final = 256.0
"""From here on a quarter of a unit is lost in float16, a whole one in bfloat16."""
UNARY: Final = {
    "affine_grid": "positions to sample at",
    "cov": "a covariance",
    "corrcoef": "a correlation",
    "linalg.matrix_power": "a power of a matrix",
}
"""Operations that torch makes of products of what they are given."""


@hazard(*UNARY)
def multiplied_inside(it: Interpreter, applied: Applied) -> None:
    """The positions of pixels under an affine map, and what else is made by products."""
    if applied.name == "affine_grid" or dtypes.regions_on(it.region.dtypes) >> dtypes.CODE & 1:
        _report(it, applied.result, UNARY[applied.name])


COMPOSED: Final = ("an inverse", "the rotation of a pose", "a matrix that was composed")


def _reason(one: Tensor, other: Tensor, depth: int = 3) -> str | None:
    """Why a factor is geometry."""
    inner = core(one)
    if not isinstance(inner, Tensor):
        return None
    if _is_homogeneous(inner) and not _is_trained(core(other)):
        return "homogeneous coordinates"
    if inner.op in INVERSES and not _is_statistic(core(inner.operands[0])):
        if not any(part.flags & (LEARNED | PARAMETER) for part in behind(inner, 16)):
            return "an inverse"
    if _is_corner(one):
        return "the rotation of a pose"
    if _is_precomputed(inner):
        return CONSTANT
    if _is_large(inner):
        return "a matrix of large numbers"
    if inner.op in PRODUCTS and depth:
        factors = pair(inner)
        if factors is not None and any(_reason(f, f, depth - 1) in COMPOSED for f in factors):
            return "a matrix that was composed"
    if inner.op == "sub" and _is_offset(inner):
        return "points relative to an origin"
    if _is_column(one) and _is_data(core(other)) and not same(inner, core(other)):
        return "a matrix times one vector"
    return None


def _is_statistic(value: Any) -> bool:
    """Whether a matrix that is inverted is a sum, as a covariance and its ridge, or a matrix of products.

    Cameras and poses are chained, and never added.
    """
    if not isinstance(value, Tensor) or value.op in SUMS:
        return isinstance(value, Tensor)
    factors = pair(value) if value.op in PRODUCTS else None
    return factors is not None and same(core(factors[0]), core(factors[1]))


def _is_trained(value: Any) -> bool:
    """Whether a factor is made of trained weights: a column of ones beside it stands for a bias."""
    return any(
        part.flags & LEARNED or (part.flags & (PARAMETER | BUFFER) == PARAMETER)
        for part in behind(value, 16)
    )


def _is_homogeneous(value: Tensor) -> bool:
    """Whether a coordinate of ones was added."""
    if value.op == "pad" and len(value.operands) > 3:
        return number(value.operands[3]) == 1
    if (
        value.op not in ("cat", "concat", "stack", "hstack")
        or not value.operands
        or not isinstance(value.operands[0], Sequence)
    ):
        return False
    items = [peel(one) for one in value.operands[0].items or ()]
    return len(items) > 1 and any(
        isinstance(one, Tensor) and one.lo == one.hi == 1 for one in items
    )


def _is_corner(value: Tensor) -> bool:
    """Whether a factor is the upper left corner of a larger matrix (``pose[:, :3, :3]``)."""
    for _ in range(6):
        if value.op == "index" and isinstance(value.data, tuple) and len(value.data) >= 2:
            last = value.data[-2:]
            if (
                last[0] == last[1]
                and isinstance(last[0], tuple)
                and last[0][1] in (None, 0)
                and last[0][2] in (2, 3)
            ):
                return True
        if (
            value.op not in RESHAPED
            or not value.operands
            or not isinstance(peel(value.operands[0]), Tensor)
        ):
            return False
        value = peel(value.operands[0])
    return False


def _is_precomputed(value: Tensor) -> bool:
    """Whether a matrix was computed with NumPy."""
    if value.flags & PARAMETER and not value.flags & BUFFER:
        return False
    if value.op not in ("from_numpy", "tensor", "as_tensor"):
        return False
    if value.flags & BUFFER:
        return value.op == "from_numpy" or any(isinstance(part, Array) for part in value.operands)
    return any(
        isinstance(part, Array)
        and part.op not in EXACT
        and not _holds_data(part)
        and not _is_grid(part)
        for part in value.operands
    )


GRIDS: Final = frozenset({"numpy.meshgrid", "numpy.mgrid", "numpy.ogrid", "numpy.indices"})


def _is_grid(value: Any, depth: int = 6) -> bool:
    """Whether an array holds positions of a grid, in whatever unit, not the numbers of a transform."""
    if isinstance(value, Sequence):
        return any(_is_grid(one, depth - 1) for one in (*(value.items or ()), value.element))
    if not isinstance(value, Array) or not depth:
        return False
    return value.op in GRIDS or any(_is_grid(one, depth - 1) for one in value.operands)


def _is_large(value: Tensor) -> bool:
    """Whether a matrix is written with numbers as large as pixels: focal lengths, centers of images."""
    size = max(abs(value.lo), abs(value.hi))
    if not PIXELS <= size < INF:
        return False
    while value.op == "index_put" and isinstance(peel(value.operands[0]), Tensor):
        value = peel(value.operands[0])
    return value.rank == 2 and value.op in ("tensor", "as_tensor", "eye", "zeros")


def _holds_data(value: Any, depth: int = 6) -> bool:
    """Whether an array is made of what a function is given, not of numbers and sizes alone."""
    if isinstance(value, Array):
        return value.op == "input" or (
            depth > 0 and any(_holds_data(one, depth - 1) for one in value.operands)
        )
    if isinstance(value, Sequence):
        return any(_holds_data(one, depth - 1) for one in (*(value.items or ()), value.element))
    return isinstance(value, (Tensor, Unknown))


def _is_offset(value: Tensor) -> bool:
    """Whether each of some points is taken relative to each of some others."""
    dims = [_new_dimension(peel(one)) for one in value.operands[:2]]
    return None not in dims and dims[0] != dims[1]


def _new_dimension(value: Any) -> float | None:
    """Where a dimension of size 1 was put in: by ``unsqueeze``, or by ``None`` in an index."""
    if not isinstance(value, Tensor) or len(value.operands) < 2:
        return None
    if value.op == "unsqueeze":
        return number(value.operands[1])
    if value.op == "index" and isinstance(value.data, tuple) and "new" in value.data:
        return value.data.index("new")
    return None


def _is_column(value: Tensor) -> bool:
    """Whether a factor is one vector, written as a column."""
    if value.op == "unsqueeze" and len(value.operands) > 1 and number(value.operands[1]) == -1:
        inner = core(value)
        return isinstance(inner, Tensor) and _is_data(inner)
    return False


def _is_data(value: Any) -> bool:
    """Whether a tensor is neither a weight nor what a layer gives."""
    return (
        isinstance(value, Tensor)
        and not value.flags & (PARAMETER | LEARNED)
        and value.op in ("input", "join", "sub", "index")
    )


def _is_form(product: Tensor, vector: Any) -> bool:
    """Whether a product with a vector is multiplied by it again: a quadratic form, which is no place."""
    factors = [core(one) for one in pair(product) or ()]
    return isinstance(vector, Tensor) and any(one is vector for one in factors)


def _chained(it: Interpreter, product: Tensor, factors: tuple[Tensor, Tensor]) -> bool:
    """Whether a factor is the product of the round before (``frame = frame @ step``)."""
    for one in factors:
        inner = core(one)
        if isinstance(inner, Tensor) and inner.op == "join":
            if any(
                isinstance(part, Tensor) and peel(part).node is product.node
                for part in inner.operands
            ):
                other = factors[1] if one is factors[0] else factors[0]
                return (
                    _composes(factors)
                    and not any(is_op(part, *OF_NETWORKS) for part in alternatives(inner))
                    and not _made_of(other, product)
                    and not any(_is_gram(part) for part in behind(other, 24))
                    and not _is_constant(it, product, 1 if one is factors[0] else 0)
                )
    return False


OF_NETWORKS: Final = (
    "linear", "relu", "gelu", "silu", "elu", "leaky_relu", "tanh", "dropout", "layer_norm", "batch_norm",
)  # fmt: skip
"""What is done between the products of a network, and never between frames that are chained."""


def _is_constant(it: Interpreter, product: Tensor, index: int) -> bool:
    """Whether each round of the loop multiplies by the same matrix: a power of it, no chain of frames."""
    written = operand_node(product.node, it.module, STARTS.get(product.op, 0) + index)
    loop = it.nest[-1].node if it.nest and it.nest[-1].home is it.module else None
    return (
        written is not None
        and loop is not None
        and not names_in(written, ast.Load) & names_in(loop, ast.Store)
    )


def _composes(factors: tuple[Tensor, Tensor]) -> bool:
    """Whether neither factor is a weight, or of a dtype that the code names."""
    return not any(
        (peel(f).op == "cast" and peel(f).data == "explicit")
        or core(f).flags & (PARAMETER | LEARNED)
        for f in factors
    )


def _is_gram(value: Any) -> bool:
    """Whether it is ``x @ x.T``: polynomials of it make a matrix orthogonal, and chain no frames."""
    factors = pair(value) if isinstance(value, Tensor) and value.op in PRODUCTS else None
    return factors is not None and same(core(factors[0]), core(factors[1]))


def _made_of(value: Tensor, product: Tensor) -> bool:
    """Whether a step is itself made of what it is multiplied by: an iteration, which corrects itself."""
    return any(peel(one).node is product.node for one in behind(value, 24))


def _spoken(value: Tensor) -> str:
    """The word of geometry in the name of a factor; empty: there is none."""
    inner = core(value)
    if not isinstance(inner, Tensor) or inner.symbol is None or not _is_data(inner):
        return ""
    found = SPOKEN.search(inner.symbol.label)
    return found[0].strip("_") if found is not None else ""


# perspective


@hazard("div")
def perspective(it: Interpreter, applied: Applied) -> None:
    """``uvw[..., :2] / uvw[..., 2:]``: the products behind are projections."""
    above, below = peel(applied.tensor(0)), peel(applied.tensor(1))
    point, depth = _columns(above), _columns(below)
    if point is None or depth is None or not same(point[0], depth[0]):
        return
    if not _first_columns(point[1]) or not _last_column(depth[1]):
        return
    for product in _products(point[0]):
        _report(it, product, "a perspective divide")


def _columns(value: Any) -> tuple[Any, Any] | None:
    """A tensor and which of its last columns are taken."""
    value = peel(value)
    while isinstance(value, Tensor) and value.op in BOUNDED and value.operands:
        value = peel(value.operands[0])
    while isinstance(value, Tensor) and value.op in ("unsqueeze", "expand", "cast"):
        value = peel(value.operands[0])
    if (
        not isinstance(value, Tensor)
        or value.op != "index"
        or not isinstance(value.data, tuple)
        or not value.data
    ):
        return None
    kept = [one for one in value.data if one != "new"]
    return (peel(value.operands[0]), kept[-1]) if kept else None


def _first_columns(part: Any) -> bool:
    return (isinstance(part, tuple) and part[1] in (None, 0) and part[2] in (2, -1)) or part in (
        0,
        1,
    )


def _last_column(part: Any) -> bool:
    if isinstance(part, tuple):
        return part[1] in (2, -1) and part[2] in (None, 3)
    return part in (2, -1)


def _products(value: Any) -> Iterator[Tensor]:
    """The products that a value is made of, across sums, reshapes and further products."""
    pending, seen = [peel(value)], set[int]()
    while pending and len(seen) < 24:
        one = pending.pop()
        if not isinstance(one, Tensor) or id(one) in seen:
            continue
        seen.add(id(one))
        if one.op in PRODUCTS:
            yield one
            factors = pair(one)
            pending += list(factors or ())
        elif one.op in RESHAPED or one.op in ("add", "sub", "join"):
            pending += [
                peel(part) for part in (one.operands if one.op == "join" else one.operands[:2])
            ]


# reports


def _report(it: Interpreter, product: Tensor, reason: str, assumptions: int = 0) -> None:
    factors = pair(product)
    if factors is None or product.node is None or product.home is not it.module:
        return
    if any(_is_exempt(one) for one in factors):
        return
    raises = 0
    for one, other in (factors, factors[::-1]):
        raises |= dtypes.modes_of(one.dtypes, LOW) & dtypes.surely(other.dtypes, WIDE)
    raises &= ~dtypes.regions_on(it.region.dtypes)
    modes = dtypes.modes_of(product.dtypes, LOW) | raises
    if not _lowered_here(it, product):
        if any(_follows(one, other) for one, other in (factors, factors[::-1])):
            assumptions |= assume.MAGNITUDE
    region = any(dtypes.modes_of(one.dtypes, WIDE) & modes for one in factors) or bool(
        dtypes.regions_on(it.region.dtypes)
    )
    if not modes:
        return
    start = STARTS.get(product.op, 0)
    first = start if product.op == "einsum" else 0  # what the product is added to as well
    it.emit(
        "geometry-product",
        product.node,
        modes,
        factors[0].assumptions | factors[1].assumptions | product.assumptions | assumptions,
        operation=product.op,
        reason=reason,
        region=region,
        raises=bool(raises & modes),
        operands=roots(it, product, range(first, start + (1 if factors[0] is factors[1] else 2))),
        anchor=anchor(it, product, start),
    )
    event = it.events.get(("geometry-product", it.place(product.node), None))
    if event is not None and event.facts["reason"] == SAID != reason:
        event.facts["reason"] = reason


def _lowered_here(it: Interpreter, product: Tensor) -> bool:
    """Whether a region that the function itself opens casts the factors, whatever they were cast to before."""
    known = product.dtypes[dtypes.CODE] in (dtypes.FLOAT16, dtypes.BFLOAT16)
    return known and it.function is not None and opens(it.function)


def _follows(one: Tensor, other: Tensor) -> bool:
    """Whether a factor is cast to the dtype of the other one, on purpose."""
    for _ in range(6):
        if one.op == "cast" and len(one.operands) > 1:
            source = getattr(one.operands[1], "source", None)
            return source is not None and core(source) is core(other)
        if (
            one.op not in RESHAPED
            or not one.operands
            or not isinstance(peel(one.operands[0]), Tensor)
        ):
            return False
        one = peel(one.operands[0])
    return False


def _is_exempt(value: Tensor) -> bool:
    """Factors that are no coordinates: weights, shares, directions, what stays wide."""
    if all(one & (FLOAT64 | INTEGER) and not one & ~(FLOAT64 | INTEGER) for one in value.dtypes):
        return True
    inner = core(value)
    if isinstance(inner, Tensor):
        if inner.op in ("softmax", "normalize", "weight", "one_hot"):
            return True
        if any(part.op in FEATURE_MAPS for part in behind(inner, 3)):
            return True
        return bool(inner.flags & PARAMETER and not inner.flags & BUFFER)
    return False
