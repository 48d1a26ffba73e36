"""The state of gradients and optimizers on one path."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from precision_lint.domains import assumptions as assume
from precision_lint.domains.values import Scalar, Value
from precision_lint.events import Place
from precision_lint.syntax.program import spelled

UNSCALED, STEPPED = "unscaled", "stepped"
Known = tuple[tuple[str, bool], ...]


class State(NamedTuple):
    """What is known on one path.

    scaled: the backward whose gradients a loss scale multiplies; framework: by a framework, inside.
    assumptions: those behind the scaler.  plain: a backward without a scale.  waiting: no step has used the
    gradients of ``scaled`` yet.  level: calls around that backward.  clean: optimizers whose gradients
    were divided by the scale since.  optimizers: what was done to each since the last ``update``.
    zeroed: what was set to zero while gradients were waiting, and where.  updated: the scaler that was
    updated since the backward, and where.  looked: the gradients were inspected.  lost: somebody else
    had the scaler.
    by_framework: what unscaled all optimizers since the last step, and where.
    early: a clip or a read of gradients whose backward is not in sight.
    multiplied: a scaler multiplied a loss since the last backward.
    known: conditions that hold on this path.
    """

    scaled: Place | None = None
    framework: bool = False
    assumptions: int = 0
    plain: Place | None = None
    waiting: bool = False
    level: int = 0
    clean: tuple[Any, ...] = ()
    optimizers: tuple[tuple[Any, str], ...] = ()
    zeroed: tuple[Any, Place] | None = None
    updated: tuple[Any, Place] | None = None
    looked: bool = False
    lost: bool = False
    by_framework: tuple[Any, Place] | None = None
    early: tuple[str, Place, str] | None = None
    multiplied: bool = False
    known: Known = ()

    def of(self, optimizer: Any) -> str | None:
        """What was done to an optimizer since the last update."""
        return dict(self.optimizers).get(optimizer)

    def with_optimizer(self, optimizer: Any, done: str | None) -> State:
        """The state in which an optimizer has another one."""
        rest = [pair for pair in self.optimizers if pair[0] != optimizer]
        if done is not None:
            rest.append((optimizer, done))
        return self._replace(optimizers=tuple(sorted(rest, key=repr)))

    def divided(self, optimizer: Any, done: str) -> State:
        """The state in which a scaler has divided an optimizer's gradients."""
        clean = self.clean
        if optimizer not in clean:
            clean = tuple(sorted((*clean, optimizer), key=repr))
        return self.with_optimizer(optimizer, done)._replace(clean=clean)


def in_order(states: Iterable[State]) -> list[State]:
    """States by the places that they name, so that what is said of them is the same in every run."""
    some = list(states)
    return sorted(some, key=_places) if len(some) > 1 else some


def _places(state: State) -> tuple[Any, ...]:
    named = (
        state.scaled, state.plain, state.updated and state.updated[1], state.zeroed and state.zeroed[1],
        state.by_framework and state.by_framework[1], state.early and state.early[1],
    )  # fmt: skip
    done = tuple(sorted(done for _, done in state.optimizers))
    rest = (state.level, state.assumptions, state.waiting, state.looked, len(state.clean))
    return (*((one is None, one or ()) for one in named), rest, done, state.known)


def coarser(states: Iterable[State]) -> frozenset[State]:
    """One state for all that agree on gradients and optimizers; what they differ in is not known."""
    merged: dict[State, State] = {}
    for state in states:
        like = state._replace(
            assumptions=0, zeroed=None, updated=None, looked=True, by_framework=None, early=None
        )
        if state.scaled is None:
            like = like._replace(level=0, framework=False, clean=())
        known = merged.get(like)
        both = state.assumptions | (known.assumptions if known else 0)
        merged[like] = like._replace(assumptions=both)
    return frozenset(merged.values())


def forgetting(states: Iterable[State], kept: Collection[str] | None = None) -> frozenset[State]:
    """The states, of which only some conditions are known on; of None, ways are confused."""
    if kept is not None:
        return frozenset(
            s._replace(known=tuple([fact for fact in s.known if fact[0] in kept])) for s in states
        )
    return frozenset(
        s._replace(known=(), assumptions=s.assumptions | assume.PATHS) if s.known else s
        for s in states
    )


def fewer(states: frozenset[State], most: int, kept: Iterable[Collection[str]]) -> frozenset[State]:
    """At most so many states, if possible.

    Of the conditions on them the first of ``kept`` stay, then fewer, then what is known beside the
    gradients is forgotten, and at last all conditions are.
    """
    for some in kept:
        if len(states) > most:
            states = forgetting(states, some)
    if len(states) > most:
        states = coarser(states)
    return states if len(states) <= most else forgetting(states)


