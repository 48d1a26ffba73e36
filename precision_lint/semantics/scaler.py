"""GradScaler protocol along the control flow of one function.

Every path through a function's steps (``semantics.effects``) carries the state of one scaler:
gradients scaled by which ``backward``, optimizers unscaled and stepped since the last ``update``,
and the truth of the conditions it took, so that ``if use_amp:`` at two places is one decision.
What an event does to that state is in ``semantics.transitions``.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace

from precision_lint.semantics import effects as fx
from precision_lint.semantics.conditions import Condition, condition
from precision_lint.semantics.effects import Effects, Step, Steps, weights
from precision_lint.semantics.events import ZEROED
from precision_lint.semantics.ownership import Roots
from precision_lint.semantics.paths import Flow, State, fewer, forget, taking, undecided
from precision_lint.semantics.transitions import COUNTS, LOOKS, Transitions
from precision_lint.semantics.violations import Helper, Violation

__all__ = ["Helper", "Protocol", "Violation"]

BUDGET = 20_000
"""Steps times paths that one analysis may take; one that needs more ends without a verdict."""
ITERATIONS = 4


class _TooLong(Exception):
    """The analysis used up its budget."""


class Protocol(Transitions):
    """Runs one function for one scaler.

    enabled: condition under which the scaler is active; entry: states at the function's start;
    owners: what optimizers were made of.
    After ``run``: ``violations`` holds what breaks the protocol; ``good`` and ``bad`` the places
    of reads and clips that some path reaches with unscaled and with scaled gradients.
    """

    def __init__(
        self,
        effects: Effects,
        scaler: str,
        enabled: Condition | None,
        entry: list[State],
        owners: Mapping[str, Roots] | None = None,
    ) -> None:
        super().__init__(effects, scaler, enabled, owners)
        self.entry = entry
        self._left = BUDGET
        self.weights = weights(effects.steps)
        for key in (scaler, *(enabled.keys if enabled is not None else ())):
            self.weights.setdefault(key, 1)
        for state in entry:
            for key, _ in state.facts:
                self.weights.setdefault(key, 1)
        self._loops: dict[tuple[object, ...], Flow] = {}

    def run(self) -> Protocol:
        try:
            self.block(self.effects.steps, self.entry)
        except _TooLong:
            self.violations = []
            self.good = set()
            self.bad = {}
            return self
        self.violations = self._selected()
        return self

    def _selected(self) -> list[Violation]:
        """One report per defect: of all reads after one backward the first that is always one."""
        found: dict[object, Violation] = {}
        for number, violation in enumerate(self.violations):
            inner = violation.inner
            site = self._sites.get(number, inner.place if inner is not None else None)
            violation = replace(
                violation,
                sometimes_unscaled=site in self.good,
                steps=_in_order(self._steps[number]),
                unscales=_in_order(self._unscales[number]),
                updates=_in_order(self._updates[number]),
            )
            if violation.kind == ZEROED and violation.how and violation.sometimes_unscaled:
                continue  # a step that is skipped on purpose
            key: object = id(violation.node), violation.kind
            if violation.kind in LOOKS.values():
                key = violation.origin
            known = found.get(key)
            if known is None or (known.sometimes_unscaled and not violation.sometimes_unscaled):
                found[key] = violation
        nodes: dict[tuple[int, str], Violation] = {}
        for violation in found.values():  # a call that leads to several is flagged once
            nodes.setdefault((id(violation.node), violation.kind), violation)
        return sorted(nodes.values(), key=lambda v: (v.node.lineno, v.node.col_offset))

    # control flow

    def block(self, steps: Steps, states: list[State]) -> Flow:
        flow = Flow(states)
        for step in steps:
            if not flow.live:
                break
            self._left -= len(flow.live)
            if self._left < 0:
                raise _TooLong
            flow.live = self.step(step, flow)
        return flow

    def step(self, step: Step, flow: Flow) -> list[State]:
        states = flow.live
        match step.kind:
            case fx.IF:
                test = condition(step.names[0])
                if test.kind != "constant" and not any(k in self.weights for k in test.keys):
                    ends = [self.block(block, list(states)) for block in step.blocks]
                    return self.joined(flow, *ends)
                named = () if COUNTS.search(step.names[0]) else (test.text,)
                self._tests += named
                then = self.block(step.blocks[0], taking(states, test, True))
                other = self.block(step.blocks[1], taking(states, test, False))
                del self._tests[len(self._tests) - len(named) :]
                undecided(then, other, test, states)
                return self.joined(flow, then, other)
            case fx.LOOP:
                return self.loop(step, flow)
            case fx.UNROLLED:
                orelse, *rounds = step.blocks
                broken: list[State] = []
                current = states
                for body in rounds:
                    inner = self.block(body, current)
                    current = self.fewer(inner.live + inner.continued)
                    broken += inner.broken
                    flow.returned += inner.returned
                return self.fewer(self.joined(flow, self.block(orelse, current)) + broken)
            case fx.TRY:
                return self.attempt(step, flow)
            case fx.MATCH:
                return self.joined(flow, *(self.block(b, list(states)) for b in step.blocks))
            case fx.RETURN:
                flow.returned += states
            case fx.CONTINUE:
                flow.continued += states
            case fx.BREAK:
                flow.broken += states
            case fx.RAISE:
                pass
            case fx.INLINE | fx.CALL:
                return self.call(step, states)
            case _:
                after = [a for s in states for a in self.event(step, s)]
                return after if len(after) == len(states) else self.fewer(after)
        return []

    def joined(self, flow: Flow, *ends: Flow) -> list[State]:
        """States that go on; those that jump are added to the flow around."""
        live: list[State] = []
        for end in ends:
            live += end.live
            flow.continued += end.continued
            flow.broken += end.broken
            flow.returned += end.returned
        return self.fewer(live)

    def fewer(self, states: list[State]) -> list[State]:
        return fewer(states, self.weights)

    def attempt(self, step: Step, flow: Flow) -> list[State]:
        body, final, *handlers = step.blocks
        caught = step.names[0] == "caught"
        self._caught += caught
        ends = [self.block(body, list(flow.live))]
        self._caught -= caught
        ends += [self.block(handler, self.fewer(list(flow.live))) for handler in handlers]
        if not final:
            return self.joined(flow, *ends)
        inner = Flow([])
        live = self.joined(inner, *ends)
        for leaving, place in (
            (inner.continued, flow.continued),
            (inner.broken, flow.broken),
            (inner.returned, flow.returned),
        ):
            place += self.joined(flow, self.block(final, self.fewer(leaving)))
        return self.joined(flow, self.block(final, live))

    def loop(self, step: Step, flow: Flow) -> list[State]:
        text, *changing = step.names
        key = (id(step), tuple(flow.live), tuple(map(id, self._calls)), self._caught)
        known = self._loops.get(key)
        if known is None:
            known = self._loops[key] = self._loop(step, text, changing, flow.live)
        flow.returned += known.returned
        flow.continued += known.continued
        flow.broken += known.broken
        return list(known.live)

    def _loop(self, step: Step, text: str, changing: list[str], states: list[State]) -> Flow:
        """Iterations until they bring nothing new; a loop runs at least once."""
        out = Flow([])
        after: list[State] = []
        broken: list[State] = []
        seen: set[State] = set()
        current = states
        test = condition(text) if text else None
        for _ in range(ITERATIONS):
            for name in changing:
                current = [forget(s, name) for s in current]
            if test is not None:
                current = taking(current, test, True)
            current = [s for s in self.fewer(current) if s not in seen]
            if not current:
                break
            seen.update(current)
            self._around.append(step)
            inner = self.block(step.blocks[0], current)
            self._around.pop()
            current = self.fewer(inner.live + inner.continued)
            out.returned += inner.returned
            after += current
            broken += inner.broken
        if test is not None:
            after = taking(after, test, False) or after
        # the else of a loop runs only if nothing broke out of it
        live = self.joined(out, self.block(step.blocks[1], self.fewer(after)))
        out.live = self.fewer(live + broken) or ([] if out.returned and text else list(states))
        return out

    def call(self, step: Step, states: list[State]) -> list[State]:
        self._calls.append(step)
        inner = self.block(step.blocks[0], states)
        self._calls.pop()
        ended = inner.live + inner.returned
        if step.kind == fx.INLINE:
            local = f"__{step.names[0]}"
            ended = [
                replace(s, facts=frozenset(f for f in s.facts if local not in f[0]))
                if any(local in key for key, _ in s.facts)
                else s
                for s in ended
            ]
        return self.fewer(ended)


def _in_order(calls: dict[int, ast.Call]) -> tuple[ast.Call, ...]:
    return tuple(sorted(calls.values(), key=lambda c: (c.lineno, c.col_offset)))
