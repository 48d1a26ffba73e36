"""Where the dtype of a tensor comes from, through what was done to it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from precision_lint.dataflow.creation import ASKED, DATA, DEFAULT
from precision_lint.dataflow.graph import alternatives, peel, typed
from precision_lint.domains.dtypes import BOOLEAN, FLOATS, INTEGER, LOW, OTHER, WIDE
from precision_lint.domains.values import KEPT, Array, DtypeValue, Sequence, Symbol, Tensor
from precision_lint.hazards.zeros import transparent
from precision_lint.torchmodel import creation

CREATED, NUMPY, NAMED, CAST, MASK, STORED, GIVEN, COMPUTED = (
    "created", "numpy", "named", "cast", "mask", "stored", "given", "computed",
)  # fmt: skip
"""What made a tensor wide: a creation without dtype, an array of NumPy, a dtype that is written out, a
cast of a float, a cast of a mask or of integers, a parameter or buffer, what was handed in, another
operation."""
CURVES: Final = frozenset({
    "cos", "sin", "tan", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow", "sqrt", "rsqrt",
    "reciprocal", "cumsum", "cumprod", "softmax", "log_softmax", "outer", "polar", "erf", "atan2",
    "special.expit", "norm", "linalg.norm", "linalg.vector_norm", "linalg.inv", "linalg.qr", "sinc",
})  # fmt: skip
"""Functions whose argument has to keep the bits of float32."""


class Origin(NamedTuple):
    """Where the dtype of a tensor comes from.

    met: what it was first combined with something half in.  curved: a function was met whose argument
    needs the bits that it has there.
    """

    kind: str
    value: Any
    met: Tensor | None = None
    curved: bool = False

    @property
    def direct(self) -> bool:
        """Nothing half was met on the way."""
        return self.met is None


def origin(value: Any, mode: int) -> Origin:
    """What gave a tensor the dtype that it has in a mode."""
    met, curved = None, False
    for _ in range(40):
        value = _named_after(peel(value))
        if not isinstance(value, Tensor):
            return Origin(COMPUTED, value, met, curved)
        kind = _source(value, mode)
        if kind is not None:
            return Origin(kind, value, met, curved)
        inner, meets = _wider(value, mode)
        if inner is None:
            return Origin(COMPUTED, value, met, curved)
        met = value if meets else met
        curved = curved or value.op in CURVES
        value = inner
    return Origin(COMPUTED, value, met, curved)


def _named_after(value: Any) -> Any:
    """The tensor whose dtype one is made in: ``zeros(n, dtype=x.dtype)``."""
    if isinstance(value, Tensor) and value.data == ASKED:
        for given in value.operands:
            if isinstance(given, DtypeValue) and given.source is not None:
                return peel(given.source)
    return value


def _source(value: Tensor, mode: int) -> str | None:
    """What kind of origin a tensor is itself; None: an operation on others."""
    if value.op == "cast":
        inner = peel(value.operands[0])
        before = inner.dtypes[mode] if isinstance(inner, Tensor) else OTHER
        if before & (INTEGER | BOOLEAN) and not before & (OTHER | FLOATS):
            return MASK
        whole = _whole(inner)
        plain = whole is not None and whole.op == "input" and whole.symbol is not None
        if plain and value.data == "explicit" and not whole.symbol.uses & Symbol.FLOAT:
            return MASK
        if value.data == "explicit":
            if before != value.dtypes[mode]:
                return CAST
            return MASK if isinstance(inner, Tensor) and _source(inner, mode) == CREATED else None
        return None
    if value.op in ("input", "argument"):
        return GIVEN
    if value.op in ("weight", "parameter", "buffer"):
        return None if value.flags & KEPT else STORED
    if value.op in ("from_numpy", "as_tensor", "tensor", "asarray") and _of_array(value):
        return NUMPY
    if is_legacy(value):
        return NAMED
    if creation.creation(value.op) is not None:
        if value.data in (DEFAULT, DATA):
            return CREATED
        return NAMED if value.data == ASKED else GIVEN
    return None


def is_legacy(value: Any) -> bool:
    """Whether a tensor was made by a constructor that names its dtype (``torch.FloatTensor``)."""
    made = creation.creation(value.op) if isinstance(value, Tensor) else None
    return made is not None and made.kind == "legacy"


def _whole(value: Any) -> Any:
    """The tensor that a value is a view or a repetition of."""
    value = peel(value)
    while isinstance(value, Tensor) and value.op in VIEWS and value.operands:
        value = peel(value.operands[0])
    return value if isinstance(value, Tensor) else None


VIEWS: Final = frozenset({"unsqueeze", "squeeze", "expand", "expand_as", "repeat"})
"""What masks go through on their way to what they hide."""


def _of_array(value: Tensor) -> bool:
    return bool(value.operands) and isinstance(value.operands[0], Array)


def _wider(value: Tensor, mode: int) -> tuple[Any, bool]:
    """The operand that an operation has its dtype from, and whether it met a half one."""
    wanted = value.dtypes[mode]
    found = None
    met = False
    keeps = value.op in ("index", "join", "sample") or transparent(value)
    for part in parts(value):
        for one in alternatives(part):
            if not isinstance(one, Tensor):
                continue
            have = one.dtypes[mode]
            if have == wanted and (keeps or one.rank != 0):
                found = one if found is None or _rank(found, mode) > _rank(one, mode) else found
            elif have & LOW and not have & (OTHER | WIDE) and one.rank != 0:
                met = True
    return found, met


def _rank(value: Any, mode: int) -> int:
    """Origins that say most come first."""
    kind = _source(value, mode) if isinstance(value, Tensor) else GIVEN
    return {CREATED: 0, NUMPY: 0, NAMED: 1, MASK: 1, CAST: 2, None: 3}.get(kind, 4)


def parts(value: Tensor) -> list[Any]:
    """What a tensor may have its dtype from, item by item."""
    found: list[Any] = []
    for part in typed(value):
        if isinstance(part, Sequence):
            found += part.items if part.items is not None else [part.element]
        else:
            found.append(part)
    return [peel(part) for part in found]
