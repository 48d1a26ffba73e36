"""One name for each operation, however torch spells it."""

from __future__ import annotations

from typing import Final

ALIASES: Final = {
    "absolute": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh",
    "arctan": "atan", "arctan2": "atan2", "arctanh": "atanh", "clip": "clamp", "concat": "cat",
    "concatenate": "cat", "divide": "div", "true_divide": "div", "fix": "trunc", "greater": "gt",
    "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne", "multiply": "mul",
    "subtract": "sub", "negative": "neg", "swapaxes": "transpose", "swapdims": "transpose",
    "moveaxis": "movedim", "row_stack": "vstack", "expit": "sigmoid", "inverse": "linalg.inv",
    "det": "linalg.det", "slogdet": "linalg.slogdet", "pinverse": "linalg.pinv",
    "matrix_power": "linalg.matrix_power", "chain_matmul": "linalg.multi_dot",
    "softmax_": "softmax", "upsample": "interpolate", "threshold_": "threshold", "relu_": "relu",
    "ger": "outer", "orgqr": "linalg.householder_product", "erf_": "erf", "gammaln": "lgamma",
    "psi": "digamma", "linalg.matmul": "matmul", "vector_norm": "linalg.vector_norm",
    "matrix_norm": "linalg.matrix_norm", "type_as": "to", "nn.functional.softmax": "softmax",
    "linalg_cross": "linalg.cross", "trapz": "trapezoid", "sinc_": "sinc", "isfinite_": "isfinite",
    "linalg.vecdot": "linalg.vecdot", "special_expit": "sigmoid",
}  # fmt: skip
"""Other names of an operation."""
HOMES: Final = ("linalg", "fft")
"""Modules of torch whose name belongs to the operation's (``linalg.norm`` is not ``norm``)."""


def canonical(name: str) -> str | None:
    """The name of an operation by that of a function or method; None: it is private."""
    plain = name.removeprefix("nn.functional.").removeprefix("special.").removeprefix("special_")
    for home in HOMES:
        if plain.startswith(f"{home}_"):
            plain = f"{home}.{plain[len(home) + 1 :]}"
    if plain.startswith("_"):
        return None
    if plain in ALIASES:
        return ALIASES[plain]
    if plain.endswith("_") and not plain.endswith("__"):
        plain = plain[:-1]
    return ALIASES.get(plain, plain)
