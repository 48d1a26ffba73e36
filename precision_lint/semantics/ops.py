"""What single operations do to dtype and range."""

from __future__ import annotations

import math

from precision_lint.semantics.values import INF, Value

SHAPES = frozenset({
    "view", "reshape", "permute", "transpose", "flatten", "unflatten", "squeeze", "unsqueeze",
    "expand", "expand_as", "view_as", "reshape_as", "contiguous", "clone", "detach", "detach_",
    "t", "swapaxes", "swapdims", "movedim", "moveaxis", "chunk", "split", "tensor_split", "unbind",
    "narrow",
    "select", "index_select", "gather", "take", "take_along_dim", "masked_select", "repeat",
    "repeat_interleave", "tile", "roll", "flip", "rot90", "cuda", "cpu", "requires_grad_",
    "broadcast_to", "diagonal", "diag", "tril", "triu", "pin_memory", "data", "rearrange",
    "unfold", "fold", "pixel_shuffle", "pixel_unshuffle", "max_pool1d", "max_pool2d", "max_pool3d",
    "sort", "topk", "kthvalue", "unique", "adjoint", "mT", "T", "H", "mH", "real",
})  # fmt: skip
"""Operations whose elements are elements of the first operand (zeros aside for tril, triu)."""

INTEGRAL = frozenset({
    "argmax", "argmin", "argsort", "long", "int", "short", "nonzero", "count_nonzero", "bincount",
    "searchsorted", "bucketize", "randint", "randperm", "tril_indices", "triu_indices", "numel",
})  # fmt: skip
BOOLEAN = frozenset({
    "isnan", "isinf", "isfinite", "isclose", "eq", "ne", "lt", "le", "gt", "ge", "logical_and",
    "logical_or", "logical_not", "logical_xor", "any", "all", "bool", "isin", "allclose", "equal",
})  # fmt: skip

CREATION = frozenset({
    "zeros", "ones", "full", "empty", "rand", "randn", "linspace", "logspace", "arange", "eye",
    "tensor", "as_tensor", "from_numpy", "normal", "hann_window", "hamming_window",
})  # fmt: skip
LIKE = frozenset({"zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like"})
NEW = frozenset({"new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"})

CASTS = {"float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16"}

PAIRWISE = frozenset({
    "add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "floor_divide",
    "fmod", "remainder", "maximum", "minimum", "fmax", "fmin", "hypot", "lerp", "add_", "sub_",
    "mul_", "div_", "addcmul", "addcdiv", "atan2", "copysign", "dist", "cross",
})  # fmt: skip
JOINING = frozenset({"cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack"})
REDUCTIONS = frozenset({"sum", "mean", "amax", "amin", "prod", "nansum", "logsumexp", "median"})
MATMULS = frozenset({"matmul", "mm", "bmm", "baddbmm", "addmm", "einsum", "mv", "addbmm",
                     "chain_matmul", "multi_dot", "linear", "bilinear", "tensordot",
                     "dot"})  # fmt: skip

MODULES = {
    "Linear": "lower", "Conv1d": "lower", "Conv2d": "lower", "Conv3d": "lower",
    "ConvTranspose1d": "lower", "ConvTranspose2d": "lower", "ConvTranspose3d": "lower",
    "LazyLinear": "lower", "LazyConv2d": "lower", "PReLU": "lower", "GRU": "lower",
    "LSTM": "lower", "RNN": "lower", "MultiheadAttention": "lower",
    "LayerNorm": "fp32", "GroupNorm": "fp32", "RMSNorm": "fp32", "CrossEntropyLoss": "fp32",
    "MSELoss": "fp32", "L1Loss": "fp32", "SmoothL1Loss": "fp32", "KLDivLoss": "fp32",
    "Softmax": "fp32", "LogSoftmax": "fp32", "Softplus": "fp32", "Dropout": "same",
    "Identity": "same", "BatchNorm1d": "same", "BatchNorm2d": "same", "ReLU": "same",
    "GELU": "same", "SiLU": "same", "Sigmoid": "same", "Tanh": "same", "MaxPool2d": "same",
    "AvgPool2d": "same", "AdaptiveAvgPool2d": "same", "Flatten": "same",
}  # fmt: skip
"""``torch.nn`` modules: the policy of what they call, or ``same`` (dtype of the input)."""


def bounds(op: str, x: Value, arguments: dict[str, Value]) -> tuple[float, float]:
    """Range of a one-operand operation's result, given its operand's range."""
    lo, hi = x.lo, x.hi
    if op in ("sigmoid", "softmax", "softmin", "hardsigmoid", "sigmoid_", "gumbel_softmax"):
        return 0.0, 1.0
    if op in ("tanh", "sin", "cos", "sign", "erf", "normalize", "cosine_similarity"):
        return -1.0, 1.0
    if op in ("elu", "elu_"):
        return -1.0, INF
    if op in ("relu", "relu_", "softplus", "relu6"):
        return max(lo, 0.0), 6.0 if op == "relu6" else max(hi, 0.0)
    if op in ("exp", "exp_"):
        return _exp(lo), _exp(hi)
    if op in ("log_softmax", "logsigmoid"):
        return -INF, 0.0
    if op in ("abs", "abs_", "norm", "linalg.norm", "square", "cdist", "pdist", "var", "std",
              "sqrt", "rsqrt"):  # fmt: skip
        if op in ("abs", "abs_"):
            reach = max(abs(lo), abs(hi))
            return (max(lo, -hi, 0.0)), reach
        return 0.0, INF
    if op in ("log1p", "log", "log2", "log10"):
        return (0.0, INF) if op == "log1p" and lo >= 0 else (-INF, INF)
    if op in ("clamp", "clip", "clamp_", "clamp_min", "clamp_max"):
        low, high = arguments.get("min"), arguments.get("max")
        a = low.lo if low is not None and low.kind == "number" else -INF
        b = high.hi if high is not None and high.kind == "number" else INF
        return max(lo, a), min(max(hi, a), b)
    if op in ("mean", "amax", "amin", "median", "dropout", "interpolate", "avg_pool2d",
              "adaptive_avg_pool2d", "max", "min", "detach", "ceil", "floor", "round"):  # fmt: skip
        return (lo, hi) if op not in ("ceil", "floor", "round") else (-INF, INF)
    if op in ("sum", "cumsum", "nansum", "prod"):
        if "one-inside" in x.tags and lo >= 0:
            return 1.0, INF
        return (0.0 if lo >= 0 else -INF), (0.0 if hi <= 0 else INF)
    if op == "logsumexp":
        return -INF, INF
    return -INF, INF


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else INF


def times(a: Value, b: Value) -> tuple[float, float]:
    """Range of a product."""
    corners = [_product(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    return min(corners), max(corners)


def _product(x: float, y: float) -> float:
    return 0.0 if 0.0 in (x, y) else x * y


def over(a: Value, b: Value) -> tuple[float, float]:
    """Range of a quotient; only signs are kept."""
    if b.lo > 0:
        inverse = Value(lo=0.0 if b.hi == INF else 1 / b.hi, hi=1 / b.lo)
        return times(a, inverse)
    return (0.0 if a.lo >= 0 and b.lo >= 0 else -INF), INF