def updated_by(states: Iterable[State], scaler: Any) -> list[State]:
    """The states in which a scaler, and no other one, was updated since the backward."""
    return [s for s in states if s.updated is not None and s.updated[0] == scaler]


def all_scaled(states: Iterable[State]) -> bool:
    """Whether no path has come by a backward without a scale."""
    return not any(s.plain is not None and s.scaled is None for s in states)


def noted_early(states: Iterable[State], kind: str, place: Place, how: str) -> list[State]:
    """Gradients are used, and no backward is in sight that says whether they are scaled."""
    return [
        s._replace(early=(kind, place, how))
        if s.early is None and s.plain is None and not s.optimizers and not s.lost
        else s
        for s in states
    ]


def fresh(state: State) -> State:
    """The state behind a backward without a scaler: what was set to zero before is scaled no more."""
    if state.zeroed is None:
        return state
    return state._replace(scaled=None, waiting=False, zeroed=None)


def by_elements(states: frozenset[State], varying: list[Any]) -> Iterable[frozenset[State]]:
    """States in groups of those that say the same of a loop's elements."""
    groups: dict[tuple[str | None, ...], set[State]] = {}
    for state in states:
        groups.setdefault(tuple([state.of(key) for key in varying]), set()).add(state)
    yield from map(frozenset, groups.values())


def next_element(
    entering: frozenset[State], ends: frozenset[State], varying: list[Any]
) -> frozenset[State]:
    """The states at the start of an iteration: the element is one that nothing was done to in this loop.

    If an iteration surely updates the scale, the next one still steps on gradients of before the loop.
    """
    entry = next(iter(entering))
    waits = all(_updates(entering, state) for state in ends)
    found = set()
    for state in ends:
        for key in varying:
            state = state.with_optimizer(key, entry.of(key))
        found.add(state._replace(waiting=True) if waits else state)
    return frozenset(found)


def _updates(entering: frozenset[State], state: State) -> bool:
    """Whether the scale was updated in a loop before which gradients were made that wait."""
    return state.updated is not None and all(
        one.waiting and one.updated is None and one.scaled == state.scaled is not None
        for one in entering
    )


# conditions


def decided(test: ast.expr, known: Known) -> bool | None:
    """The truth of a test on a path; None: both are possible."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = decided(test.operand, known)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        parts = [decided(part, known) for part in test.values]
        absorbing = isinstance(test.op, ast.Or)
        if absorbing in parts:
            return absorbing
        return None if None in parts else not absorbing
    key, truth = _key(test)
    found = dict(known).get(key)
    return None if found is None else found is truth


def learned(test: ast.expr, holds: bool, known: Known, asked: Collection[str]) -> Known:
    """The conditions that hold once a test has gone one way, of those that are asked more than once."""
    facts = dict(known)
    for key, truth in _facts(test, holds):
        if key in asked:
            facts[key] = truth
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
    """Whether a condition is a variable, or compares one with a number."""
    if isinstance(test, ast.Compare):
        other = test.comparators[0]
        single = len(test.ops) == 1 and type(test.ops[0]) in COMPARED
        number = isinstance(other, ast.Constant) and isinstance(other.value, (int, float))
        return single and number and isinstance(test.left, ast.Name)
    return isinstance(test, ast.Name)


def _comes_to(test: Any, value: Value | None) -> bool | None:
    """What a simple condition comes to where its variable has a value; None: either."""
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
    else:
        yield test


def conditions(test: ast.expr) -> Iterator[str]:
    """The same, each as a text without negation."""
    return (_key(part)[0] for part in parts(test))


def _facts(test: ast.expr, holds: bool) -> Iterable[tuple[str, bool]]:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _facts(test.operand, not holds)
    elif isinstance(test, ast.BoolOp):
        if holds is isinstance(test.op, ast.And):
            for part in test.values:
                yield from _facts(part, holds)
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
    if isinstance(test, ast.Call) and not test.args and getattr(test.func, "attr", "") in STABLE:
        return _dumped(test, test.func), True
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


def lasting(known: Known, changing: frozenset[str]) -> Known:
    """Conditions that still hold in the next iteration."""
    return tuple([fact for fact in known if lasts(fact[0], changing)])


def lasts(key: str, changing: frozenset[str]) -> bool:
    """Whether a condition calls nothing, and is on no name that may have another value."""
    return "Call(" not in key and not any(
        f"id='{name}'" in key or f"attr='{name}'" in key for name in changing
    )
