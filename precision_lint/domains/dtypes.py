"""Dtypes as sets, in every precision mode at once.

A *dtype set* is an ``int``: the low eight bits say which dtypes are possible, the bits above them hold
the number of a symbol ("the dtype of this argument, whichever it is").  A *dtype vector* (``Dtypes``)
has one set for each mode of ``MODES``.  Sets are a powerset lattice: joining is ``|``, and every
operation acts on the vector pointwise.

``OTHER`` stands for what the analysis has no name for (float8, quantised types, no tensor at all);
a set that contains it comes from something unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

Dtypes = tuple[int, ...]

FLOAT64: Final = 1 << 0
FLOAT32: Final = 1 << 1
FLOAT16: Final = 1 << 2
BFLOAT16: Final = 1 << 3
INTEGER: Final = 1 << 4
BOOLEAN: Final = 1 << 5
COMPLEX: Final = 1 << 6
OTHER: Final = 1 << 7
ANY: Final = 255
LOW: Final = FLOAT16 | BFLOAT16
WIDE: Final = FLOAT32 | FLOAT64
FLOATS: Final = LOW | WIDE
SYMBOL: Final = 8
"""Bits below a symbol's number."""

MODES: Final = ("code", "amp-float16", "amp-bfloat16", "float16", "bfloat16")
"""How a program may be run.  ``code``: as it is written, nothing assumed; the others are the modes
that users state: autocast over float32 weights, and weights and inputs in half."""
CODE: Final = 0
AMP16: Final = 1
AMPBF: Final = 2
HALF16: Final = 3
HALFBF: Final = 4
ALL_MODES: Final = (1 << HALFBF + 1) - 1
AMP_MODES: Final = 1 << AMP16 | 1 << AMPBF
HALF_MODES: Final = 1 << HALF16 | 1 << HALFBF

NAMES: Final = {
    FLOAT64: "float64",
    FLOAT32: "float32",
    FLOAT16: "float16",
    BFLOAT16: "bfloat16",
    INTEGER: "int",
    BOOLEAN: "bool",
    COMPLEX: "complex",
}

OFF: Final = 0
"""In a region vector: autocast is off.  Otherwise the set of dtypes it may cast to, and MAYBE."""
MAYBE: Final = 1 << 9
"""In a region vector: autocast may be off as well."""


def everywhere(dtype: int) -> Dtypes:
    """The vector that has the same set in every mode."""
    return (dtype,) * len(MODES)


V_FLOAT64: Final = everywhere(FLOAT64)
V_FLOAT32: Final = everywhere(FLOAT32)
V_FLOAT16: Final = everywhere(FLOAT16)
V_BFLOAT16: Final = everywhere(BFLOAT16)
V_INTEGER: Final = everywhere(INTEGER)
V_BOOLEAN: Final = everywhere(BOOLEAN)
V_COMPLEX: Final = everywhere(COMPLEX)
V_ANY: Final = everywhere(ANY)
V_OFF: Final = everywhere(OFF)
FOLLOWS: Final[Dtypes] = (ANY, FLOAT32, FLOAT32, FLOAT16, BFLOAT16)
"""Weights of a module that nobody was seen to build."""
MADE: Final[Dtypes] = (FLOAT32, FLOAT32, FLOAT32, FLOAT16, BFLOAT16)
"""Weights of a module that the code builds: float32 as written, half where the model is run in half."""
INPUTS: Final[Dtypes] = (ANY, FLOAT16, BFLOAT16, FLOAT16, BFLOAT16)
"""A float input inside a model: what an earlier layer gives."""
BATCHES: Final[Dtypes] = (ANY, FLOAT32, FLOAT32, FLOAT16, BFLOAT16)
"""A float input of code that trains or runs a model."""
LOADED: Final[Dtypes] = (ANY, FLOAT32, FLOAT32, FLOAT32, FLOAT32)
"""What a data loader gives of data that is not seen: it does not follow the model."""

HANDED_IN: Final[Dtypes] = (ANY, ANY, ANY, FLOAT16, BFLOAT16)
"""An argument where autocast was switched off: it may come from the region around, or be cast up."""


def symbol(number: int) -> int:
    """The set of one unknown dtype, which equals itself."""
    return number << SYMBOL | ANY


