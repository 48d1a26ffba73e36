"""Conditions on a path: what tests came to, by their text, and what they come to for known values."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from precision_lint.domains.values import OPTIONAL, Scalar, Tensor, Value
from precision_lint.syntax.program import spelled

Known = tuple[tuple[str, bool], ...]
"""What some conditions came to."""


class Receiver(NamedTuple):
    """The object of a method: its name there, and a number that tells it from others of that name."""

    name: str
    number: int


def _of(key: str, receiver: Receiver | None) -> str:
    """A condition in a method: on its object, if it names that."""
    named = receiver is not None and f"id='{receiver.name}'" in key
    return f"{receiver.number}:{key}" if receiver is not None and named else key


def parted(key: str) -> tuple[int | None, str]:
    """The number of the object that a condition is on, and the condition as it is written."""
    number, _, rest = key.partition(":") if key[0].isdigit() else ("", "", key)
    return int(number) if number else None, rest


def decided(test: ast.expr, known: Known, receiver: Receiver | None) -> bool | None:
    """The truth of a test on a path; None: both are possible."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = decided(test.operand, known, receiver)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        parts = [decided(part, known, receiver) for part in test.values]
        absorbing = isinstance(test.op, ast.Or)
        if absorbing in parts:
            return absorbing
        if None not in parts:
            return not absorbing
    key, truth = _key(test)
    found = dict(known).get(_of(key, receiver))
    return None if found is None else found is truth


def learned(
    test: ast.expr, holds: bool, known: Known, asked: Collection[str], receiver: Receiver | None
) -> Known:
    """The conditions that hold once a test has gone one way, of those that are asked more than once."""
    facts = dict(known)
    for key, truth in _facts(*_open_part(test, holds, known, receiver)):
        if key in asked:
            facts[_of(key, receiver)] = truth
    return tuple(sorted(facts.items()))


def set_to(
    name: ast.AST, value: Value | None, known: Known, tests: Mapping[str, Iterable[ast.expr]]
) -> Known:
    """The conditions that hold once a variable is set: nothing older is known of it.

    tests: conditions on variables alone, by the variable.
    """
    own = spelled(name)
    facts = {key: truth for key, truth in known if own not in key}
    for test in tests.get(own, ()):
        holds = _comes_to(test, value)
        if holds is not None:
            key, plain = _key(test)
            facts[key] = holds is plain
    return tuple(sorted(facts.items()))


def is_simple(test: ast.expr) -> bool:
    """Whether a condition is a variable, or compares one with a number or None."""
    if not isinstance(test, ast.Compare):
        return isinstance(test, ast.Name)
    other, op = test.comparators[0], type(test.ops[0])
    if (
        len(test.ops) > 1
        or not isinstance(test.left, ast.Name)
        or not isinstance(other, ast.Constant)
    ):
        return False
    if other.value is None:
        return op in (ast.Is, ast.IsNot)
    return op in COMPARED and isinstance(other.value, (int, float))


def _comes_to(test: Any, value: Value | None) -> bool | None:
    """What a simple condition comes to where its variable has a value; None: either."""
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Is, ast.IsNot)):
        gone = isinstance(value, Scalar) and value.kind == "none"
        known = gone or (isinstance(value, Tensor) and not value.flags & OPTIONAL)
        return gone is isinstance(test.ops[0], ast.Is) if known else None
    if not isinstance(value, Scalar) or not (value.is_number or value.kind == "bool"):
        return None
    exact = value.value is not None
    least, most = (value.value, value.value) if exact else (value.lo, value.hi)
    if isinstance(test, ast.Name):
        return bool(value.value) if exact else True if least > 0 else None
    compare, bound = COMPARED[type(test.ops[0])], test.comparators[0].value
    if not exact and isinstance(test.ops[0], (ast.Eq, ast.NotEq)):
        return None
    low, high = compare(least, bound), compare(most, bound)
    return bool(low) if low is high else None


