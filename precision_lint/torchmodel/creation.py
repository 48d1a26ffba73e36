"""Functions and methods that make tensors."""

from __future__ import annotations

from dataclasses import dataclass

from precision_lint.domains.dtypes import BFLOAT16, BOOLEAN, FLOAT16, FLOAT32, FLOAT64, INTEGER

INF = float("inf")
UNKNOWN_RANK = -2


@dataclass(frozen=True, slots=True)
class Creation:
    """One way to make a tensor.

    kind: ``default`` (of the default dtype), ``data`` (of the dtype of its argument), ``like`` and ``new``
    (of the dtype of another tensor), ``fill``, ``range``, ``int``, ``legacy``.  dtype: where it is fixed, as a
    bit.  lo, hi: bounds of the elements.
    """

    name: str
    kind: str
    dtype: int = 0
    parameters: tuple[str, ...] = ()
    lo: float = -INF
    hi: float = INF
    rank: int = UNKNOWN_RANK


_RANGES = {
    "zeros": (0.0, 0.0), "ones": (1.0, 1.0), "rand": (0.0, 1.0), "eye": (0.0, 1.0),
    "hann_window": (0.0, 1.0), "hamming_window": (0.0, 1.0), "bartlett_window": (0.0, 1.0),
    "kaiser_window": (0.0, 1.0), "fft.rfftfreq": (0.0, INF),
}  # fmt: skip
_RANKS = {
    "arange": 1, "range": 1, "linspace": 1, "logspace": 1, "eye": 2, "randperm": 1,
    "tril_indices": 2, "triu_indices": 2,
    **{f"{kind}_window": 1 for kind in ("hann", "hamming", "bartlett", "blackman", "kaiser")},
}  # fmt: skip
_PARAMETERS = {
    "linspace": ("start", "end", "steps"), "logspace": ("start", "end", "steps", "base"),
    "eye": ("n", "m"), "full": ("size", "fill_value"), "full_like": ("input", "fill_value"),
    "new_full": ("input", "size", "fill_value"), "new_tensor": ("input", "data"),
    "arange": ("start", "end", "step"), "range": ("start", "end", "step"),
    "randint": ("low", "high", "size"), "randint_like": ("input", "low", "high"),
}  # fmt: skip
_KINDS = {
    "default": (
        "zeros", "ones", "empty", "rand", "randn", "linspace", "logspace", "eye", "empty_strided",
        "hann_window", "hamming_window", "blackman_window", "bartlett_window", "kaiser_window",
        "fft.fftfreq", "fft.rfftfreq", "range", "normal",
    ),
    "data": ("tensor", "as_tensor", "asarray", "from_numpy", "scalar_tensor", "frombuffer"),
    "like": (
        "zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "randint_like",
    ),
    "new": (
        "new_zeros", "new_ones", "new_full", "new_empty", "new_tensor", "new", "new_empty_strided",
    ),
    "fill": ("full",),
    "range": ("arange",),
    "int": ("randint", "randperm", "tril_indices", "triu_indices"),
}  # fmt: skip
_LEGACY = {
    "Tensor": FLOAT32, "FloatTensor": FLOAT32, "HalfTensor": FLOAT16, "BFloat16Tensor": BFLOAT16,
    "DoubleTensor": FLOAT64, "LongTensor": INTEGER, "IntTensor": INTEGER, "ShortTensor": INTEGER,
    "CharTensor": INTEGER, "ByteTensor": INTEGER, "BoolTensor": BOOLEAN,
}  # fmt: skip


def _table() -> dict[str, Creation]:
    found = {}
    for kind, names in _KINDS.items():
        for name in names:
            stem = name.removeprefix("new_").removesuffix("_like")
            lo, hi = _RANGES.get(stem, (-INF, INF))
            dtype = INTEGER if kind == "int" else 0
            rank = _RANKS.get(name, UNKNOWN_RANK)
            found[name] = Creation(name, kind, dtype, _PARAMETERS.get(name, ()), lo, hi, rank)
    for name, dtype in _LEGACY.items():
        found[name] = Creation(name, "legacy", dtype)
    return found


_TABLE = _table()


def creation(name: str) -> Creation | None:
    """A way to make tensors by its name."""
    return _TABLE.get(name)


def of_function(qualified: str) -> Creation | None:
    """The same by the dotted name of a function of torch."""
    if not qualified.startswith("torch."):
        return None
    name = qualified.removeprefix("torch.").removeprefix("cuda.").removeprefix("random.")
    found = _TABLE.get(name)
    return found if found is not None and found.kind != "new" else None
