"""One path's knowledge of a GradScaler, and the conditions that the path took."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace

Facts = frozenset[tuple[str, bool]]
MAX_PATHS = 96
"""Paths that are told apart at one point; beyond, those in one protocol state are merged."""


@dataclass(frozen=True)
class State:
    """One path's knowledge of one scaler."""

    scaled: ast.Call | None = None
    plain: bool = False
    unscaled: tuple[tuple[str, ast.Call], ...] = ()
    stepped: tuple[str, ...] = ()
    pending: tuple[tuple[str, ast.expr], ...] = ()
    touched: bool = False
    spent: tuple[str, ...] = ()
    """Optimizers unscaled or stepped before the latest backward: its gradients are scaled."""
    open: tuple[int, ...] = ()
    """Violations (ids of their nodes) on this path since the latest backward and update."""
    facts: Facts = frozenset()

    @property
    def current(self) -> bool:
        """Whether some optimizer's gradients were unscaled since the latest backward."""
        names = [name for name, _ in self.unscaled] + list(self.stepped)
        return any(name not in self.spent for name in names)

    @property
    def core(self) -> tuple[object, ...]:
        names = tuple(name for name, _ in self.unscaled)
        return (id(self.scaled), self.plain, names, self.stepped, bool(self.pending),
                self.touched, self.spent)  # fmt: skip


def assume(state: State, test: ast.expr, truth: bool) -> State | None:
    """The state with a condition taken as true or false; None if it contradicts what is known."""
    facts = _assume(state.facts, test, truth)
    return None if facts is None else replace(state, facts=facts)


def _assume(facts: Facts, test: ast.expr, truth: bool) -> Facts | None:
    match test:
        case ast.Constant(value=value):
            return facts if bool(value) == truth else None
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _assume(facts, operand, not truth)
        case ast.Compare(left=left, ops=[ast.Is()], comparators=[ast.Constant(value=None)]):
            return _assume(facts, left, not truth)
        case ast.Compare(left=left, ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return _assume(facts, left, truth)
        case ast.BoolOp(op=op, values=parts):
            if isinstance(op, ast.And) == truth:
                result = _remember(facts, test, truth)
                for part in parts:
                    result = None if result is None else _assume(result, part, truth)
                return result
            # one part decides; if every part is known the other way this path can't be
            open_parts = [p for p in parts if _assume(facts, p, not truth) is not None]
            known = [p for p in parts if _assume(facts, p, truth) is None]
            if len(known) == len(parts):
                return None
            if len(parts) - len(known) == 1 and open_parts:
                last = next(p for p in parts if p not in known)
                return _assume(facts, last, truth)
            return _remember(facts, test, truth)
        case _:
            return _remember(facts, test, truth)


def _remember(facts: Facts, test: ast.expr, truth: bool) -> Facts | None:
    text = ast.unparse(test)
    return None if (text, not truth) in facts else facts | {(text, truth)}


def forget(state: State, name: str) -> State:
    """The state without facts about a name that was just bound."""
    word = re.compile(rf"(?<![\w.]){re.escape(name)}(?!\w)")
    kept = frozenset(f for f in state.facts if not word.search(f[0]))
    if kept != state.facts:
        state = replace(state, facts=kept)
    if any(n == name for n, _ in state.unscaled) or name in state.stepped:
        # the name stands for another optimizer now; that one of them was unscaled stays true
        other = f"{name}, before"
        state = replace(
            state,
            unscaled=tuple((other if n == name else n, c) for n, c in state.unscaled),
            stepped=tuple(other if n == name else n for n in state.stepped),
            spent=tuple(other if n == name else n for n in state.spent),
        )
    return state


def common_facts(states: list[State]) -> Facts:
    facts = states[0].facts if states else frozenset()
    for state in states[1:]:
        facts &= state.facts
    return facts


def fewer(states: list[State]) -> list[State]:
    """Distinct states; beyond the limit those of one core are merged, and the rest let go."""
    distinct = list(dict.fromkeys(states))
    if len(distinct) <= MAX_PATHS:
        return distinct
    merged: dict[tuple[object, ...], State] = {}
    for state in distinct:
        same = merged.setdefault(state.core, state)
        merged[state.core] = replace(
            same,
            facts=same.facts & state.facts,
            open=tuple(dict.fromkeys(same.open + state.open)),
        )
    return list(merged.values())[:MAX_PATHS]
