"""One path's knowledge of a GradScaler, and the conditions that the path took."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from precision_lint.semantics.conditions import (
    Condition,
    Facts,
    advanced,
    assume,
    forgotten,
    mentions,
)
from precision_lint.semantics.effects import Step

MAX_PATHS = 96
"""Paths that are told apart at one point; beyond, those in one protocol state are merged."""

Event = tuple[Step, ast.expr]
"""A step, and the node of the outermost function through which it happens."""


@dataclass(frozen=True)
class State:
    """One path's knowledge of one scaler."""

    scaled: Event | None = None
    plain: bool = False
    unscaled: tuple[tuple[str, Event], ...] = ()
    stepped: tuple[str, ...] = ()
    pending: tuple[Event, ...] = ()
    touched: bool = False
    spent: tuple[str, ...] = ()
    """Optimizers unscaled or stepped before the latest backward: its gradients are scaled."""
    open: tuple[int, ...] = ()
    """Violations (by number) on this path since the latest backward and update."""
    facts: Facts = frozenset()
    plainly: Event | None = None
    """A backward that is surely not scaled, and whose gradients no plain step has used."""
    mixed: bool = False
    """Other backwards were seen, by whose gradients a plain step may go."""
    zeroed: tuple[tuple[str, Event, Event], ...] = ()
    """``zero_grad`` calls since the latest scaled backward: whose, where, and that backward."""
    stale: tuple[Event, Event] | None = None
    """A scaled backward and the update after it: its gradients carry the scale before."""
    done: tuple[str, ...] = ()
    """Optimizers stepped with the latest gradients."""
    fresh: bool = False
    """Nothing happened since an update."""
    looked: bool = False
    broken: bool = False
    """Something was reported that explains what happens until the next update."""
    unsure: bool = False
    """A call that nobody has seen may have stepped or updated."""

    @property
    def current(self) -> bool:
        """Whether some optimizer's gradients were unscaled since the latest backward."""
        names = [name for name, _ in self.unscaled] + list(self.stepped)
        return any(name not in self.spent for name in names)

    @property
    def core(self) -> tuple[object, ...]:
        names = tuple(name for name, _ in self.unscaled)
        return (self.scaled, self.plain, names, self.stepped, bool(self.pending),
                self.touched, self.spent, self.plainly, self.mixed, self.zeroed, self.stale,
                self.done, self.fresh, self.looked, self.broken, self.unsure)  # fmt: skip

    def taking(self, test: Condition, truth: bool) -> State | None:
        """This path where a condition is true or false; None if it contradicts what is known."""
        facts = assume(self.facts, test, truth)
        if facts is None or facts is self.facts:
            return self if facts is not None else None
        return replace(self, facts=facts)


@dataclass
class Flow:
    """States that leave a block: by its end, and by each kind of jump."""

    live: list[State]
    continued: list[State] = field(default_factory=list)
    broken: list[State] = field(default_factory=list)
    returned: list[State] = field(default_factory=list)


def taking(states: Iterable[State], test: Condition, truth: bool) -> list[State]:
    """The paths that can go on where a condition is true or false."""
    return [taken for s in states if (taken := s.taking(test, truth)) is not None]


def undecided(then: Flow, other: Flow, test: Condition, before: list[State]) -> None:
    """Let paths forget a condition that made no difference to them."""
    if any(key in test.keys for s in before for key, _ in s.facts):
        return
    known = frozenset().union(*(s.facts for s in before))

    def without(state: State) -> State:
        kept = frozenset(f for f in state.facts if f in known or f[0] not in test.keys)
        return replace(state, facts=kept) if kept != state.facts else state

    ones, others = ([(without(s), s) for s in flow.live] for flow in (then, other))
    same = {s for s, _ in ones} & {s for s, _ in others}
    if same:
        then.live = [bare if bare in same else s for bare, s in ones]
        other.live = [bare if bare in same else s for bare, s in others]


def forget(state: State, name: str) -> State:
    """The state without facts about a name that was just bound; ``+i``: that counts up by one."""
    counter = name.startswith("+")
    name = name.removeprefix("+")
    if any(mentions(key, name) for key, _ in state.facts):
        facts = advanced(state.facts, name) if counter else forgotten(state.facts, name)
        state = replace(state, facts=facts)
    if any(
        mentions(n, name) for n in (*state.done, *state.stepped, *(n for n, _ in state.unscaled))
    ):
        # the name stands for another optimizer now; that one of them was unscaled stays true
        def other(n: str) -> str:
            return f"{n}, before" if mentions(n, name) and not n.endswith(", before") else n

        state = replace(
            state,
            unscaled=tuple((other(n), e) for n, e in state.unscaled),
            stepped=tuple(map(other, state.stepped)),
            spent=tuple(map(other, state.spent)),
            done=tuple(map(other, state.done)),
        )
    return state


def fewer(states: list[State], weights: Mapping[str, int]) -> list[State]:
    """Distinct states; beyond the limit paths forget conditions, those first that guard least.

    weights: by condition, how many branches it decides that hold events.
    """
    if len(states) < 2:
        return states
    distinct = list(dict.fromkeys(states))
    if len(distinct) <= MAX_PATHS:
        return distinct
    keys = {key for state in distinct for key, _ in state.facts}
    for key in sorted(keys, key=lambda k: (weights.get(k, 0), k)):
        bare = [replace(s, facts=frozenset(f for f in s.facts if f[0] != key)) for s in distinct]
        distinct = list(dict.fromkeys(bare))
        if len(distinct) <= MAX_PATHS:
            return distinct
    merged: dict[tuple[object, ...], State] = {}
    for state in distinct:
        same = merged.setdefault(state.core, state)
        merged[state.core] = replace(same, open=tuple(dict.fromkeys(same.open + state.open)))
    return list(merged.values())[:MAX_PATHS]