def set_by_mode(vector: Dtypes) -> Dtypes:
    """One of several dtypes that a setting decides on: the mode's own where weights are half and it is one."""
    if vector[CODE] & ~FLOATS:
        return vector
    by_mode = ((HALF16, FLOAT16), (HALFBF, BFLOAT16))
    own = {mode: half for mode, half in by_mode if vector[mode] & half}
    return tuple([own.get(mode, one) for mode, one in enumerate(vector)])


def describe(dtype: int) -> str:
    """``float16``, ``float16 or float32``, or ``unknown``."""
    if dtype & OTHER:
        return "unknown"
    return " or ".join(name for bit, name in NAMES.items() if dtype & bit)


_KINDS: Final = ((FLOATS, "float"), (INTEGER, "int"), (BOOLEAN, "bool"), (COMPLEX, "complex"))


def kind(vector: Dtypes) -> str:
    """The Python number that an element is: ``float``, ``int``, ``bool``, ``complex``; else ``number``."""
    seen = 0
    for one in vector:
        seen |= one & ANY
    return next((name for bits, name in _KINDS if seen and not seen & ~bits), "number")


def are_floats(vector: Dtypes) -> bool | None:
    """Whether a tensor is of floats, in every mode; None: that is open."""
    known = kind(vector)
    return None if known == "number" else known == "float"


_PAIRS: Final[dict[tuple[int, int], int]] = {}
_RANK: Final = (BOOLEAN, INTEGER, BFLOAT16, FLOAT16, FLOAT32, FLOAT64, COMPLEX)


def _promoted(a: int, b: int) -> int:
    """Promotion of two single dtypes (bits)."""
    if a == b:
        return a
    if OTHER in (a, b):
        return OTHER
    if (a | b) == LOW:
        return FLOAT32
    return max(a, b, key=_RANK.index)


def promote_sets(a: int, b: int) -> int:
    """The dtypes that an operation on tensors of both sets may give.

    A model is of one half dtype or of the other: where both may be of the same, they are.
    """
    if a == b:
        return a
    if (a == INTEGER and b > ANY) or (b == INTEGER and a > ANY):
        return max(a, b)  # an unknown float stays as it is
    key = (a & ANY, b & ANY)
    known = _PAIRS.get(key)
    if known is None:
        known = 0
        for i in range(8):
            for j in range(8):
                if a >> i & 1 and b >> j & 1 and not (a & b & LOW and (1 << i | 1 << j) == LOW):
                    known |= _promoted(1 << i, 1 << j)
        _PAIRS[key] = known
    return known


REMEMBERED: Final = 8_192
"""Results that a table keeps; vectors of symbols are many, and few of them come again."""


def _memoised(pointwise: Callable[[int, int], int]) -> Callable[[Dtypes, Dtypes], Dtypes]:
    table: dict[tuple[Dtypes, Dtypes], Dtypes] = {}

    def apply(a: Dtypes, b: Dtypes) -> Dtypes:
        key = (a, b)
        known = table.get(key)
        if known is None:
            if len(table) >= REMEMBERED:
                table.clear()
            known = table[key] = tuple([pointwise(x, y) for x, y in zip(a, b, strict=True)])
        return known

    return apply


def _join_sets(a: int, b: int) -> int:
    return a if a == b else (a | b) & ANY


def _lowered(dtype: int, region: int) -> int:
    """A float operand as an operation on autocast's lower-precision list sees it."""
    if not region:
        return dtype
    kept = dtype & (FLOAT64 | INTEGER | BOOLEAN | COMPLEX) if not dtype & OTHER else 0
    cast = region & FLOATS if dtype & (FLOAT32 | LOW) else 0
    return kept | cast | (dtype & ANY if region & MAYBE else 0) or dtype


def _raised(dtype: int, region: int, to: int = FLOAT32) -> int:
    """The same for an operation on the float32 list, or for one that casts to another dtype."""
    if not region:
        return dtype
    kept = dtype & (FLOAT64 | INTEGER | BOOLEAN | COMPLEX) if not dtype & OTHER else 0
    cast = to if dtype & (FLOAT32 | LOW) else 0
    return kept | cast | (dtype & ANY if region & MAYBE else 0) or dtype


_promote = _memoised(promote_sets)
_join = _memoised(_join_sets)
lowered = _memoised(_lowered)
raised = _memoised(_raised)


