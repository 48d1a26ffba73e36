"""Operations as such, for rules that judge by themselves what goes wrong at one.

``operation:log`` is every logarithm of a tensor, however it is spelt; ``half:log``, ``float16:log``
and ``bfloat16:log`` are those that compute in such a dtype, in the modes in which they do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from precision_lint.dataflow.graph import peel
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.tensors import Applied, hazard
from precision_lint.domains import dtypes
from precision_lint.domains.values import Tensor
from precision_lint.hazards.places import operand_place

PREFIXES: Final = {
    "operation": 0,
    "half": dtypes.LOW,
    "float16": dtypes.FLOAT16,
    "bfloat16": dtypes.BFLOAT16,
}
"""In front of an operation's name: the dtypes in which it has to compute; 0: any."""


def wanted(kinds: Iterable[str]) -> dict[str, list[tuple[str, int]]]:
    """The kinds of events that are operations, by the operation, each with its dtypes."""
    found: dict[str, list[tuple[str, int]]] = {}
    for kind in sorted(set(kinds)):
        prefix, colon, name = kind.partition(":")
        if colon and prefix in PREFIXES:
            found.setdefault(name, []).append((kind, PREFIXES[prefix]))
    return found


@hazard("*")
def asked_for(it: Interpreter, applied: Applied) -> None:
    """An operation that a rule asks for."""
    kinds = it.program.wanted.get(applied.name)
    if kinds is None:
        return
    value = peel(applied.tensor(0))
    if not isinstance(value, Tensor):
        return
    seen = applied.seen.get(0, value.dtypes)
    place = operand_place(it, applied.result, 0)
    for kind, mask in kinds:
        it.emit(
            kind,
            applied.node,
            dtypes.modes_of(seen, mask) if mask else dtypes.ALL_MODES,
            applied.result.assumptions,
            about=value,
            operand=place,
            upcast=(place,) if place is not None else (),
            lo=value.lo,
            hi=value.hi,
        )
