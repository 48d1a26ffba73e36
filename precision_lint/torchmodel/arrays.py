"""NumPy's functions: the dtype of the array that they give."""

from __future__ import annotations

from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import Dtypes

FLOAT64 = frozenset({
    "zeros", "ones", "empty", "full", "linspace", "logspace", "geomspace", "eye", "identity", "hanning",
    "hamming", "blackman", "bartlett", "kaiser", "loadtxt", "genfromtxt",
    "random.rand", "random.randn", "random.random", "random.uniform", "random.normal", "random.sample",
    "random.standard_normal", "random.random_sample", "random.beta", "random.gamma",
    "random.exponential", "random.dirichlet", "random.poisson_", "random.multivariate_normal",
})  # fmt: skip
INTEGERS = frozenset({
    "argmax", "argmin", "argsort", "nonzero", "where_", "random.randint", "random.permutation",
    "random.choice_", "searchsorted", "digitize", "bincount", "count_nonzero", "arange_",
})  # fmt: skip
BOOLEANS = frozenset({
    "isnan", "isinf", "isfinite", "logical_and", "logical_or", "logical_not", "isclose", "any", "all", "equal",
    "greater", "less",
})  # fmt: skip
FLOATING = frozenset({
    "mean", "std", "var", "sqrt", "exp", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "arctan", "arctan2",
    "average", "median", "percentile", "quantile", "tanh", "divide", "true_divide", "deg2rad",
    "rad2deg", "radians", "degrees", "cov", "corrcoef", "linalg.norm", "linalg.inv", "linalg.solve",
    "linalg.det", "linalg.pinv", "hypot", "power_", "interp",
})  # fmt: skip
"""Functions that make float64 of integers and keep a float."""
KEPT = frozenset({
    "array", "asarray", "ascontiguousarray", "copy", "stack", "concatenate", "vstack", "hstack", "dstack",
    "column_stack", "abs", "absolute", "clip", "reshape", "transpose", "squeeze", "expand_dims",
    "maximum", "minimum", "max", "min", "sum", "cumsum", "prod", "diff", "add", "subtract", "multiply",
    "matmul", "dot", "einsum", "tile", "repeat", "flip", "roll", "sort", "zeros_like", "ones_like",
    "empty_like", "full_like", "where", "pad", "moveaxis", "swapaxes", "round", "floor", "ceil", "sign",
    "square", "power", "negative", "real", "diag", "trace", "outer", "cross", "atleast_1d",
    "atleast_2d", "ravel", "take", "nan_to_num", "linalg.matrix_power", "meshgrid", "split",
})  # fmt: skip
"""Functions whose result promotes their arguments."""
NAMED: dict[str, Dtypes] = {
    "float16": dtypes.V_FLOAT16, "half": dtypes.V_FLOAT16, "float32": dtypes.V_FLOAT32,
    "single": dtypes.V_FLOAT32, "float64": dtypes.V_FLOAT64, "double": dtypes.V_FLOAT64,
    "int64": dtypes.V_INTEGER, "int32": dtypes.V_INTEGER, "int16": dtypes.V_INTEGER,
    "int8": dtypes.V_INTEGER, "uint8": dtypes.V_INTEGER, "bool_": dtypes.V_BOOLEAN,
}  # fmt: skip


def result(name: str, operands: list[Dtypes]) -> Dtypes:
    """The dtype of what a function gives, from those of its arguments."""
    if name in NAMED:
        return NAMED[name]
    if name in FLOAT64:
        return dtypes.V_FLOAT64
    if name in INTEGERS:
        return dtypes.V_INTEGER
    if name in BOOLEANS:
        return dtypes.V_BOOLEAN
    if name == "arange":
        floats = any(one[0] & dtypes.FLOATS for one in operands)
        return dtypes.V_FLOAT64 if floats else dtypes.V_INTEGER
    if not operands or name not in FLOATING | KEPT:
        return dtypes.V_ANY
    vector = operands[0]
    if name in ("stack", "concatenate", "vstack", "hstack", "maximum", "minimum", "add", "where"):
        for other in operands[1:]:
            vector = dtypes.promote(vector, other)
    if name in FLOATING:
        whole = dtypes.INTEGER | dtypes.BOOLEAN
        vector = tuple([dtypes.FLOAT64 if x & whole and x < dtypes.ANY else x for x in vector])
    return vector
