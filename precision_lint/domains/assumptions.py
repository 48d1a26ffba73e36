"""What a fact may rest on, besides the code: one bit each.

A value carries the union of the assumptions behind it, an event that of its operands.  What they are
worth is decided in one place, ``precision.confidence``.
"""

from __future__ import annotations

from typing import Final

INPUT: Final = 1 << 0
ENTRY: Final = 1 << 1
NETWORK: Final = 1 << 2
BATCH: Final = 1 << 3
KIND: Final = 1 << 4
FLAG: Final = 1 << 5
DEFAULT: Final = 1 << 6
MAGNITUDE: Final = 1 << 7
SIZE: Final = 1 << 8
ZERO: Final = 1 << 9
CALL: Final = 1 << 10
NAME: Final = 1 << 11
BRANCH: Final = 1 << 12
WEIGHTS: Final = 1 << 13
LIBRARY: Final = 1 << 14
OUTSIDE: Final = 1 << 15
PATHS: Final = 1 << 16
AGAIN: Final = 1 << 17
OLDER: Final = 1 << 18
ELSEWHERE: Final = 1 << 19
ON_CPU: Final = 1 << 20
WRAPPED: Final = 1 << 21
SIGN: Final = 1 << 22
MANY: Final = 1 << 23
KEPT: Final = 1 << 24

NAMES: Final = {
    INPUT: "float arguments of this function have the model's dtype",
    ENTRY: "autocast is as the mode says where this function is called",
    NETWORK: "the object that is called here is a model and returns tensors of its dtype",
    BATCH: "the data loader gives float32 tensors",
    KIND: "this is a tensor of floats",
    FLAG: "the flag that decides here switches autocast or the scaler on",
    DEFAULT: "the caller leaves an argument at its default",
    MAGNITUDE: "the values are large enough",
    SIZE: "the sum has enough terms",
    ZERO: "the value comes close enough to zero",
    CALL: "a call that the analysis cannot follow returns its argument",
    NAME: "a name means what it says",
    BRANCH: "the branch with the cast is taken",
    WEIGHTS: "the weights of this module have the mode's dtype",
    OUTSIDE: "this is not called inside an autocast region",
    PATHS: "the conditions on this path can hold together",
    AGAIN: "this function is called for each batch",
    OLDER: "the code runs on a torch before the release that brought this",
    ELSEWHERE: "nothing casts these weights in another place",
    KEPT: "these weights stay as the code casts them",
    ON_CPU: "this runs on the CPU",
    WRAPPED: "what this optimizer is wrapped in keeps no float32 copy of parameters, and no loss scale",
    SIGN: "the terms of a sum do not cancel",
    MANY: "there are tens of thousands of terms",
    LIBRARY: "a library does what its documentation says",
}


def names(assumptions: int) -> tuple[str, ...]:
    """The sentences of a set of assumptions, in the order of the bits."""
    return tuple(text for bit, text in NAMES.items() if assumptions & bit)