def cast_in(a: Dtypes, region: Dtypes, to: Dtypes) -> Dtypes:
    """A float operand that is cast to one dtype wherever autocast is on."""
    return tuple([_raised(one, on, own) for one, on, own in zip(a, region, to, strict=True)])


def promote(a: Dtypes, b: Dtypes) -> Dtypes:
    """What operands of two tensors with dimensions promote to."""
    return a if a == b else _promote(a, b)


def join(a: Dtypes, b: Dtypes) -> Dtypes:
    """The least vector that holds both."""
    return a if a == b else _join(a, b)


def agreed(operands: list[Dtypes]) -> list[Dtypes]:
    """Operands that must have one dtype, where it is known of some: what is unknown has that one, too.

    As written (``code``) the region around is not known, and with it the dtype they have to have, but
    that it is half where one of them is.
    """
    found = list(operands)
    for mode in range(len(MODES)):
        sets = [one[mode] for one in operands]
        known = [one for one in sets if not one & OTHER and one & FLOATS]
        if mode == CODE and known and known[0] not in (FLOAT16, BFLOAT16):
            continue
        if known and len(known) < len(sets):
            for i, one in enumerate(sets):
                if one & OTHER:
                    found[i] = (*found[i][:mode], known[0], *found[i][mode + 1 :])
    return found


_floating: dict[Dtypes, Dtypes] = {}


def floating(a: Dtypes) -> Dtypes:
    """What an operation with a floating-point result makes of its operand: integers become float32."""
    known = _floating.get(a)
    if known is None:
        if len(_floating) >= REMEMBERED:
            _floating.clear()
        known = _floating[a] = tuple(
            [
                (x & ~(INTEGER | BOOLEAN) | FLOAT32) if x & (INTEGER | BOOLEAN) and x < ANY else x
                for x in a
            ]
        )
    return known


_modes: dict[tuple[Dtypes, int], int] = {}


def modes_of(a: Dtypes, bits: int) -> int:
    """Mask of the modes in which one of ``bits`` is known to be possible."""
    key = (a, bits)
    known = _modes.get(key)
    if known is None:
        if len(_modes) >= REMEMBERED:
            _modes.clear()
        known = 0
        for i, x in enumerate(a):
            if x & bits and not x & OTHER:
                known |= 1 << i
        _modes[key] = known
    return known


def surely(a: Dtypes, bits: int) -> int:
    """Mask of the modes in which nothing but ``bits`` is possible."""
    found = 0
    for i, x in enumerate(a):
        if x and not x & ~bits:
            found |= 1 << i
    return found


def regions_on(region: Dtypes) -> int:
    """Mask of the modes in which autocast may be on."""
    return sum(1 << i for i, x in enumerate(region) if x)


def perhaps(region: Dtypes) -> Dtypes:
    """What autocast casts to in a region that a branch leaves out: it is on where a flag says so."""
    return tuple([0 if i >= HALF16 else x for i, x in enumerate(region)])


def differing(a: Dtypes, b: Dtypes) -> int:
    """Mask of the modes in which two float operands surely have different dtypes."""
    found = 0
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        if x != y and not (x & y & ANY or (x | y) & OTHER) and x & FLOATS and y & FLOATS:
            found |= 1 << i
    return found


def single(a: Dtypes) -> int:
    """Mask of the modes in which one dtype is possible only."""
    return sum(1 << i for i, x in enumerate(a) if x and not x & x - 1)


def run_in(a: Dtypes) -> Dtypes:
    """The dtypes of weights that take one of several: where the model is run in half, that half."""
    return (
        *a[:HALF16],
        *[half if x & half else x for x, half in zip(a[HALF16:], (FLOAT16, BFLOAT16), strict=True)],
    )


def where_cast(a: Dtypes, cast: Dtypes) -> Dtypes:
    """The dtypes of what one of two ways casts: where the model is run in that half, it came that way."""
    return (
        *a[:HALF16],
        *[
            half if own == half else x
            for x, own, half in zip(a[HALF16:], cast[HALF16:], (FLOAT16, BFLOAT16), strict=True)
        ],
    )


def may_differ(a: Dtypes, b: Dtypes) -> int:
    """Mask of the modes in which two known float operands may have different dtypes."""
    found = 0
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        if x != y and x & FLOATS and y & FLOATS and not (x | y) & OTHER:
            found |= 1 << i
    return found
