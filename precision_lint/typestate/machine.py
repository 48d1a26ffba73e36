"""Runs traces: all paths through branches, loops and calls, as a set of states."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

from precision_lint.dataflow.graph import alternatives, behind
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.objects import other_way
from precision_lint.dataflow.operators import owners_of
from precision_lint.dataflow.protocol import Step
from precision_lint.domains import assumptions as assume
from precision_lint.domains.dtypes import ALL_MODES, AMP16
from precision_lint.domains.values import (
    IN_FLOAT16,
    Closure,
    Instance,
    Sequence,
    Special,
    Symbol,
    Tensor,
    Unknown,
    Value,
)
from precision_lint.events import Place
from precision_lint.typestate.conditions import Receiver, decided, lasting, learned, set_to
from precision_lint.typestate.states import (
    STEPPED,
    UNSCALED,
    State,
    all_scaled,
    by_elements,
    coarser,
    fewer,
    forgetting,
    fresh,
    in_order,
    next_element,
    noted_early,
    switched_off,
    updated_by,
    where,
)
from precision_lint.typestate.traces import (
    COVERING,
    beside,
    clipped_owners,
    deciding,
    divided_elsewhere,
    function_of,
    is_on,
    is_part,
    looked_up,
    nesting,
    once,
    optimizers,
    passed_by,
    region_of,
    rests_on,
    written,
)
from precision_lint.typestate.ways import Ways

MOST, FEW = 48, 12
"""States that are followed at once, and where a function takes long; beyond, what they know is forgotten."""
ITERATIONS: Final = 3
PRECISE: Final = 80_000
"""Steps that are followed with all conditions on the paths."""
STEPS: Final = 160_000
"""Steps that are followed in one function with all that it calls, each times its states."""
States = frozenset[State]


class Flow:
    """The states behind a trace, by the way it is left."""

    __slots__ = ("breaks", "continues", "next", "returns")

    def __init__(self, states: Iterable[State]) -> None:
        self.next: States = frozenset(states)
        self.breaks: States = frozenset()
        self.continues: States = frozenset()
        self.returns: States = frozenset()

    def leaving(self, other: Flow) -> None:
        """Take over how another flow is left early."""
        self.breaks |= other.breaks
        self.continues |= other.continues
        self.returns |= other.returns


class Machine:
    """Follows one function's trace."""

    def __init__(self, it: Interpreter, trace: list[Step], start: State) -> None:
        self.it, self.function = it, function_of(trace)
        self.home = self.function.module if self.function is not None else it.module
        self.renamed: list[dict[int, int]] = []
        self.moved: list[Any] = []
        self.frames: list[Step] = []
        """Calls around the step at hand, outermost first."""
        self.receivers: dict[Any, int] = {}
        self.silent = 0
        self.stopped: set[str] = set()
        """Kinds of which one report says it all."""
        self.optimizers = {self.key(one): one for one in optimizers(trace, "new-optimizer")}
        self.shared = {self.key(one) for one in optimizers(trace, "")}
        self.tells: dict[int, tuple[bool, bool]] = {}
        """By block: whether the protocol goes on in it, and whether it can be left early."""
        self.followed: dict[Any, Flow] = {}
        """Calls that were followed while nothing was reported, by what they began with."""
        self.budget = STEPS
        self.reports: list[Callable[[], None]] = []
        self.halves: set[Place] = set()
        """Backward passes without a scale of losses that float16 regions computed."""
        steps = list(once(trace, set()))
        self.calls = {
            kind: [s for s in steps if s.kind == kind]
            for kind in ("step", "unscale", "update", "scale", "plain-step")
        }
        self.stepped = {self._optimizer(one) for one in self.calls["step"]}
        self.divides: dict[Any, set[Any]] = {}
        """By scaler: the optimizers whose gradients it divides."""
        for one in (*self.calls["unscale"], *self.calls["step"]):
            self.divides.setdefault(self.key(one.objects[0]), set()).add(self._optimizer(one))
        kinds = {step.kind for step in steps}
        self.plain_steps, self.asks = "plain-step" in kinds, "state-read" in kinds
        self.by_hand = not kinds.isdisjoint({"scale-used", "state-read"})
        self.scaling = {self.key(step.objects[0]) for step in steps if step.kind == "scale"}
        self.made = {self.key(step.objects[0]) for step in steps if step.kind == "new-scaler"}
        self.cleared = {
            self.key(step.objects[0]) for step in steps if step.kind == "zero" and step.objects
        }
        self.loops = dict(nesting(trace, (), set()))
        self.tests = dict(deciding(trace, frozenset(), set()))
        tests = [s for s in steps if s.kind == "if" and self._matters(s)]
        self.ways = Ways(steps, tests, self.loops, self._number)
        self.order = [s for s in steps if s.kind in ORDERED]
        self.numbers = {id(s): number for number, s in enumerate(steps)}
        self.now = 0
        """The number of the step at hand in the order in which steps are written."""
        self.ends = self.run(trace, frozenset({start}))

    # objects

    def key(self, value: Value | None) -> Any:
        """What identifies an object on all paths."""
        if isinstance(value, Special) and isinstance(value.fields.get("of"), Unknown):
            value = value.fields["of"]
        if isinstance(value, Unknown):
            return self._of_symbol(value.symbol)
        if isinstance(value, Instance):
            root, path = value.root, value.path
            for ways in self.moved[::-1]:
                root, path = other_way(root, path, *ways)
            return ("object", id(root), path)
        return id(value)

    def _of_symbol(self, symbol: Symbol) -> Any:
        number = symbol.number
        for names in self.renamed[::-1]:
            number = names.get(number, number)
        return ("?", number)

    def _holders(self, value: Value) -> Iterator[Any]:
        """The keys of an object and of what it was found in."""
        yield self.key(value)
        symbol = value.symbol.owner if isinstance(value, Unknown) else None
        while symbol is not None:
            yield self._of_symbol(symbol)
            symbol = symbol.owner

    # structures

    def run(self, trace: list[Step], states: States) -> Flow:
        """The states behind a trace."""
        flow = Flow(states)
        for step in trace:
            if not flow.next or not self._afford(len(flow.next)):
                break
            structure = STRUCTURES.get(step.kind)
            if structure is not None:
                if not self._matters(step):
                    continue
                inner = structure(self, step, flow.next)
                flow.leaving(inner)
                flow.next = self._bounded(inner.next)
            elif step.kind in ("break", "continue", "return", "raise"):
                self._exit(step.kind, flow)
            else:
                action = ACTIONS.get(step.kind)
                if action is not None:
                    self.now = self.numbers[id(step)]
                    flow.next = frozenset(action(self, step, in_order(flow.next)))
        return flow

    def _afford(self, states: int) -> bool:
        """Whether the bound on steps, each of some states, is not reached yet."""
        if self.budget > 0:
            self.budget -= states
            if self.budget <= STEPS - PRECISE:
                self.ways.forget()
            if self.budget <= 0:
                self.it.program.count("typestate")
        return self.budget > 0

    def _bounded(self, states: States) -> States:
        """Few enough states: conditions that are not asked again are forgotten first, then others."""
        if self.budget <= STEPS - PRECISE:
            plain = forgetting(states)
            return plain if len(plain) <= FEW else coarser(plain)
        if len(states) <= MOST:
            return states
        return fewer(states, MOST, self.ways.kept(self.now))

    def _matters(self, step: Step) -> bool:
        """Whether a structure holds a step of the protocol, or a way out."""
        acts, leaves = self._block((step,))
        return acts or (leaves and step.kind != "call")

    def _block(self, trace: Iterable[Step]) -> tuple[bool, bool]:
        known = self.tells.get(id(trace)) if isinstance(trace, list) else None
        if known is not None:
            return known
        acts = leaves = False
        for step in trace:
            acts |= step.kind in ACTIONS
            leaves |= step.kind in ("break", "continue", "return", "raise")
            for block in step.blocks:
                inner = self._block(block)
                acts |= inner[0]
                leaves |= inner[1] and step.kind != "call"
        if isinstance(trace, list):
            self.tells[id(trace)] = (acts, leaves)
        return acts, leaves

    @staticmethod
    def _exit(kind: str, flow: Flow) -> None:
        if kind == "break":
            flow.breaks |= flow.next
        elif kind == "continue":
            flow.continues |= flow.next
        elif kind == "return":
            flow.returns |= flow.next
        flow.next = frozenset()

    def branch(self, step: Step, states: States) -> Flow:
        """``if``: each path goes the way that its conditions allow."""
        test: ast.expr = step.node.test  # type: ignore[attr-defined]
        ways: tuple[set[State], set[State]] = (set(), set())
        receiver = self._receiver()
        for state in states:
            truth = decided(test, state.known, receiver)
            for way, holds in enumerate((True, False)):
                if truth is None or truth is holds:
                    known = learned(test, holds, state.known, self.ways.asked, receiver)
                    after = state._replace(known=known)
                    ways[way].add(switched_off(after) if self._is_off(after) else after)
        flow = Flow(())
        for block, entering in zip(step.blocks, ways, strict=True):
            inner = self.run(block, frozenset(entering))
            flow.leaving(inner)
            flow.next |= inner.next
        return flow

    def _is_off(self, state: State) -> bool:
        """Whether what switches the scalers on is known not to hold."""
        called = self.frames[-1].objects[0] if self.ways.switches and self.frames else None
        tests = self.ways.switches_in(called.function) if isinstance(called, Closure) else []
        receiver = self._receiver() if tests else None
        return bool(tests) and all(decided(one, state.known, receiver) is False for one in tests)

    def _receiver(self) -> Receiver | None:
        """The object whose method is at hand; None: it is none, or of an unknown object."""
        called = self.frames[-1].objects[0] if self.frames else None
        if not isinstance(called, Closure) or not isinstance(called.owner, Instance):
            return None
        parameters = called.function.parameters
        return Receiver(parameters[0].arg, self._number(called.owner)) if parameters else None

    def _number(self, owner: Instance) -> int:
        return self.receivers.setdefault(self.key(owner), len(self.receivers))

    def either(self, step: Step, states: States) -> Flow:
        """``match`` and parts of conditions: each block may run, or none."""
        flow = Flow(states)
        for block in step.blocks:
            inner = self.run(block, states)
            flow.leaving(inner)
            flow.next |= inner.next
        return flow

    def within(self, step: Step, states: States) -> Flow:
        """``with``: its body runs once."""
        return self.run(step.blocks[0], states)

    def apart(self, step: Step, states: States) -> Flow:
        """A function that is handed on: who calls it, and when, is out of sight."""
        self.run(step.blocks[0], frozenset({State()}))
        return Flow(states)

    def guarded(self, step: Step, states: States) -> Flow:
        """``try``: its body, then handlers from anywhere in it, then what always runs."""
        body, final, *handlers = step.blocks
        flow = self.run(body, states)
        entry = states | flow.next
        for handler in handlers:
            inner = self.run(handler, entry)
            flow.leaving(inner)
            flow.next |= inner.next
        last = self.run(final, flow.next)
        flow.leaving(last)
        flow.next = last.next
        return flow

    def called(self, step: Step, states: States) -> Flow:
        """A call of a function that was followed; its names for unknown objects become the caller's."""
        names = tuple(self.renamed[-1].items()) if self.renamed else ()
        key = (id(step), names, tuple(map(id, self.moved)), states)
        known = self.followed.get(key) if self.silent else None
        if known is not None:
            return known
        self.renamed.append(dict(step.symbols))
        self.moved += [step.ways] if step.ways else []
        self.frames.append(step)
        inner = self.run(step.blocks[0], states)
        self.frames.pop()
        if step.ways:
            self.moved.pop()
        self.renamed.pop()
        level = len(self.frames)
        flow = self.followed[key] = Flow(
            s._replace(level=min(s.level, level)) for s in inner.next | inner.returns
        )
        return flow

    def loop(self, step: Step, states: States) -> Flow:
        """A loop of any number of iterations; its element is another object in each."""
        changing = self.ways.changing[id(step)]
        varying = [key for one in step.objects for key in self._all_of(one)]
        inside = list(once(step.blocks[0], set()))
        varying += [self._optimizer(one) for one in looked_up(step.node, inside)]
        # where the loop covers optimizers, no iteration means no optimizer
        handled = [s.objects[COVERING[s.kind] :][:1] for s in inside if s.kind in COVERING]
        covers = any(self.key(one[0]) in varying for one in handled if one)
        scales = any(s.kind == "scale" for s in inside)  # no iteration means no loss
        states = frozenset(s._replace(zeroed=None) for s in states) if scales else states
        without = self.scale(step, in_order(states)) if scales else states
        flow = Flow(() if covers else without)
        entered: States = frozenset()
        for entering in by_elements(states, varying):
            current = entering
            self.silent += 1
            for _ in range(ITERATIONS):
                ends = self._iteration(step, current, changing, flow)
                following = next_element(entering, ends, varying)
                if following <= current:
                    break
                current = self._bounded(current | following)
            self.silent -= 1
            entered |= current
        flow.next |= self._iteration(step, self._bounded(entered), changing, flow)
        flow.next |= flow.breaks
        flow.breaks = frozenset()
        if len(step.blocks) > 1:
            after = self.run(step.blocks[1], flow.next)
            flow.returns |= after.returns
            flow.next = after.next
        return flow

    def _iteration(
        self, step: Step, states: States, changing: frozenset[str], flow: Flow
    ) -> States:
        """The states at the end of one iteration; how it leaves the loop goes to ``flow``."""
        others = self.ways.others[id(step)]
        inner = self.run(step.blocks[0], states)
        flow.breaks |= inner.breaks
        flow.returns |= inner.returns
        return frozenset(
            state._replace(known=lasting(state.known, changing, others))
            for state in inner.next | inner.continues
        )

    def _all_of(self, element: Value | None) -> list[Any]:
        """The keys of an unknown object and of everything that was found in it."""
        waiting, found = [element], dict[Any, None]()
        while waiting and len(found) < 64:
            one = waiting.pop()
            if self.key(one) not in found and isinstance(one, Unknown):
                waiting += reversed(one.symbol.attributes.values())
            found[self.key(one)] = None
        return list(found)

    def unrolled(self, step: Step, states: States) -> Flow:
        """A loop over a few known items."""
        or_else, *rounds = step.blocks
        flow = Flow(states)
        current, left = states, frozenset[State]()
        for block in rounds:
            inner = self.run(block, current)
            left |= inner.breaks
            flow.returns |= inner.returns
            current = inner.next | inner.continues
        after = self.run(or_else, current)
        flow.returns |= after.returns
        flow.next = after.next | left
        return flow

    # reports

    def report(
        self,
        kind: str,
        place: Place,
        states: Iterable[State],
        extra: int = 0,
        everywhere: bool = False,
        **facts: Any,
    ) -> None:
        """An event of some states; in a callee it stands where the frame of the backward calls that.

        everywhere: it holds on all paths, so that it does not matter which can be gone."""
        some = in_order(states)
        if self.silent:
            return
        level = max((state.level for state in some), default=0)
        if any(state.scaled is not None for state in some):
            place = self._seen(kind, level, place)
        framework = all(state.framework for state in some)
        assumptions = extra
        for state in some:
            assumptions |= state.assumptions
        if everywhere and assumptions & assume.PATHS:
            assumptions = assumptions & ~assume.PATHS | assume.BRANCH
        report = partial(
            self.it.emit_at,
            kind,
            place,
            1 << AMP16 if framework else ALL_MODES,
            assumptions | (assume.LIBRARY if framework else 0),
            backward=next((s.scaled for s in some if s.scaled is not None), None),
            steps=tuple(written(one) for one in self._following("step")),
            unscales=tuple(one.place for one in self._following("unscale")),
            updates=tuple(one.place for one in self.calls["update"]),
            plain=tuple(one.place for one in self.calls["plain-step"]),
            scalers=tuple(written(one)[1] for one in self.calls["scale"]),
            framework=framework,
            calls=tuple(frame.place for frame in self.frames[::-1]),
            **facts,
        )
        report()
        self.reports.append(report)

    def _following(self, kind: str) -> list[Step]:
        """The steps of a kind that belong to the backward at hand; all, if it has none of its own."""
        found, stepped = [], False
        for step in self.order:
            if self.numbers[id(step)] <= self.now:
                continue
            if step.kind in ("backward", "update") and stepped:
                break
            stepped |= step.kind == "step"
            if step.kind == kind:
                found.append(step)
        return found if stepped else self.calls[kind]

    def _seen(self, kind: str, level: int, place: Place) -> Place:
        """Where something happens: at the call, if the callee reads, or knows no protocol."""
        inner = self.frames[level:]
        functions = [step.objects[0] for step in inner]
        methods = all(isinstance(one, Closure) and one.owner is not None for one in functions)
        at_call = inner and (kind == "scaled-gradient-read" or not methods)
        return inner[0].place if at_call else place

    # actions

    def scaler_of(self, loss: Value | None, level: int | None = None) -> Special | None:
        """The scaler that has scaled a loss, through the arguments of the calls around."""
        level = len(self.frames) if level is None else level
        if isinstance(loss, Sequence):
            parts = loss.items if loss.items is not None else (loss.element,)
            return next(
                (s for part in parts if (s := self.scaler_of(part, level)) is not None), None
            )
        for one in behind(loss, 40):
            if (
                one.op == "scaled"
                and len(one.operands) > 1
                and isinstance(one.operands[1], Special)
            ):
                return one.operands[1]
            if one.op == "argument" and not one.operands and level:
                found = self.scaler_of(dict(self.frames[level - 1].given).get(one.data), level - 1)
                if found is not None:
                    return found
        return None

    def scale(self, step: Step, states: list[State]) -> Iterable[State]:
        """``scaler.scale(loss)``"""
        return [s._replace(multiplied=True) for s in states]

    def backward(self, step: Step, states: list[State]) -> Iterable[State]:
        """``loss.backward()``"""
        after = self._backward(step, states)
        return [s._replace(multiplied=False) for s in after]

    def _backward(self, step: Step, states: list[State]) -> Iterable[State]:
        loss = step.objects[0] if step.objects else None
        scaler = self.scaler_of(loss)
        if scaler is not None and any(self.scaler_of(one) is None for one in alternatives(loss)):
            return [s._replace(lost=True, scaled=None, plain=None) for s in states]
        if scaler is None and region_of(loss) == IN_FLOAT16:
            self.halves.add(step.place)
        if scaler is None:
            return [fresh(s)._replace(plain=step.place, looked=False, early=None) for s in states]
        if scaler.fields.get("enabled") is False:
            return [s._replace(plain=None, zeroed=None, early=None) for s in states]
        here = self.key(scaler) in self.scaling
        return [
            s._replace(lost=True, scaled=None, plain=None)
            if (here and not s.multiplied) or self._is_off(s)
            else s._replace(
                scaled=step.place, framework=False, assumptions=scaler.assumptions, waiting=True,
                zeroed=None, updated=None, looked=False, lost=False, clean=(), level=len(self.frames),
                early=None,
            )
            for s in states
        ]  # fmt: skip

    def unscale(self, step: Step, states: list[State]) -> Iterable[State]:
        """``scaler.unscale_(optimizer)``"""
        if not is_on(step):
            return states
        optimizer = self._optimizer(step)
        again = [s for s in states if s.of(optimizer) is not None and not s.lost]
        if again and not self.asks:
            some = assume.BRANCH if len(again) < len(states) else 0
            known = self.optimizers.keys() | {key for key in self.shared if key in self.stepped}
            self.report(
                "double-unscale", step.place, again, some,
                done=again[0].of(optimizer),
                alone=sum(self._optimizer(one) == optimizer for one in self.calls["unscale"]) == 1,
                another=any(key not in again[0].clean for key in known if key != optimizer),
            )  # fmt: skip
            self.stopped.add("double-unscale")
        self._unscaled_loss(step, states)
        self._read_early(step, states)
        return [s.divided(optimizer, UNSCALED)._replace(early=None) for s in states]

    def step(self, step: Step, states: list[State]) -> Iterable[State]:
        """``scaler.step(optimizer)``"""
        if not is_on(step):
            return states
        optimizer = self._optimizer(step)
        if len(step.objects) > 2 and isinstance(step.objects[-1], Closure):
            self.report(
                "plain-step", step.place, states, rests_on(step), done="closure", given=True
            )
            return states
        self._unscaled_loss(step, states)
        self._read_early(step, states)
        again = [s for s in states if s.of(optimizer) == STEPPED and not s.lost]
        if again and "second-step" not in self.stopped:
            some = assume.BRANCH if len(again) < len(states) else 0
            self.report("update-order", step.place, again, some, how="second-step")
            if not self.silent:
                self.stopped.add("second-step")
        own = self.key(step.objects[0])
        early = [s for s in updated_by(states, own) if s.waiting and not s.lost]
        if early and early[0].updated is not None:
            self.report("update-order", early[0].updated[1], early, how="between")
        zeroed = [
            s for s in states if s.zeroed is not None and self._clears(s.zeroed[0], optimizer)
        ]
        if len(zeroed) < len(states):
            zeroed = [s for s in zeroed if not s.clean]
        if zeroed and zeroed[0].zeroed is not None:
            some = assume.BRANCH if len(zeroed) < len(states) else 0
            self.report("zeroed-gradients", zeroed[0].zeroed[1], zeroed, some, step=step.place)
        return [
            s.divided(optimizer, STEPPED)._replace(plain=None, zeroed=None, early=None)
            for s in states
        ]

    def _read_early(self, step: Step, states: list[State]) -> None:
        """Gradients that a scaler divides here were used before, whoever calls the function."""
        used = [s for s in states if s.early is not None and not s.assumptions & assume.PATHS]
        if used and not self.by_hand and not divided_elsewhere(self.home):
            kind, place, how = used[0].early or ("", step.place, "")
            self.report(kind, place, used, rests_on(step), how=how)

    def _unscaled_loss(self, step: Step, states: list[State]) -> None:
        """A step that divides gradients which nothing multiplied."""
        if any(s.lost for s in states) or self.by_hand:
            return
        scaler = self.key(step.objects[0])
        if scaler in self.made and self.scaling and scaler not in self.scaling:
            self.report("unscaled-backward", step.place, states, step=step.place, beside=True)
            return
        plain = [s for s in states if s.plain is not None]
        alone = [s for s in plain if s.scaled is None]
        if plain and len(alone) == len(states) and alone[0].plain is not None:
            self.report(
                "unscaled-backward",
                alone[0].plain,
                alone,
                rests_on(step),
                step=step.place,
                beside=False,
            )
        elif alone and not rests_on(step) and alone[0].plain is not None:
            place = alone[0].plain
            self.report(
                "unscaled-backward", place, alone, assume.BRANCH, step=step.place, beside=False
            )
        elif plain and not alone and not self.plain_steps and all(s.waiting for s in plain):
            some = assume.BRANCH if len(plain) < len(states) else 0
            place = plain[0].plain or step.place
            if not some or beside(self.order, self.loops, step, place):
                self.report("unscaled-backward", place, plain, some, step=step.place, beside=True)

    def plain_step(self, step: Step, states: list[State]) -> Iterable[State]:
        """``optimizer.step()``"""
        optimizer = self.key(step.objects[0] if step.objects else None)
        used = [s for s in states if s.scaled is not None and not s.framework and not s.lost]
        known = optimizer in self.shared | self.cleared or optimizer in self.optimizers
        known |= bool(self.calls["update"]) and not self.calls["step"]
        known |= len(step.objects) > 1 and isinstance(step.objects[1], Closure)
        if used and known and (len(used) == len(states) or optimizer not in self.shared):
            done = used[0].of(optimizer)
            unscaled = all(s.of(optimizer) == UNSCALED for s in used)
            own = all(s.plain is not None and done is None for s in used)
            if own and len(used) == len(states) and used[0].plain in self.halves:
                self.report(
                    "unscaled-loss", used[0].plain, used, off=False, step=step.place, clips=()
                )
            if not own and not (unscaled and any(s.looked for s in used)):
                wrapped = getattr(step.objects[0], "assumptions", 0) & assume.WRAPPED
                extra = wrapped | assume.BRANCH * unscaled
                given = len(step.objects) > 1
                self.report("plain-step", step.place, used, extra, done=done, given=given)
        return [
            s._replace(scaled=None, waiting=False, plain=None, by_framework=None, early=None)
            if s.framework
            else s._replace(plain=None, by_framework=None, early=None)
            for s in states
        ]

    def update(self, step: Step, states: list[State]) -> Iterable[State]:
        """``scaler.update()``"""
        stepped = [s for s in states if any(done == STEPPED for _, done in s.optimizers)]
        without = [s for s in states if s.waiting and s.scaled is not None and not s.clean]
        own = self.key(step.objects[0])
        twice = [s for s in updated_by(states, own) if not s.optimizers and not s.waiting]
        if twice and len(twice) == len(states) and not any(s.lost for s in states):
            self.report("update-order", step.place, twice, how="again")
        beside = any(
            self.loops.get(id(one)) == self.loops.get(id(step)) for one in self.calls["step"]
        )
        if stepped and without and beside and not any(s.lost for s in states):
            self.report("update-order", step.place, without, assume.BRANCH, how="without-step")
        return [
            s._replace(
                optimizers=(),
                updated=(own, step.place) if s.scaled is not None else None,
                waiting=(s.waiting and not any(done == STEPPED for _, done in s.optimizers))
                or (s.waiting and self._others_wait(s, own)),
            )
            for s in states
        ]

    def _others_wait(self, state: State, scaler: Any) -> bool:
        """Whether a scaler steps more optimizers than it has stepped."""
        done = {key for key, _ in state.optimizers}
        own = self.divides.get(scaler, self.shared)
        return state.scaled is not None and any(key not in done for key in own)

    def clip(self, step: Step, states: list[State]) -> Iterable[State]:
        """``clip_grad_norm_(parameters, ...)``"""
        scaled = [s for s in states if s.scaled is not None and not s.lost]
        if not scaled:
            return noted_early(states, "scaled-clip", step.place, step.kind)
        if self.by_hand:
            return states
        if not any(s.clean for s in scaled):
            self.report("scaled-clip", step.place, scaled, everywhere=all_scaled(states))
        elif all(s.clean for s in scaled):
            self._partial(step, scaled)
        elif passed_by(self.tests, step, self.calls):
            late = [s for s in scaled if not s.clean]
            self.report("scaled-clip", step.place, late, assume.BRANCH, passed=True)
        return states

    def _partial(self, step: Step, states: list[State]) -> None:
        """A clip of parameters whose optimizer was not unscaled, where another one was."""
        clipped = [key for one in clipped_owners(step) for key in self._all_of(one)]
        for key, optimizer in self.optimizers.items():
            if not isinstance(optimizer, Special) or key not in self.shared:
                continue
            if "double-unscale" in self.stopped or any(key in s.clean for s in states):
                continue
            given = owners_of(optimizer.fields.get("parameters", optimizer))
            held = [key for one in given for key in self._holders(one)]
            if key in clipped or any(is_part(one, whole) for one in held for whole in clipped):
                stepping = [s for s in self.calls["step"] if self._optimizer(s) == key]
                missing = written(stepping[0]) if stepping else None
                self.report("partial-unscale", step.place, states, missing=missing)
                return

    def read(self, step: Step, states: list[State]) -> Iterable[State]:
        """A gradient is inspected."""
        scaled = [s for s in states if s.scaled is not None and not s.lost]
        fresh = [s for s in scaled if not s.looked]
        if fresh and not self.by_hand and not any(s.clean for s in scaled):
            every = all_scaled(states)
            self.report("scaled-gradient-read", step.place, fresh, everywhere=every, how=step.kind)
        if not scaled and step.kind == "read":
            states = noted_early(states, "scaled-gradient-read", step.place, step.kind)
        return [s._replace(looked=True) for s in states]

    def read_of_autograd(self, step: Step, states: list[State]) -> Iterable[State]:
        """What ``torch.autograd.grad`` made of a scaled loss is looked at."""
        made = step.objects[1]
        if is_on(step) and not self.by_hand and isinstance(made, Tensor) and made.node is not None:
            scaled = self.it.place(made.node, made.home)
            some = [
                s._replace(scaled=scaled, framework=False, level=len(self.frames)) for s in states
            ]
            self.report("scaled-gradient-read", step.place, some, rests_on(step), how="autograd")
        return states

    def scrub(self, step: Step, states: list[State]) -> Iterable[State]:
        """What is not finite is replaced in gradients."""
        scaled = [s for s in states if s.scaled is not None and not s.lost]
        if scaled and not any(s.clean for s in scaled):
            self.report("scrubbed-gradients", step.place, scaled, everywhere=all_scaled(states))
        return states

    def zero(self, step: Step, states: list[State]) -> Iterable[State]:
        """``zero_grad()``"""
        key = self.key(step.objects[0] if step.objects else None)
        return [
            s._replace(
                zeroed=(key, self._seen("zeroed", s.level, step.place)) if s.waiting else s.zeroed,
                scaled=s.scaled if s.waiting else None,
                plain=None,
            )
            for s in states
        ]

    def _clears(self, cleared: Any, optimizer: Any) -> bool:
        """Whether what was set to zero holds an optimizer's gradients."""
        if cleared == optimizer:
            return True
        known = self.optimizers.get(optimizer)
        if not isinstance(known, Special):
            # nobody saw of what it is: one model is set to zero, one optimizer steps
            return cleared not in self.optimizers and len(self.cleared) == len(self.stepped) == 1
        return any(
            self.key(one) == cleared for one in owners_of(known.fields.get("parameters", known))
        )

    def handed(self, step: Step, states: list[State]) -> Iterable[State]:
        """A scaler is handed to what nobody has seen; or a call that may use one is not followed."""
        scaler = any(isinstance(one, Special) and one.kind == "scaler" for one in step.objects[1:])
        gone = scaler or step.kind == "unfollowed-call"
        return [s._replace(lost=True, optimizers=()) for s in states] if gone else states

    def stored(self, step: Step, states: list[State]) -> Iterable[State]:
        """A variable that tests ask is set."""
        set_now = partial(set_to, step.node, step.objects[0], tests=self.ways.simple)
        return [s._replace(known=set_now(s.known)) for s in states]

    def _optimizer(self, step: Step) -> Any:
        return self.key(step.objects[1] if len(step.objects) > 1 else None)


