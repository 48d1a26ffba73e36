"""GradScaler protocol along the control flow of one function.

Every path through a function carries the state of one scaler (gradients scaled by which
``backward``, optimizers unscaled and stepped since the last ``update``) together with the truth of
the conditions it took, so that ``if use_amp:`` at two places is one decision.  Helpers of the same
class or module run in line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from precision_lint.semantics.events import CLIP_SCALED, READ_SCALED, UNSCALED_TWICE
from precision_lint.semantics.gradients import (
    CLIP,
    NOT_READ,
    READS_GRADIENT,
    SELF_UNSCALING,
    carries,
    reads,
)
from precision_lint.semantics.index import Function
from precision_lint.semantics.names import dotted
from precision_lint.semantics.paths import State, assume, common_facts, fewer, forget

if TYPE_CHECKING:
    from precision_lint.semantics.module import Module

DEPTH = 3


@dataclass(frozen=True, eq=False)
class Violation:
    """A broken step of the protocol.

    node: what to flag; backward: the scaled backward (None: it is in another function);
    first: the earlier ``unscale_`` of a double one; steps, unscales: ``scaler.step`` and
    ``scaler.unscale_`` calls of this function that follow on some path, before ``update`` and the
    next backward; helper: the function of this module in which the read happens;
    sometimes_unscaled: another path reaches the node with unscaled gradients.
    """

    kind: str
    node: ast.expr
    scaler: str
    optimizer: str
    backward: ast.Call | None
    first: ast.Call | None
    steps: tuple[ast.Call, ...]
    unscales: tuple[ast.Call, ...]
    helper: Function | None
    sometimes_unscaled: bool
    after_step: bool = False
    unscaled: tuple[str, ...] = ()
    """Optimizers that were unscaled before, on the path that broke the protocol."""


@dataclass
class Flow:
    """States that leave a block: by its end, by ``continue`` and by ``break``."""

    live: list[State]
    continued: list[State]
    broken: list[State]


def scalers(function: Function) -> set[str]:
    """Source texts of the objects that a function uses as a GradScaler."""
    found = set()
    for node in _nodes(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = dotted(node.func.value)
            if node.func.attr == "unscale_" and owner:
                found.add(owner)
            elif node.func.attr == "backward" and isinstance(node.func.value, ast.Call):
                inner = node.func.value.func
                if isinstance(inner, ast.Attribute) and inner.attr == "scale":
                    name = dotted(inner.value)
                    if name:
                        found.add(name)
            elif node.func.attr in ("scale", "step") and owner and node.args:
                if "scaler" in owner.lower():
                    found.add(owner)
    return found


def _nodes(function: Function) -> Iterator[ast.AST]:
    stack: list[ast.AST] = list(function.node.body)
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            stack.extend(ast.iter_child_nodes(node))


class Protocol:
    """Runs one function for one scaler; ``violations`` holds what breaks the protocol."""

    def __init__(self, function: Function, module: Module, scaler: str) -> None:
        self.function = function
        self.module = module
        self.scaler = scaler
        self.violations: dict[int, Violation] = {}
        self.good: set[int] = set()
        """Reads that some path reaches with unscaled gradients."""
        self.reported: set[int] = set()
        self.scaled_names: set[str] = set()
        self.aliases: set[str] = set()
        self.at: ast.expr | None = None
        """The call in the outermost function through which a helper runs."""
        self.helpers: list[Function] = []
        self.returned: list[State] = []
        self.renames: list[dict[str, str]] = [{}]
        self.steps: dict[int, dict[int, ast.Call]] = {}
        self.unscales: dict[int, dict[int, ast.Call]] = {}
        """Calls that follow a violation on some path, by the violation's node."""

    def run(self) -> list[Violation]:
        if self._disabled():
            return []
        self.block(self.function.node.body, [State()])
        found = []
        for violation in self.violations.values():
            sometimes = id(violation.node) in self.good
            place = id(violation.node)
            found.append(
                replace(
                    violation,
                    sometimes_unscaled=sometimes,
                    steps=_in_order(self.steps.get(place, {})),
                    unscales=_in_order(self.unscales.get(place, {})),
                )
            )
        return sorted(found, key=lambda v: (v.node.lineno, v.node.col_offset))

    def _disabled(self) -> bool:
        """Whether the scaler is made with a literal ``enabled=False``."""
        made: list[ast.expr] = [
            node.value
            for node in _nodes(self.function)
            if isinstance(node, ast.Assign) and any(dotted(t) == self.scaler for t in node.targets)
        ]
        cls = self.function.cls
        if self.scaler.startswith("self.") and cls is not None:
            stored = self.module.stores(cls).get(self.scaler[5:])
            made += [stored[0]] if stored else []
        return bool(made) and all(
            isinstance(call, ast.Call)
            and any(
                k.arg == "enabled" and isinstance(k.value, ast.Constant) and k.value.value is False
                for k in call.keywords
            )
            for call in made
        )

    # control flow

    def block(self, body: Iterable[ast.stmt], states: list[State]) -> Flow:
        flow = Flow(states, [], [])
        for statement in body:
            if not flow.live:
                break
            flow.live = self.statement(statement, flow)
        return flow

    def statement(self, node: ast.stmt, flow: Flow) -> list[State]:
        states = flow.live
        match node:
            case ast.If(test=test, body=body, orelse=orelse):
                states = self.expression(test, states)
                then = [s for s in (assume(s, test, True) for s in states) if s]
                other = [s for s in (assume(s, test, False) for s in states) if s]
                return self._join(flow, self.block(body, then), self.block(orelse, other))
            case (
                ast.For(iter=iterable, body=body, orelse=orelse)
                | ast.AsyncFor(iter=iterable, body=body, orelse=orelse)
            ):
                return self.loop(node, self.expression(iterable, states), body, orelse, flow)
            case ast.While(test=test, body=body, orelse=orelse):
                return self.loop(node, self.expression(test, states), body, orelse, flow)
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                for item in items:
                    states = self.expression(item.context_expr, states)
                return self._join(flow, self.block(body, states))
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
                inner = self.block([*body, *orelse], states)
                ends = [inner]
                for handler in handlers:
                    ends.append(self.block(handler.body, fewer(states)))
                live = self._join(flow, *ends)
                return self._join(flow, self.block(final, live)) if final else live
            case ast.Match(subject=subject, cases=cases):
                states = self.expression(subject, states)
                ends = [self.block(case.body, list(states)) for case in cases]
                return self._join(flow, Flow(list(states), [], []), *ends)
            case ast.Return(value=value):
                if value is not None:
                    states = self.expression(value, states)
                self.returned += states
                return []
            case ast.Raise():
                return []
            case ast.Continue():
                flow.continued += states
                return []
            case ast.Break():
                flow.broken += states
                return []
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return states
            case ast.Assign(targets=targets, value=value):
                states = self.expression(value, states)
                for target in targets:
                    key = dotted(target)
                    if key is not None:
                        self._bind(key, value)
                        states = [forget(s, key) for s in states]
                        if isinstance(value, ast.Constant) and isinstance(value.value, bool):
                            known = (key, value.value)
                            states = [replace(s, facts=s.facts | {known}) for s in states]
                        if key == self.scaler:  # a new scaler remembers nothing
                            states = [State(touched=True, facts=s.facts) for s in states]
                return states
            case ast.AugAssign(target=target, value=value):
                states = self.expression(value, states)
                key = dotted(target)
                return [forget(s, key) for s in states] if key else states
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        states = self.expression(child, states)
                return states

    def _join(self, flow: Flow, *ends: Flow) -> list[State]:
        live: list[State] = []
        for end in ends:
            live += end.live
            flow.continued += end.continued
            flow.broken += end.broken
        return fewer(live)

    def loop(
        self,
        node: ast.stmt,
        states: list[State],
        body: list[ast.stmt],
        orelse: list[ast.stmt],
        flow: Flow,
    ) -> list[State]:
        changing = {n for n in map(dotted, _targets(node)) if n}
        after = list(states)
        broken: list[State] = []
        current = states
        if isinstance(node, (ast.For, ast.AsyncFor)):
            unrolled = self._unrolled(node)
            if unrolled is not None:
                name, items = unrolled
                for item in items:
                    self.renames.append({**self.renames[-1], name: item})
                    inner = self.block(body, fewer(current))
                    self.renames.pop()
                    current = fewer(inner.live + inner.continued)
                    after = inner.broken
                return self._join(flow, self.block(orelse, fewer(current + after)))
        for _ in range(2):
            for name in changing:
                current = [forget(s, name) for s in current]
            if isinstance(node, ast.While):
                current = [s for s in (assume(s, node.test, True) for s in current) if s]
            inner = self.block(body, fewer(current))
            current = fewer(inner.live + inner.continued)
            after += current
            broken += inner.broken
        # the else of a loop runs only if nothing broke out of it
        return self._join(flow, self.block(orelse, fewer(after)), Flow(broken, [], []))

    def _unrolled(self, node: ast.For | ast.AsyncFor) -> tuple[str, list[str]] | None:
        """Target and items of a loop over a literal tuple of names."""
        if not isinstance(node.target, ast.Name) or not isinstance(
            node.iter, (ast.Tuple, ast.List)
        ):
            return None
        items = [self.name(item) for item in node.iter.elts]
        names = [item for item in items if item]
        return (node.target.id, names) if len(names) == len(items) and len(items) <= 4 else None

    def _bind(self, key: str, value: ast.expr) -> None:
        scale = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)
        if scale and value.func.attr == "scale" and self.name(value.func.value) == self.scaler:  # type: ignore[attr-defined]
            self.scaled_names.add(key)
        elif carries(value, self.aliases):
            self.aliases.add(key)

    def name(self, node: ast.expr) -> str | None:
        """A dotted name in terms of the outermost function."""
        path = dotted(node)
        if path is None:
            return None
        head, _, rest = path.partition(".")
        head = self.renames[-1].get(head, head)
        return f"{head}.{rest}" if rest else head

    # events, in order of evaluation

    def expression(self, node: ast.expr, states: list[State]) -> list[State]:
        for part in _postorder(node):
            if isinstance(part, ast.Call):
                states = self.call(part, states)
        for read in reads(node, self.aliases):
            states = self.event(READ_SCALED, read, states)
        return states

    def call(self, node: ast.Call, states: list[State]) -> list[State]:
        callee = node.func
        last = callee.attr if isinstance(callee, ast.Attribute) else getattr(callee, "id", "")
        owner = callee.value if isinstance(callee, ast.Attribute) else None
        if last == "backward" and owner is not None:
            if self._is_scaled(owner):
                return [
                    replace(
                        s,
                        scaled=node,
                        plain=False,
                        pending=(),
                        open=(),
                        spent=(*(name for name, _ in s.unscaled), *s.stepped),
                    )
                    for s in states
                ]
            return [s if s.scaled else replace(s, plain=True) for s in states]
        if owner is not None and self.name(owner) == self.scaler:
            optimizer = (self.name(node.args[0]) or ast.unparse(node.args[0])) if node.args else ""
            if last == "unscale_":
                return [self.unscale(node, optimizer, s) for s in states]
            if last == "step":
                return [self.step(node, optimizer, s) for s in states]
            if last == "get_scale":  # the code takes the scale into account itself
                return [replace(s, scaled=None, plain=True) for s in states]
            if last == "update":
                return [State(touched=True, facts=s.facts) for s in states]
            return states
        if last == "zero_grad":
            return [replace(s, scaled=None, plain=False) for s in states]
        helper = self.helper(node)
        if helper is not None:
            return self.inline(helper, node, states)
        if CLIP.search(last):
            if owner is not None and any(
                w in (dotted(owner) or "").lower() for w in SELF_UNSCALING
            ):
                return [replace(s, scaled=None) for s in states]
            return self.event(CLIP_SCALED, node, states)
        if READS_GRADIENT.search(last) and not NOT_READ.search(last):
            return self.event(READ_SCALED, node, states)
        return states

    def _is_scaled(self, owner: ast.expr) -> bool:
        if isinstance(owner, ast.Call) and isinstance(owner.func, ast.Attribute):
            return owner.func.attr == "scale" and self.name(owner.func.value) == self.scaler
        return dotted(owner) in self.scaled_names

    def helper(self, node: ast.Call) -> Function | None:
        path = dotted(node.func)
        if path is None or len(self.helpers) >= DEPTH:
            return None
        found = self.module.index.function_named(path, self.function)
        if found is None or found is self.function or found in self.helpers:
            return None
        return found

    def inline(self, helper: Function, node: ast.Call, states: list[State]) -> list[State]:
        renames = {"self": "self"}
        names = [p.arg for p in helper.parameters()]
        if helper.is_method and names[:1] == ["self"]:
            names = names[1:]
        for name, argument in zip(names, node.args, strict=False):
            renames[name] = self.name(argument) or f"{name}@{node.lineno}"
        for keyword in node.keywords:
            if keyword.arg:
                renames[keyword.arg] = self.name(keyword.value) or keyword.arg
        outer = self.at
        self.at = self.at or node
        self.helpers.append(helper)
        self.renames.append(renames)
        kept = [replace(s, facts=frozenset()) for s in states]
        outside, self.returned = self.returned, []
        ended = self.block(helper.node.body, kept).live + self.returned or kept
        self.returned = outside
        self.renames.pop()
        self.helpers.pop()
        self.at = outer
        facts = states[0].facts if len(states) == 1 else common_facts(states)
        return fewer([replace(s, facts=facts) for s in ended])

    def unscale(self, node: ast.Call, optimizer: str, state: State) -> State:
        earlier = next((call for name, call in state.unscaled if name == optimizer), None)
        stepped = optimizer in state.stepped
        self._note(state, self.unscales, node)
        if (earlier is not None or stepped) and not self._guarded_by_state(state):
            flagged = self.at or node
            self.report(UNSCALED_TWICE, flagged, state, optimizer, earlier, stepped)
            state = replace(state, open=_added(state.open, flagged))
        if earlier is not None:
            return replace(state, spent=tuple(n for n in state.spent if n != optimizer))
        return replace(
            state, unscaled=(*state.unscaled, (optimizer, node)), pending=(), touched=True
        )

    @staticmethod
    def _guarded_by_state(state: State) -> bool:
        """Whether this path asked for the scaler's own per-optimizer state."""
        return any("OptState" in text or "_per_optimizer_states" in text for text, _ in state.facts)

    def step(self, node: ast.Call, optimizer: str, state: State) -> State:
        self._note(state, self.steps, node)
        if not state.unscaled:
            for kind, read in state.pending:
                self.report(kind, read, state, optimizer, None, False)
                if id(read) in self.violations:
                    self._note(replace(state, open=(id(read),)), self.steps, node)
        return replace(state, stepped=(*state.stepped, optimizer), pending=(), touched=True)

    def event(self, kind: str, node: ast.expr, states: list[State]) -> list[State]:
        flagged = self.at or node
        result = []
        for state in states:
            if state.current:
                if state.scaled or not state.plain:
                    self.good.add(id(flagged))
            elif state.scaled is not None:
                self.report(kind, flagged, state, "", None, False)
                state = replace(state, open=_added(state.open, flagged))
            elif not state.plain and not state.touched:
                state = replace(state, pending=(*state.pending, (kind, flagged))[:4])
            result.append(state)
        return result

    def report(
        self,
        kind: str,
        node: ast.expr,
        state: State,
        optimizer: str,
        first: ast.Call | None,
        after_step: bool,
    ) -> None:
        if id(node) in self.violations:
            return
        if kind != UNSCALED_TWICE:
            # one defect, one report: the first read after a backward stands for the later ones
            origin = id(state.scaled)
            if origin in self.reported:
                return
            self.reported.add(origin)
        helper = self.helpers[0] if self.helpers and self.at is not None else None
        self.violations[id(node)] = Violation(
            kind, node, self.scaler, optimizer, state.scaled, first, (), (), helper, False,
            after_step, tuple(name for name, _ in state.unscaled),
        )  # fmt: skip

    def _note(self, state: State, table: dict[int, dict[int, ast.Call]], call: ast.Call) -> None:
        """Remember that a path with open violations reached a call of this function."""
        if self.at is None:
            for violation in state.open:
                table.setdefault(violation, {})[id(call)] = call


def _added(nodes: tuple[int, ...], node: ast.expr) -> tuple[int, ...]:
    return nodes if id(node) in nodes else (*nodes, id(node))


def _in_order(calls: dict[int, ast.Call]) -> tuple[ast.Call, ...]:
    return tuple(sorted(calls.values(), key=lambda c: (c.lineno, c.col_offset)))


def _targets(node: ast.stmt) -> Iterator[ast.expr]:
    """Names and attributes that a loop binds anywhere inside."""
    for part in ast.walk(node):
        if isinstance(part, (ast.For, ast.AsyncFor)):
            yield from (
                n for n in ast.walk(part.target) if isinstance(n, (ast.Name, ast.Attribute))
            )
        elif isinstance(part, ast.Assign):
            yield from part.targets
        elif isinstance(part, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
            yield part.target


def _postorder(node: ast.expr) -> Iterator[ast.AST]:
    """Nodes of an expression, operands before the operation, lambdas left out."""
    if isinstance(node, ast.Lambda):
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.expr, ast.keyword, ast.comprehension)):
            yield from _postorder(child)  # type: ignore[arg-type]
    yield node
