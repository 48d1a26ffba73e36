"""Functions and methods that make tensors out of nothing, out of data, or like another tensor."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final

from precision_lint.domains.dtypes import NAMES
from precision_lint.torchmodel.tables import INF, bounds, table, words

UNKNOWN_RANK: Final = -2
BITS: Final = {name: bit for bit, name in NAMES.items()}


@dataclass(frozen=True, slots=True)
class Creation:
    """One way to make a tensor.

    kind: ``default`` (of the default dtype), ``data`` (of the dtype of its argument), ``like`` and ``new``
    (of the dtype of another tensor), ``fill`` (of the number), ``range`` (integers unless a float is
    given), ``int``, ``legacy`` (named after a dtype).  dtype: its bit where it is fixed, else 0.
    lo, hi: bounds of the elements.  rank: number of dimensions where it is always the same.
    random: two calls give different tensors.
    """

    name: str
    kind: str
    dtype: int = 0
    parameters: tuple[str, ...] = ()
    lo: float = -INF
    hi: float = INF
    rank: int = UNKNOWN_RANK
    random: bool = False


@functools.lru_cache(maxsize=256)
def creation(name: str) -> Creation | None:
    """A way to make tensors by its name: ``zeros``, ``new_full``, ``fft.fftfreq``."""
    row = table("creation").get(name)
    if row is None:
        return None
    lo, hi = bounds(row.get("range"))
    return Creation(
        name,
        row["kind"],
        BITS[row["dtype"]] if "dtype" in row else 0,
        words(row.get("p", "")),
        lo,
        hi,
        row.get("rank", UNKNOWN_RANK),
        row.get("random", False),
    )


def of_function(qualified: str) -> Creation | None:
    """The same by the dotted name of a function or class: ``torch.zeros``, ``torch.cuda.FloatTensor``."""
    if not qualified.startswith("torch."):
        return None
    found = creation(qualified.removeprefix("torch.").removeprefix("cuda."))
    return found if found is not None and found.kind != "new" else None
