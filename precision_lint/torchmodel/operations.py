"""Operations of torch: parameters, dtype of the result, autocast policy, kernels, range."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from precision_lint.torchmodel.names import canonical

INF = float("inf")
VIEWS = frozenset({
    "view", "reshape", "permute", "transpose", "flatten", "unflatten", "squeeze", "unsqueeze", "expand",
    "expand_as", "view_as", "reshape_as", "contiguous", "clone", "detach", "t", "movedim", "chunk", "split",
    "tensor_split", "unbind", "narrow", "ravel", "flipud", "fliplr", "as_strided", "select",
    "index_select", "gather", "take", "take_along_dim", "masked_select", "repeat", "repeat_interleave",
    "tile", "roll", "flip", "rot90", "broadcast_to", "diagonal", "diag", "diag_embed", "diagflat",
    "unfold", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "adjoint", "hsplit", "vsplit",
    "dsplit", "split_with_sizes", "atleast_1d", "atleast_2d", "atleast_3d", "conj", "resolve_conj",
    "unsafe_chunk", "unsafe_split", "msort", "real", "unique", "unique_consecutive", "squeeze_copy",
    "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "adaptive_max_pool3d", "identity", "positive", "pin_memory", "view_as_real", "alias", "slice",
    "cuda", "cpu", "mT", "T", "requires_grad",
})  # fmt: skip
"""Operations whose elements are elements of the first operand."""
PIECES = frozenset({
    "chunk", "split", "tensor_split", "unbind", "hsplit", "vsplit", "dsplit", "split_with_sizes",
    "unsafe_chunk", "unsafe_split",
})  # fmt: skip
"""Operations that give a sequence of parts."""
REDUCTIONS = frozenset({
    "sum", "mean", "prod", "nansum", "nanmean", "amax", "amin", "max", "min", "norm", "std", "var",
    "logsumexp", "median", "nanmedian", "linalg.norm", "linalg.vector_norm", "linalg.matrix_norm", "any",
    "all", "argmax", "argmin", "cumsum", "cumprod", "logcumsumexp", "trace", "count_nonzero", "aminmax",
    "std_mean", "var_mean", "mode", "quantile", "nanquantile", "dist",
})  # fmt: skip
RANGES: dict[str, tuple[float, float]] = {
    "sigmoid": (0, 1), "hardsigmoid": (0, 1), "softmax": (0, 1), "softmin": (0, 1), "tanh": (-1, 1),
    "gumbel_softmax": (0, 1), "sin": (-1, 1), "cos": (-1, 1), "erf": (-1, 1), "erfc": (0, 2), "sinc": (-0.22, 1),
    "exp": (0, INF), "exp2": (0, INF), "square": (0, INF), "abs": (0, INF), "norm": (0, INF),
    "linalg.norm": (0, INF), "linalg.vector_norm": (0, INF), "linalg.matrix_norm": (0, INF),
    "softplus": (0, INF), "sqrt": (0, INF), "rsqrt": (0, INF), "log_softmax": (-INF, 0),
    "logsigmoid": (-INF, 0), "log_sigmoid": (-INF, 0), "normalize": (-1, 1), "cosine_similarity": (-1, 1),
    "var": (0, INF), "std": (0, INF), "cdist": (0, INF), "pdist": (0, INF), "pairwise_distance": (0, INF),
    "dist": (0, INF), "one_hot": (0, 1), "relu": (0, INF), "relu6": (0, 6), "hardtanh": (-INF, INF),
    "sign": (-1, 1), "elu": (-INF, INF), "gelu": (-0.171, INF), "silu": (-0.2785, INF),
    "mish": (-0.309, INF), "hardswish": (-0.3751, INF), "selu": (-1.7582, INF), "frac": (-1, 1),
    "softsign": (-1, 1), "atan": (-1.5708, 1.5708), "asin": (-1.5708, 1.5708), "acos": (0, 3.1416),
    "atan2": (-3.1416, 3.1416), "angle": (-3.1416, 3.1416), "cosh": (1, INF),
    "binary_cross_entropy_with_logits": (0, INF), "mse_loss": (0, INF), "l1_loss": (0, INF),
    "smooth_l1_loss": (0, INF), "huber_loss": (0, INF), "binary_cross_entropy": (0, INF),
    "argmax": (0, INF), "argmin": (0, INF), "argsort": (0, INF), "bincount": (0, INF),
    "searchsorted": (0, INF), "count_nonzero": (0, INF),
    **dict.fromkeys(
        ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_and", "logical_or",
         "logical_not", "logical_xor", "any", "all", "isclose", "signbit", "isin"), (0, 1),
    ),
}  # fmt: skip
"""Bounds of the result, whatever goes in."""
FIELDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("max", "min", "sort", "topk", "kthvalue", "mode", "median", "nanmedian", "cummax", "cummin"),
        ("values", "indices"),
    ),
    "svd": ("U", "S", "V"), "linalg.svd": ("U", "S", "Vh"), "linalg.qr": ("Q", "R"),
    "linalg.eigh": ("eigenvalues", "eigenvectors"), "linalg.eig": ("eigenvalues", "eigenvectors"),
    "linalg.slogdet": ("sign", "logabsdet"), "aminmax": ("min", "max"),
    "linalg.lstsq": ("solution", "residuals", "rank", "singular_values"),
}  # fmt: skip
CORRECTIONS: dict[str, dict[str, Any]] = {
    "where": {"parameters": ("condition", "input", "other"), "operands": (1, 2), "result": "promoted"},
    "masked_fill": {"operands": (0,), "result": "first"},
    "einsum": {"parameters": ("equation", "operands"), "operands": (), "listed": False},
    "embedding": {"operands": (1,), "result": "promoted"},
    "embedding_bag": {"operands": (1,), "result": "promoted"},
    "batch_norm": {
        "parameters": (
            "input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps",
        ),
        "operands": (0, 3, 4), "strict": (), "result": "first",
    },
    "layer_norm": {
        "parameters": ("input", "normalized_shape", "weight", "bias", "eps"), "result": "first",
    },
    "group_norm": {
        "parameters": ("input", "num_groups", "weight", "bias", "eps"), "result": "first",
    },
    "rms_norm": {"parameters": ("input", "normalized_shape", "weight", "eps"), "result": "first"},
    "cdist": {"parameters": ("input", "other", "p", "compute_mode")},
    "cosine_similarity": {"parameters": ("input", "other", "dim", "eps"), "operands": (0, 1)},
    "softmax": {"parameters": ("input", "dim", "_stacklevel", "dtype")},
    "log_softmax": {"parameters": ("input", "dim", "_stacklevel", "dtype")},
    "sum": {"parameters": ("input", "dim", "keepdim", "dtype")},
    "mean": {"parameters": ("input", "dim", "keepdim", "dtype")},
    "max": {"parameters": ("input", "dim", "keepdim"), "operands": (0, 1)},
    "min": {"parameters": ("input", "dim", "keepdim"), "operands": (0, 1)},
    "amax": {"parameters": ("input", "dim", "keepdim")},
    "amin": {"parameters": ("input", "dim", "keepdim")},
    "norm": {"parameters": ("input", "p", "dim", "keepdim", "dtype")},
    "dropout": {"parameters": ("input", "p", "training", "inplace"), "result": "first"},
    "scatter": {"parameters": ("input", "dim", "index", "src", "reduce"), "operands": (0, 3)},
    "index_put": {"parameters": ("input", "indices", "values", "accumulate")},
    "pad": {"parameters": ("input", "pad", "mode", "value"), "result": "first", "operands": (0,)},
    "one_hot": {"parameters": ("input", "num_classes"), "operands": (0,), "result": "int"},
    "bucketize": {"parameters": ("input", "boundaries"), "operands": (0, 1), "result": "int"},
    "searchsorted": {"parameters": ("input", "values"), "operands": (0, 1), "result": "int"},
    "bincount": {"parameters": ("input", "weights"), "operands": (0,), "result": "int"},
    "gumbel_softmax": {
        "parameters": ("input", "tau", "hard", "eps", "dim"), "operands": (0,), "result": "promoted",
        "policy": {"cuda": "fp32"},
    },
    "logsigmoid": {"parameters": ("input",), "operands": (0,), "result": "promoted"},
    "fill": {"parameters": ("input", "value"), "operands": (0,), "result": "first"},
    "copy": {"parameters": ("input", "src"), "operands": (0,), "result": "first"},
    "clone": {"parameters": ("input",), "operands": (0,), "result": "first"},
    "detach": {"parameters": ("input",), "operands": (0,), "result": "first"},
    "view_as_real": {"parameters": ("input",), "operands": (0,), "result": "real"},
    "imag": {"parameters": ("input",), "operands": (0,), "result": "real"},
    "real": {"parameters": ("input",), "operands": (0,), "result": "real"},
    "istft": {"operands": (0,), "result": "real"},
    "stft": {"operands": (0,), "result": "complex"},
    "affine_grid": {
        "parameters": ("theta", "size", "align_corners"), "operands": (0,), "result": "first",
        "policy": {"cuda": "lower", "cpu": "lower"},
    },
    "lp_pool1d": {"operands": (0,), "result": "promoted", "policy": {"cuda": "fp32"}},
    "lp_pool2d": {"operands": (0,), "result": "promoted", "policy": {"cuda": "fp32"}},
    "lp_pool3d": {"operands": (0,), "result": "promoted", "policy": {"cuda": "fp32"}},
    "fold": {"operands": (0,), "result": "first"},
    "dropout1d": {"parameters": ("input", "p"), "operands": (0,), "result": "first"},
    "feature_dropout": {"parameters": ("input", "p"), "operands": (0,), "result": "first"},
    "adjoint": {"parameters": ("input",), "operands": (0,), "result": "first"},
    "identity": {"parameters": ("input",), "operands": (0,), "result": "first"},
    "values": {"parameters": ("input",), "operands": (0,), "result": "first"},
    "linalg.matrix_exp": {"operands": (0,), "result": "promoted", "policy": {"cpu": "lower"}},
    "bitwise_not": {"parameters": ("input",), "operands": (0,), "result": "promoted"},
    "bitwise_and": {"parameters": ("input", "other"), "operands": (0, 1), "result": "promoted"},
    "bitwise_or": {"parameters": ("input", "other"), "operands": (0, 1), "result": "promoted"},
    "bitwise_xor": {"parameters": ("input", "other"), "operands": (0, 1), "result": "promoted"},
    "allclose": {"parameters": ("input", "other"), "operands": (0, 1), "result": "number"},
    "equal": {"parameters": ("input", "other"), "operands": (0, 1), "result": "number"},
    "triplet_margin_with_distance_loss": {"operands": (0, 1, 2), "result": "promoted"},
}  # fmt: skip
"""What samples do not show."""
DTYPE = frozenset({
    "sum", "mean", "prod", "nansum", "nanmean", "cumsum", "cumprod", "softmax", "log_softmax", "softmin", "norm",
    "linalg.norm", "linalg.vector_norm", "linalg.matrix_norm",
})  # fmt: skip
"""Operations that take a dtype to compute in."""
WIDEST = frozenset({
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "grid_sample", "index_put", "scatter_add",
    "tensordot", "vdot", "cat", "stack",
})  # fmt: skip
"""Operations that CUDA's autocast runs in the widest dtype of their operands."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation.

    parameters: positional parameters in torch's order; the first is a method's tensor.  operands: indices
    of those that are tensors of floats.  listed: the first parameter is a list of tensors.
    result: the rule of the result's dtype (``promoted``, ``floating``: integers become float32, ``first``,
    ``bool``, ``int``, ``int_like``: booleans become int64, ``complex``, ``real``, ``float32``, ``number``,
    ``unknown``).  outputs, fields: rules and names of several results.  strict: operands that must have
    one dtype outside of autocast.  policy: autocast's, by device (``lower``, ``fp32``, ``widest``,
    ``banned``).  missing: by device, bits of half dtypes without a kernel.  dtype_argument: takes
    ``dtype=``.  floats: refuses integers.  lo, hi: bounds of every result.  view: elements of the
    result are elements of the first operand.
    """

    name: str
    parameters: tuple[str, ...] = ("input",)
    operands: tuple[int, ...] = (0,)
    listed: bool = False
    result: str = "unknown"
    outputs: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    strict: tuple[int, ...] = ()
    policy: Mapping[str, str] = None  # type: ignore[assignment]
    missing: Mapping[str, int] = None  # type: ignore[assignment]
    dtype_argument: bool = False
    floats: bool = False
    lo: float = -INF
    hi: float = INF
    view: bool = False
    elementwise: bool = False
    reduction: bool = False
    pieces: bool = False


@functools.cache
def _rows() -> dict[str, dict[str, Any]]:
    text = resources.files(__package__).joinpath("operations.json").read_text("utf8")
    return json.loads(text)  # type: ignore[no-any-return]


_made: dict[str, Operation | None] = {}


def operation(name: str) -> Operation | None:
    """An operation by any of its names; None: it is not known."""
    if name in _made:
        return _made[name]
    key = canonical(name)
    row = {**_rows().get(key, {}), **CORRECTIONS.get(key, {})} if key is not None else {}
    made = _of_row(key or name, row) if row else None
    _made[name] = made
    return made


def _of_row(name: str, row: dict[str, Any]) -> Operation:
    lo, hi = RANGES.get(name, (-INF, INF))
    policy = dict(row.get("policy", {}))
    if name in WIDEST:
        policy.setdefault("cuda", "widest")
    if "cuda" in policy:
        policy.setdefault("xpu", policy["cuda"])
    return Operation(
        name,
        tuple(row.get("parameters", ("input",))),
        tuple(row.get("operands", (0,))),
        bool(row.get("listed", False)),
        "first" if name in VIEWS and row.get("result") != "real" else row.get("result", "unknown"),
        tuple(row.get("outputs", ())),
        FIELDS.get(name, ()),
        tuple(row.get("strict", ())),
        policy,
        row.get("missing", {}),
        name in DTYPE,
        bool(row.get("floats", False)),
        lo,
        hi,
        name in VIEWS,
        row.get("kind") in ("UnaryUfuncInfo", "BinaryUfuncInfo") or name in ELEMENTWISE,
        name in REDUCTIONS,
        name in PIECES,
    )


ELEMENTWISE = frozenset({
    "where", "masked_fill", "clamp", "addcmul", "addcdiv", "lerp", "gelu", "silu", "relu", "elu", "softplus",
    "leaky_relu", "hardswish", "hardsigmoid", "mish", "selu", "dropout", "logsigmoid", "neg",
    "bitwise_not", "bitwise_and", "bitwise_or", "clone", "detach",
})  # fmt: skip
NAMESPACES = ("torch.nn.functional.", "torch.linalg.", "torch.fft.", "torch.special.", "torch.Tensor.", "torch.")


@functools.lru_cache(maxsize=8192)
def of_function(qualified: str) -> Operation | None:
    """The operation that a function of torch is, by its dotted name."""
    for home in NAMESPACES:
        name = qualified.removeprefix(home)
        if name == qualified:
            continue
        if "." in name:
            return None
        if home in ("torch.linalg.", "torch.fft."):
            return operation(home.removeprefix("torch.") + name)
        return operation(name) if not name.endswith("__") else None
    return None


def of_method(name: str) -> Operation | None:
    """The operation that a method of tensors is; in-place forms end in ``_``."""
    if name in FUNCTIONS:
        return None
    return operation(name)


FUNCTIONS = frozenset({
    "cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack", "column_stack", "row_stack", "einsum",
    "where_", "linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "layer_norm", "group_norm", "batch_norm", "instance_norm", "rms_norm",
    "normalize", "interpolate", "pad", "dropout", "gelu", "silu", "mish", "elu", "leaky_relu",
    "hardswish", "hardsigmoid", "softplus", "logsigmoid", "one_hot", "embedding", "embedding_bag",
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_similarity", "grid_sample",
    "affine_grid", "cdist", "pdist", "scaled_dot_product_attention", "max_pool1d", "max_pool2d",
    "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d",
    "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "fold", "glu", "identity", "map", "apply", "gumbel_softmax", "pixel_shuffle", "pairwise_distance",
    "broadcast", "send", "recv", "reduce", "all_reduce", "all_gather", "searchsorted", "bucketize",
})  # fmt: skip
"""Operations that tensors don't have as methods."""


def named(base: Operation, name: str) -> Operation:
    """An operation under another name."""
    return replace(base, name=name)
