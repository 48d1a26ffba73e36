"""The state of gradients and optimizers on one path."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from precision_lint.domains import assumptions as assume
from precision_lint.events import Place
from precision_lint.typestate.conditions import Known, parted

UNSCALED, STEPPED = "unscaled", "stepped"


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


def where(states: Iterable[State], scaler: Any, there: bool) -> list[State]:
    """The states on ways on which a scaler is there, or is None."""
    key = f"scaler {scaler!r}"
    return [
        s._replace(known=tuple(sorted({*s.known, (key, there)})))
        for s in states
        if (key, not there) not in s.known
    ]


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
            s._replace(known=tuple([fact for fact in s.known if parted(fact[0])[1] in kept]))
            for s in states
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


def switched_off(state: State) -> State:
    """The state where the scaler is disabled: nothing was multiplied."""
    if state.framework:
        return state
    return state._replace(scaled=None, plain=None, waiting=False, clean=(), optimizers=())


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