COMPARED: Final[dict[type, Callable[[Any, Any], Any]]] = {
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip


def parts(test: ast.expr) -> Iterator[ast.expr]:
    """The conditions that a test is made of."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from parts(test.operand)
    elif isinstance(test, ast.BoolOp):
        for part in test.values:
            yield from parts(part)
        yield test  # what it came to may be known, where it is not of which part
    else:
        yield test


def conditions(test: ast.expr) -> Iterator[str]:
    """The same, each as a text without negation."""
    return (_key(part)[0] for part in parts(test))


def _open_part(
    test: ast.expr, holds: bool, known: Known, receiver: Receiver | None
) -> tuple[ast.expr, bool]:
    """The one part that decides ``a and b``, ``a or b``, where the others leave it open, and its outcome."""
    while True:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, holds = test.operand, not holds
            continue
        parts = test.values if isinstance(test, ast.BoolOp) else []
        left = [part for part in parts if decided(part, known, receiver) is None]
        if len(left) != 1:
            return test, holds
        test = left[0]


def _facts(test: ast.expr, holds: bool) -> Iterable[tuple[str, bool]]:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _facts(test.operand, not holds)
    elif isinstance(test, ast.BoolOp):
        if holds is isinstance(test.op, ast.And):
            for part in test.values:
                yield from _facts(part, holds)
        else:
            yield _dumped(test, test), holds
    else:
        key, truth = _key(test)
        yield key, truth is holds


STABLE: Final = frozenset({"is_enabled"})
"""Methods of a scaler that say the same whenever they are asked."""
OPPOSITE: Final = {
    ast.NotEq: ast.Eq,
    ast.IsNot: ast.Is,
    ast.NotIn: ast.In,
    ast.GtE: ast.Lt,
    ast.LtE: ast.Gt,
}


def _key(test: ast.expr) -> tuple[str, bool]:
    """A condition without its negation, and whether it was negated."""
    counted = _residue(test)
    if counted is not None:
        return counted
    if isinstance(test, ast.Call) and not (test.args or test.keywords):
        gives = getattr(test, "gives", "")
        if gives or getattr(test.func, "attr", "") in STABLE:
            return f"{_dumped(test, test.func)}{gives}", True
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        plain = OPPOSITE.get(test.ops[0].__class__)
        if plain is not None:
            other = ast.Compare(test.left, [plain()], test.comparators)
            return _dumped(test, other), False
    return _dumped(test, test), True


def _residue(test: ast.expr) -> tuple[str, bool] | None:
    """A test of a counter (``(i + 1) % 2 == 0``, ``i % 2``) by what is left over."""
    wanted, truth = 0, True
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        op, right = test.ops[0], test.comparators[0]
        if not isinstance(op, (ast.Eq, ast.NotEq)) or not isinstance(right, ast.Constant):
            return None
        if not isinstance(right.value, int):
            return None
        wanted, truth, test = right.value, isinstance(op, ast.Eq), test.left
    else:
        truth = False  # the remainder itself: true if it is not 0
    if not isinstance(test, ast.BinOp) or not isinstance(test.op, ast.Mod):
        return None
    modulo: ast.BinOp = test
    counter, every, added = modulo.left, modulo.right, 0
    if isinstance(counter, ast.BinOp) and isinstance(counter.op, ast.Add):
        if not isinstance(counter.right, ast.Constant) or not isinstance(counter.right.value, int):
            return None
        added = counter.right.value
        counter = counter.left
    if isinstance(every, ast.Constant) and isinstance(every.value, int) and every.value > 0:
        rest = (wanted - added) % every.value
        if every.value == 2 and rest == 1:
            rest, truth = 0, not truth
        return f"{spelled(counter)} % {every.value} == {rest}", truth
    return f"{spelled(counter)} + {added} % {spelled(every)} == {wanted}", truth


def _dumped(node: ast.expr, plain: ast.expr) -> str:
    """A text that two equal conditions share; it is kept with the node."""
    known = getattr(node, "condition", None)
    if known is None:
        known = node.condition = spelled(plain)  # type: ignore[attr-defined]
    return str(known)


def lasting(known: Known, changing: frozenset[str], others: Collection[int]) -> Known:
    """Conditions that still hold in the next iteration; others: objects that are other ones then."""
    found = []
    for fact in known:
        number, key = parted(fact[0])
        if number not in others and lasts(key, changing):
            found.append(fact)
    return tuple(found)


def lasts(key: str, changing: frozenset[str]) -> bool:
    """Whether a condition calls nothing, and is on no name that may have another value."""
    return "Call(" not in key and not any(
        f"id='{name}'" in key or f"attr='{name}'" in key for name in changing
    )