STRUCTURES: Final[dict[str, Callable[[Machine, Step, States], Flow]]] = {
    "if": Machine.branch, "match": Machine.either, "and": Machine.either, "or": Machine.either,
    "try": Machine.guarded, "call": Machine.called, "loop": Machine.loop,
    "unrolled": Machine.unrolled, "with": Machine.within, "apart": Machine.apart,
}  # fmt: skip
ACTIONS: Final[dict[str, Callable[[Machine, Step, list[State]], Iterable[State]]]] = {
    "scale": Machine.scale, "backward": Machine.backward, "unscale": Machine.unscale,
    "step": Machine.step, "plain-step": Machine.plain_step, "update": Machine.update,
    "clip": Machine.clip, "read": Machine.read, "gradient-added": Machine.read,
    "autograd-read": Machine.read_of_autograd,
    "scrub": Machine.scrub, "zero": Machine.zero, "unknown-call": Machine.handed,
    "new-scaler": lambda machine, step, states: [s._replace(optimizers=()) for s in states],
    "set": Machine.stored, "unfollowed-call": Machine.handed,
    "present": lambda machine, step, states: where(states, machine.key(step.objects[0]), True),
    "absent": lambda machine, step, states: where(states, machine.key(step.objects[0]), False),
}  # fmt: skip


ORDERED: Final = frozenset({"backward", "update", "step", "unscale"})
