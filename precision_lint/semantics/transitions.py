"""What each event does to one path's knowledge of a scaler, and which break its protocol."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import replace

from precision_lint.semantics import effects as fx
from precision_lint.semantics import events as ev
from precision_lint.semantics.conditions import Condition, condition, mentions
from precision_lint.semantics.effects import Effects, Step, flat, leading
from precision_lint.semantics.names import dotted
from precision_lint.semantics.ownership import Roots, covers, owned
from precision_lint.semantics.paths import Event, State, forget
from precision_lint.semantics.violations import Helper, Violation

Place = tuple[str | None, int, int, str]
LOOKS = {fx.READ: ev.READ_SCALED, fx.CLIP: ev.CLIP_SCALED, fx.SCRUB: ev.SCRUBBED}
OPTIMIZER = re.compile(r"opt(?!ion)", re.IGNORECASE)
COUNTS = re.compile(r"%|step|accum|sync|iter|\b(i|idx|batch)\b", re.IGNORECASE)
"""Conditions that pick iterations, as gradient accumulation does."""


NOWHERE: tuple[tuple[str, ...], tuple[Step, ...]] = ((), ())
ALWAYS: Place = (None, 0, 0, "")
"""A place that no path reaches: what is reported there happens whatever other paths do."""


class Transitions:
    """One function and one scaler: the events, and the violations that they make.

    enabled: condition under which the scaler is active; owners: what optimizers were made of.
    """

    def __init__(
        self,
        effects: Effects,
        scaler: str,
        enabled: Condition | None,
        owners: Mapping[str, Roots] | None = None,
    ) -> None:
        self.effects = effects
        self.scaler = scaler
        self.enabled = enabled
        self.owners = owners or {}
        self.violations: list[Violation] = []
        self.good: set[Place] = set()
        self.bad: dict[Place, Event] = {}
        self._found: dict[tuple[object, ...], int] = {}
        self._sites: dict[int, Place] = {}
        """By a violation's number, the place that shows whether other paths do it right."""
        self._steps: list[dict[int, ast.Call]] = []
        self._unscales: list[dict[int, ast.Call]] = []
        self._updates: list[dict[int, ast.Call]] = []
        """Calls that follow a violation on some path, by the violation's number."""
        self._calls: list[Step] = []
        """Calls through which a step happens, outermost first."""
        self._tests: list[str] = []
        """Conditions around a step that do not count iterations."""
        self._around: list[Step] = []
        """Loops around a step, outermost first."""
        self._under: dict[Place, tuple[tuple[str, ...], tuple[Step, ...]]] = {}
        self._caught = 0
        mine = [s for s in flat(effects.steps) if s.kind in (fx.STEP, fx.UNSCALE)]
        self.optimizers = {s.names[1] for s in mine if s.names[0] == scaler}
        self.zeroed = {s.names[0] for s in flat(effects.steps) if s.kind == fx.ZERO}

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
                return [self.zero(step, state)]
            case fx.PLAIN_STEP:
                return [self.bypass(step, state)]
            case fx.PERHAPS:
                return [replace(state, unsure=True, fresh=False)]
            case fx.READ | fx.CLIP | fx.SCRUB:
                if not step.names[0]:
                    return [self.look(step, state)]
            case fx.SELF_CLIP:
                return [replace(state, scaled=None, unsure=True, fresh=False)]
            case fx.UNSCALE if mine:
                return [self.unscale(step, state)]
            case fx.STEP if mine:
                return [self.optimize(step, state)]
            case fx.UPDATE if mine:
                return [self.update(step, state)]
            case fx.KNOWN if mine:  # the code takes the scale into account itself
                return [replace(state, scaled=None, plain=True, unsure=True)]
            case fx.TAKEN if mine:  # whatever it does with it
                return [State(plain=True, touched=True, unsure=True, facts=state.facts)]
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

    weights: dict[str, int]

    # backward and zero_grad

    def backward(self, step: Step, state: State) -> State:
        scaler, *rest = step.names
        text = rest[0] if rest else ""
        scaled = scaler == self.scaler or (
            not scaler and ((_mark(text), True) in state.facts or f"{self.scaler}.scale(" in text)
        )
        self._under[step.place] = tuple(self._tests), tuple(self._around)
        if not scaled or self._off(state):
            return self.plain_backward(step, state, text)
        return replace(
            state,
            scaled=self._seen(step),
            plain=False,
            pending=(),
            open=(),
            spent=(*(name for name, _ in state.unscaled), *state.stepped),
            zeroed=(),
            stale=None,
            done=(),
            looked=False,
            fresh=False,
        )

    def plain_backward(self, step: Step, state: State, text: str) -> State:
        """A backward of a loss that this scaler did not scale."""
        after = state if state.scaled else replace(state, plain=True)
        sure = len(step.names) > 2 and step.names[2] and "scal" not in text.lower()
        if not sure or self._off(state):  # a framework's own, or another scaler's
            return replace(after, mixed=True, done=(), fresh=False)
        return replace(after, plainly=self._seen(step), zeroed=(), done=(), fresh=False)

    def zero(self, step: Step, state: State) -> State:
        zeroed = state.zeroed
        if step.names[1:] and not self._all_of(step.names[0]):
            return state
        if state.scaled and not self._off(state) and step.names[0] not in state.stepped:
            zeroed = (*zeroed, (step.names[0], self._seen(step), state.scaled))
        return replace(
            state, scaled=None, plain=False, plainly=None, mixed=False, stale=None, done=(),
            zeroed=zeroed,
        )  # fmt: skip

    def _all_of(self, name: str) -> bool:
        """Whether a name stands for an optimizer, or all that one was made of."""
        return name in self.optimizers or any(covers(name, made) for made in self.owners.values())

    def _off(self, state: State) -> bool:
        """Whether the scaler is known to do nothing on this path."""
        if (f"{self.scaler}.is_enabled()", False) in state.facts:
            return True
        return (self.scaler, False) in state.facts or (
            self.enabled is not None and state.taking(self.enabled, True) is None
        )

    # unscale_, step and update

    def unscale(self, step: Step, state: State) -> State:
        optimizer = step.names[1]
        earlier = next((event for name, event in state.unscaled if name == optimizer), None)
        stepped = optimizer in state.stepped
        self._note(state, self._unscales, step)
        self.ready(step, state, optimizer)
        if earlier is not None or stepped:
            if not self._caught and not _guarded(state) and not self._off(state):
                first = earlier[1] if earlier is not None else None
                number = self.report(
                    ev.UNSCALED_TWICE, self._seen(step), state, optimizer, first, stepped
                )
                state = replace(state, open=_added(state.open, number), broken=True)
        if earlier is not None:
            return replace(state, spent=tuple(n for n in state.spent if n != optimizer))
        seen = self._seen(step)
        return replace(
            state,
            unscaled=(*state.unscaled, (optimizer, seen)),
            pending=(),
            touched=True,
            fresh=False,
        )

    def optimize(self, step: Step, state: State) -> State:
        optimizer = step.names[1]
        self._note(state, self._steps, step)
        seen = self._seen(step)
        self.ready(step, state, optimizer)
        if not state.unscaled and not self._off(state):
            for event in state.pending:
                if event[0].filename is not None and event[1] is seen[1]:
                    continue  # all of it is in another file, which reports it
                number = self.report(LOOKS[event[0].kind], event, state, optimizer)
                self._note(replace(state, open=(number,)), self._steps, step)
        if not self._off(state) and not state.unsure:
            state = self.repeated(step, state, optimizer)
            self.emptied(step, state, optimizer)
        if state.scaled and state.plainly is None:
            self.good.add(step.place)
        return replace(
            state,
            stepped=(*state.stepped, optimizer),
            done=_with(state.done, optimizer),
            pending=(),
            touched=True,
            fresh=False,
        )

    def repeated(self, step: Step, state: State, optimizer: str) -> State:
        """A second step since the last update."""
        if optimizer not in state.stepped or state.broken:
            return state
        inside = (self._around[-1],) if self._around else self.effects.steps
        updated = any(
            s.kind == fx.TAKEN or (s.kind == fx.UPDATE and s.names[0] == self.scaler)
            for s in flat(inside)
        )
        how = "skipped" if updated else "missing"
        number = self.report(ev.UPDATE, self._seen(step), state, optimizer, how=how)
        self._sites[number] = ALWAYS
        return replace(state, broken=True)

    def emptied(self, step: Step, state: State, optimizer: str) -> None:
        """A step whose gradients were set to zero after they were computed."""
        if state.scaled or state.plainly:
            return
        for name, event, origin in state.zeroed:
            unknown = optimizer not in self.owners and not OPTIMIZER.search(name)
            unknown = unknown and event[0].names[1:] == ()
            if name != optimizer and not covers(name, self.owners.get(optimizer)) and not unknown:
                continue
            how = "unscaled" if self._unscaled(state, optimizer) else ""
            if name != optimizer and unknown:
                how = "perhaps"
            number = self.report(ev.ZEROED, event, state, optimizer, how=how, origin=origin)
            self._site(number, step, self._seen(step)[1])
            self._note(replace(state, open=(number,)), self._steps, step)

    def ready(self, step: Step, state: State, optimizer: str) -> None:
        """Whether the gradients that an optimizer unscales or steps with carry today's scale."""
        if self._off(state):
            return
        plain = state.plainly
        if plain is not None and set(self._around) - set(self._under[plain[0].place][1]):
            return  # before the loop that trains
        if state.plainly is not None and not state.mixed and not state.unsure:
            how = "mixed" if state.scaled else ""
            origin = state.plainly
            number = self.report(
                ev.PLAIN_BACKWARD, state.plainly, state, optimizer, how=how, origin=origin
            )
            tests = self._under[origin[0].place][0]
            self.violations[number] = replace(self.violations[number], under=tests)
            self._site(number, step, self._seen(step)[1])
        elif state.stale is not None and not state.scaled and optimizer not in state.done:
            origin, event = state.stale
            number = self.report(ev.UPDATE, event, state, optimizer, how="early", origin=origin)
            self._site(number, step, self._seen(step)[1])
            self._sites[number] = ALWAYS

    def update(self, step: Step, state: State) -> State:
        self._note(state, self._updates, step)
        checked = state.unscaled or state.stepped or state.zeroed
        given = isinstance(step.node, ast.Call) and bool(step.node.args or step.node.keywords)
        if state.fresh and not given and not self._off(state) and not self._caught:
            number = self.report(ev.UPDATE, self._seen(step), state, "", how="again")
            self._sites[number] = ALWAYS
        elif state.scaled and not checked and not given and not self._off(state):
            quiet = state.plain or state.unsure or state.broken or self._caught
            if not quiet and not self._looped(state) and self._in_some_iterations(step):
                number = self.report(ev.UPDATE, self._seen(step), state, "", how="unchecked")
                self._sites[number] = ALWAYS
        stale = (state.scaled, self._seen(step)) if state.scaled and checked else None
        return State(touched=True, facts=state.facts, stale=stale, done=state.done, fresh=True)

    def bypass(self, step: Step, state: State) -> State:
        """``optimizer.step()`` without the scaler."""
        name = step.names[0]
        if not (self._is_optimizer(name) or step.names[1:]) or self._off(state):
            return state
        again = name in state.done
        if again or (state.scaled is not None and state.plainly is None and not state.mixed):
            if not state.unsure:
                state = self.bypassed(step, state, name, again)
        else:
            self.good.add(step.place)
        after = replace(state, broken=True)
        if state.plainly is not None:  # these are its gradients, perhaps
            return replace(after, plainly=None, mixed=True)
        return after

    def bypassed(self, step: Step, state: State, name: str, again: bool) -> State:
        how = "again" if again else ""
        if not again and self._unscaled(state, name):
            if state.looked:
                return state  # it decides itself whether to step
            how = "unchecked"
        number = self.report(ev.BYPASSED, self._seen(step), state, name, how=how)
        if self._under_test(step, state):
            self._site(number, step)
        else:
            self._sites[number] = ALWAYS
        return replace(state, open=_added(state.open, number))

    def _is_optimizer(self, name: str) -> bool:
        """Whether something with a ``step()`` is an optimizer: it is used or named as one."""
        last = name.rpartition(".")[2]
        known = name in self.optimizers or name in self.owners or name in self.zeroed
        return known or bool(OPTIMIZER.search(last))

    def _under_test(self, step: Step, state: State) -> bool:
        """Whether a step depends on a condition that its backward does not depend on."""
        tests, _ = self._under.get(state.scaled[0].place, NOWHERE) if state.scaled else NOWHERE
        return bool(set(self._tests) - set(tests))

    def _in_some_iterations(self, update: Step) -> bool:
        """Whether only conditions that count iterations keep the scaler's steps from running as
        often as an update."""
        around = next((a for s, a in leading(self.effects.steps, lambda s: s is update)), ())
        mine = list(leading(self.effects.steps, self._checks))
        apart = [s for _, outer in mine for s in outer if s not in around and s.kind != fx.INLINE]
        return bool(mine) and all(s.kind == fx.IF and COUNTS.search(s.names[0]) for s in apart)

    def _checks(self, step: Step) -> bool:
        return step.kind in (fx.STEP, fx.UNSCALE) and step.names[0] == self.scaler

    def _looped(self, state: State) -> bool:
        """Whether the backward is in a loop that has ended here, perhaps without any iteration."""
        _, loops = self._under.get(state.scaled[0].place, NOWHERE) if state.scaled else NOWHERE
        return not set(loops) <= set(self._around)

    @staticmethod
    def _unscaled(state: State, optimizer: str) -> bool:
        return any(n == optimizer and n not in state.spent for n, _ in state.unscaled)

    # reads, clips and scrubs

    def look(self, step: Step, state: State) -> State:
        """A read, a clip or a scrub of gradients."""
        seen = self._seen(step)
        if state.current:
            if state.scaled or not state.plain:
                self.good.add(step.place)
                if step.kind == fx.CLIP:
                    return self.partly(step, state)
            return replace(state, looked=True) if step.kind == fx.READ else state
        if state.scaled is not None:
            self.bad.setdefault(step.place, state.scaled)
            number = self.report(LOOKS[step.kind], seen, state, "")
            return replace(state, open=_added(state.open, number))
        if not state.plain and not state.touched:
            pending = state.pending if seen in state.pending else (*state.pending, seen)
            return replace(state, pending=pending[:4])
        return state

    def partly(self, step: Step, state: State) -> State:
        """A clip that takes in an optimizer whose gradients are still scaled."""
        clipped = step.names[2] if len(step.names) > 2 else ""
        if not clipped or state.scaled is None or state.broken or self._off(state):
            return state
        unscaled = {n for n, _ in state.unscaled if n not in state.spent} | set(state.stepped)
        for name in owned(clipped, self.owners, self.optimizers, frozenset(unscaled)):
            number = self.report(ev.PARTLY_UNSCALED, self._seen(step), state, name)
            self._sites[number] = ALWAYS
            state = replace(state, open=_added(state.open, number))
        return state

    # reports

    def report(
        self,
        kind: str,
        event: Event,
        state: State,
        optimizer: str,
        first: ast.expr | None = None,
        after_step: bool = False,
        *,
        how: str = "",
        origin: Event | None = None,
    ) -> int:
        """The number of a violation, a new one unless it was seen on another path."""
        step, node = event
        scaled = origin or state.scaled
        key = (kind, step.place, id(node), scaled if kind != ev.UNSCALED_TWICE else None)
        if key in self._found:
            return self._found[key]
        number = self._found[key] = len(self.violations)
        helper = None
        if step.node is not node:
            through = next((c.names[0] for c in self._calls if c.node is node), "")
            name = through or (dotted(node.func) if isinstance(node, ast.Call) else "") or ""
            helper = Helper(name.rpartition(".")[2], step.filename)
        inner, backward = scaled or (None, None)
        guessed = step.names[1:2] == ("guess",) or step.names[2:3] == ("given",)
        self.violations.append(
            Violation(
                kind, node, self.scaler, optimizer, backward, first, (), (), helper, False,
                after_step, tuple(name for name, _ in state.unscaled), guessed,
                step, inner, len(self._calls), how=how,
            )
        )  # fmt: skip
        self._steps.append({})
        self._unscales.append({})
        self._updates.append({})
        return number

    def _site(self, number: int, step: Step, later: ast.expr | None = None) -> None:
        """Where other paths may do right what a violation does wrong."""
        self._sites[number] = step.place
        if later is not None:
            self.violations[number] = replace(self.violations[number], later=later)

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


def _with(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return names if name in names else (*names, name)
