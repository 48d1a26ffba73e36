"""GradScaler protocol along the control flow of one function.

Every path through a function's steps (``semantics.effects``) carries the state of one scaler:
gradients scaled by which ``backward``, optimizers unscaled and stepped since the last ``update``,
and the truth of the conditions it took, so that ``if use_amp:`` at two places is one decision.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace

from precision_lint.api import Evidence, Position
from precision_lint.semantics import effects as fx
from precision_lint.semantics.conditions import Condition, condition, mentions
from precision_lint.semantics.effects import Effects, Step, Steps, weights
from precision_lint.semantics.events import CLIP_SCALED, READ_SCALED, UNSCALED_TWICE
from precision_lint.semantics.paths import Event, Flow, State, fewer, forget, taking, undecided

BUDGET = 20_000
"""Steps times paths that one analysis may take; one that needs more ends without a verdict."""
ITERATIONS = 4
KINDS = {fx.READ: READ_SCALED, fx.CLIP: CLIP_SCALED}
Place = tuple[str | None, int, int, str]


@dataclass(frozen=True, eq=False)
class Violation:
    """A broken step of the protocol.

    node: what to flag; backward: the scaled backward (None: it is in another function);
    first: the earlier ``unscale_`` of a double one; steps, unscales: ``scaler.step`` and
    ``scaler.unscale_`` calls of this function that follow on some path, before ``update`` and the
    next backward; helper: the called function in which it happens, and inner: where in it;
    sometimes_unscaled: another path reaches the node with unscaled gradients; guessed: only the
    callee's name says that it reads or clips; caller: the scaled backward of a caller.
    """

    kind: str
    node: ast.expr
    scaler: str
    optimizer: str
    backward: ast.expr | None
    first: ast.expr | None
    steps: tuple[ast.Call, ...]
    unscales: tuple[ast.Call, ...]
    helper: Helper | None
    sometimes_unscaled: bool
    after_step: bool = False
    unscaled: tuple[str, ...] = ()
    """Optimizers that were unscaled before, on the path that broke the protocol."""
    guessed: bool = False
    inner: Step | None = None
    origin: Step | None = None
    depth: int = 0
    caller: ast.expr | None = None

    def traced(self, note: Callable[[ast.expr, str], Evidence], message: str) -> list[Evidence]:
        """Where in the helper it happens, in this file or another one."""
        inner = self.inner
        if self.helper is None or inner is None:
            return []
        if inner.node is not None:
            return [note(inner.node, message)]
        place = Position(inner.row, inner.column + 1)
        return [Evidence(message, place, place, inner.filename)]


@dataclass(frozen=True)
class Helper:
    """A called function; ``filename`` is None in the same file."""

    name: str
    filename: str | None


class _TooLong(Exception):
    """The analysis used up its budget."""


class Protocol:
    """Runs one function for one scaler.

    enabled: condition under which the scaler is active; entry: states at the function's start.
    After ``run``: ``violations`` holds what breaks the protocol; ``good`` and ``bad`` the places
    of reads and clips that some path reaches with unscaled and with scaled gradients.
    """

    def __init__(
        self, effects: Effects, scaler: str, enabled: Condition | None, entry: list[State]
    ) -> None:
        self.effects = effects
        self.scaler = scaler
        self.enabled = enabled
        self.entry = entry
        self.violations: list[Violation] = []
        self.good: set[Place] = set()
        self.bad: dict[Place, Event] = {}
        self._found: dict[tuple[object, ...], int] = {}
        self._steps: list[dict[int, ast.Call]] = []
        self._unscales: list[dict[int, ast.Call]] = []
        """Calls that follow a violation on some path, by the violation's number."""
        self._calls: list[Step] = []
        """Calls through which a step happens, outermost first."""
        self._caught = 0
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
            violation = replace(
                violation,
                sometimes_unscaled=inner is not None and inner.place in self.good,
                steps=_in_order(self._steps[number]),
                unscales=_in_order(self._unscales[number]),
            )
            key: object = id(violation.node), UNSCALED_TWICE
            if violation.kind != UNSCALED_TWICE:
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
                then = self.block(step.blocks[0], taking(states, test, True))
                other = self.block(step.blocks[1], taking(states, test, False))
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
            inner = self.block(step.blocks[0], current)
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

    # events

    def event(self, step: Step, state: State) -> list[State]:
        mine = bool(step.names) and step.names[0] == self.scaler
        match step.kind:
            case fx.BIND:
                return self.bind(step, state)
            case fx.SCALED:
                if step.names[1] == self.scaler:
                    return [replace(state, facts=state.facts | {(_mark(step.names[0]), True)})]
            case fx.BACKWARD:
                return [self.backward(step, state)]
            case fx.ZERO:
                return [replace(state, scaled=None, plain=False)]
            case fx.READ | fx.CLIP:
                if not step.names[0]:
                    return [self.look(step, state)]
            case fx.SELF_CLIP:
                return [replace(state, scaled=None)]
            case fx.UNSCALE if mine:
                return [self.unscale(step, state)]
            case fx.STEP if mine:
                return [self.optimize(step, state)]
            case fx.UPDATE if mine:
                return [State(touched=True, facts=state.facts)]
            case fx.KNOWN if mine:  # the code takes the scale into account itself
                return [replace(state, scaled=None, plain=True)]
            case fx.TAKEN if mine:  # whatever it does with it
                return [State(plain=True, touched=True, facts=state.facts)]
        return [state]

    def bind(self, step: Step, state: State) -> list[State]:
        name, truth = step.names
        state = forget(state, f"+{name}" if truth == "+1" else name)
        if truth == "new" and name == self.scaler:  # a new scaler remembers nothing
            return [State(touched=True, facts=state.facts | {(name, True)})]
        if name not in self.weights and name != self.scaler:
            return [state]
        if truth in ("True", "False", "new"):
            return [replace(state, facts=state.facts | {(name, truth != "False")})]
        if not truth or truth == "+1" or mentions(truth, name):
            return [state]
        found = []
        for value in (True, False):
            taken = state.taking(condition(truth), value)
            if taken is not None:
                found.append(replace(taken, facts=taken.facts | {(name, value)}))
        return found

    def backward(self, step: Step, state: State) -> State:
        scaler = step.names[0]
        scaled = scaler == self.scaler or (
            not scaler and (_mark(step.names[1]), True) in state.facts
        )
        if not scaled or self._off(state):
            return state if state.scaled else replace(state, plain=True)
        return replace(
            state,
            scaled=self._seen(step),
            plain=False,
            pending=(),
            open=(),
            spent=(*(name for name, _ in state.unscaled), *state.stepped),
        )

    def _off(self, state: State) -> bool:
        """Whether the scaler is known to do nothing on this path."""
        if (f"{self.scaler}.is_enabled()", False) in state.facts:
            return True
        return (self.scaler, False) in state.facts or (
            self.enabled is not None and state.taking(self.enabled, True) is None
        )

    def unscale(self, step: Step, state: State) -> State:
        optimizer = step.names[1]
        earlier = next((event for name, event in state.unscaled if name == optimizer), None)
        stepped = optimizer in state.stepped
        self._note(state, self._unscales, step)
        if earlier is not None or stepped:
            if not self._caught and not _guarded(state) and not self._off(state):
                first = earlier[1] if earlier is not None else None
                number = self.report(
                    UNSCALED_TWICE, self._seen(step), state, optimizer, first, stepped
                )
                state = replace(state, open=_added(state.open, number))
        if earlier is not None:
            return replace(state, spent=tuple(n for n in state.spent if n != optimizer))
        seen = self._seen(step)
        return replace(
            state, unscaled=(*state.unscaled, (optimizer, seen)), pending=(), touched=True
        )

    def optimize(self, step: Step, state: State) -> State:
        optimizer = step.names[1]
        self._note(state, self._steps, step)
        if not state.unscaled and not self._off(state):
            for event in state.pending:
                if event[0].filename is not None and event[1] is self._seen(step)[1]:
                    continue  # all of it is in another file, which reports it
                number = self.report(KINDS[event[0].kind], event, state, optimizer, None, False)
                self._note(replace(state, open=(number,)), self._steps, step)
        return replace(state, stepped=(*state.stepped, optimizer), pending=(), touched=True)

    def look(self, step: Step, state: State) -> State:
        """A read or a clip of gradients."""
        seen = self._seen(step)
        if state.current:
            if state.scaled or not state.plain:
                self.good.add(step.place)
        elif state.scaled is not None:
            self.bad.setdefault(step.place, state.scaled)
            number = self.report(KINDS[step.kind], seen, state, "", None, False)
            return replace(state, open=_added(state.open, number))
        elif not state.plain and not state.touched:
            pending = state.pending if seen in state.pending else (*state.pending, seen)
            return replace(state, pending=pending[:4])
        return state

    def report(
        self,
        kind: str,
        event: Event,
        state: State,
        optimizer: str,
        first: ast.expr | None,
        after_step: bool,
    ) -> int:
        """The number of a violation, a new one unless it was seen on another path."""
        step, node = event
        key = (kind, step.place, id(node), state.scaled if kind != UNSCALED_TWICE else None)
        if key in self._found:
            return self._found[key]
        self._found[key] = len(self.violations)
        helper = None
        through = next((c for c in self._calls if c.node is node), None)
        if through is not None and step.node is not node:
            name = through.names[0].rpartition(".")[2]
            home = step.filename if step.filename is not None else None
            helper = Helper(name, home)
        origin, backward = state.scaled or (None, None)
        self.violations.append(
            Violation(
                kind, node, self.scaler, optimizer, backward, first, (), (), helper, False,
                after_step, tuple(name for name, _ in state.unscaled), "guess" in step.names[1:],
                step, origin, len(self._calls),
            )
        )  # fmt: skip
        self._steps.append({})
        self._unscales.append({})
        return self._found[key]

    def _seen(self, step: Step) -> Event:
        node = self._calls[0].node if self._calls else step.node
        assert node is not None  # the outermost function is of this file
        return step, node

    def _note(self, state: State, table: list[dict[int, ast.Call]], step: Step) -> None:
        """Remember that a path with open violations reached a call of this function."""
        if not self._calls and isinstance(step.node, ast.Call):
            for violation in state.open:
                table[violation][id(step.node)] = step.node


def _guarded(state: State) -> bool:
    """Whether this path asked for the scaler's own per-optimizer state."""
    return any("OptState" in key or "_per_optimizer_states" in key for key, _ in state.facts)


def _mark(name: str) -> str:
    return f"{name}.__scaled__"


def _added(numbers: tuple[int, ...], number: int) -> tuple[int, ...]:
    return numbers if number in numbers else (*numbers, number)


def _in_order(calls: dict[int, ast.Call]) -> tuple[ast.Call, ...]:
    return tuple(sorted(calls.values(), key=lambda c: (c.lineno, c.col_offset)))
