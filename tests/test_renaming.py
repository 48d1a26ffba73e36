"""Results of functions in terms of the objects of their callers."""

from __future__ import annotations

from precision_lint.dataflow.renaming import renamed
from precision_lint.domains import dtypes
from precision_lint.domains.values import Sequence, Symbol, Unknown, Value


def test_every_part_of_a_result_is_renamed() -> None:
    one = Unknown(Symbol("one", dtypes.V_ANY, 0))
    known = one.symbol.number
    parts = Sequence(None, one, "tuple", ([one], one, [one]))
    for value in (one, Sequence((one,), None), parts):
        made = renamed(value, {known: -1})
        inside: list[Value | None] = [made]
        if isinstance(made, Sequence):
            inside = [*(made.items or ()), made.element]
            before, middle, behind = made.ends or ([], None, [])
            inside += [*before, middle, *behind]
        numbers = [part.symbol.number for part in inside if isinstance(part, Unknown)]
        assert numbers
        assert set(numbers) == {-1}
    assert renamed(one, {}) is one
